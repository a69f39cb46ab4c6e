"""The public face of `hdp.collectives`: what it exports, and what each operation's docstring tells."""

import inspect

import pytest

import hdp.collectives as hc

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
