"""The public face of `hdp.collectives`: what it exports, and what each operation's docstring tells."""

import inspect

import numpy as np
import pytest

import hdp.collectives as hc
from hdp.collectives import arrays
from hdp.collectives.communicator import join
from hdp.collectives.defaults import Defaults

OPERATIONS = [
    "allgather", "allreduce", "alltoall", "barrier", "broadcast", "gather", "recv", "reduce", "reduce_scatter",
    "scatter", "send",
]  # fmt: skip


def test_exports():
    """Every export exists; every operation of the library is exported."""
    assert sorted(hc.__all__) == hc.__all__
    assert all(hasattr(hc, name) for name in hc.__all__)
    assert {kind.name.lower() for kind in hc.Kind} == set(OPERATIONS) <= set(hc.__all__)


@pytest.mark.parametrize("name", OPERATIONS)
def test_docstrings_tell_shapes_callers_cost_and_errors(name):
    operation = getattr(hc, name)
    text = inspect.getdoc(operation)
    assert all(part in text for part in ("Cost: ", "Callers: ", "After an error: "))
    assert "shape" in text or name in ("barrier", "send")
    documented = set(inspect.signature(operation).parameters) - {"group", "op", "tag", "timeout", "root", "out"}
    assert all(f"{parameter}" in text for parameter in documented)


def test_defaults_come_from_the_environment():
    """Without the variables: half an hour, a line after a minute, no rounding. An empty wire format is none."""
    assert Defaults.from_environment({"HDP_WIRE_DTYPE": ""}) == Defaults(1800.0, 60.0, "float32") == Defaults()
    environ = {"HDP_TIMEOUT_SECONDS": "2.5", "HDP_STALL_SECONDS": "0", "HDP_WIRE_DTYPE": "bfloat16"}
    assert Defaults.from_environment(environ) == Defaults(2.5, 0.0, "bfloat16")
    assert Defaults.from_environment({"HDP_TIMEOUT_SECONDS": "inf"}).timeout == 1e9  # what the library can be told


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("HDP_TIMEOUT_SECONDS", "soon", "seconds, 0 or more"),
        ("HDP_TIMEOUT_SECONDS", "nan", "seconds, 0 or more"),
        ("HDP_STALL_SECONDS", "-1", "seconds, 0 or more"),
        ("HDP_WIRE_DTYPE", "half", "one of float32, float16, bfloat16"),
    ],
)
def test_wrong_defaults_are_refused_before_anything_starts(monkeypatch, tmp_path, name, value, expected):
    """Nobody serves at the socket, which `join` would wait for."""
    monkeypatch.setenv(name, value)
    with pytest.raises(hc.InvalidCollective) as refused:
        join(str(tmp_path / "nobody"), tmp_path / "no-secret", 0, 0, 30)
    assert str(refused.value) == f"${name} is {value!r}; expected {expected}"


def test_arrays_are_taken_as_they_are():
    """What is contiguous stays itself, as an input and as an output; a copy has the shape and values."""
    array = np.arange(6.0).reshape(2, 3)
    assert arrays.source(array) is array is arrays.itself(array) is arrays.target(array, (2, 3), array.dtype)
    across = arrays.source(array.T)
    assert across.flags.c_contiguous and not np.may_share_memory(across, array)
    np.testing.assert_array_equal(across, array.T)
    flat = arrays.target(array, (6,), array.dtype)
    assert flat.shape == (6,) and arrays.address(flat) == arrays.address(array)


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ([1.0, 2.0], "the output is a list, which gives no memory to write to; use an array"),
        (
            b"ab",
            r"the output is uint8\[2\], contiguous: True, writable: False; expected a contiguous writable uint8\[2\]",
        ),
        (np.arange(6)[::2], r"the output is int64\[3\], contiguous: False, writable: True; expected .* int64\[3\]"),
    ],
)
def test_what_no_result_can_be_written_to_is_refused(out, message):
    with pytest.raises(hc.InvalidCollective, match=message):
        arrays.itself(out)
