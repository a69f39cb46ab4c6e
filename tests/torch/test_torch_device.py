"""CUDA tensors without a device: the fake driver behind CPU tensors, on one emulated node and on two."""

import re
import signal
import tempfile
from pathlib import Path

import fake_cuda_driver
import forked
import pytest

pytest.importorskip("torch", reason="torch isn't installed: pip install 'hdp-train[torch]'")


FOLDER = Path(__file__).parent
#: Slow enough that whoever does not wait for a copy is early.
SLOW = {"HDP_FAKE_CUDA_GBPS": "4", "HDP_FAKE_CUDA_LATENCY_US": "50"}
#: What costs most; the others are short.
TRAINING = ["ddp", "fsdp2", "grad_scaler"]
ARITHMETIC = ["reductions", "other_dtypes", "sparse"]


@pytest.fixture(autouse=True)
def driver(monkeypatch):
    """The fake driver, and a temporary folder short enough for the servers' sockets."""
    found = fake_cuda_driver.path()
    monkeypatch.setenv("HDP_CUDA_DRIVER", str(found))
    with tempfile.TemporaryDirectory(prefix="torch-", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield found


def _checks(names, *sizes, **environment):
    """Run some of the checks that a real device must pass as well."""
    command = [FOLDER / "device_checks.py", ["--device", "fake", *names], sizes]
    output = "\n".join(forked.succeeds(*command, **{**SLOW, **environment}))
    assert re.findall(r"^(\w+): fine, ", output, re.MULTILINE) == list(names), output
    return output


def _script(name, *sizes, **environment):
    outputs, codes = forked.run(FOLDER / "device_ranks.py", [name], sizes, **{**SLOW, **environment})
    return "\n".join(outputs), codes


def test_calls():
    """Every collective, against plain torch arithmetic."""
    _checks(["calls"], 2, 2)


@pytest.mark.slow
def test_streams_and_errors():
    names = ["mixed", "streams", "without_blocking", "several_groups", "refused", "late_errors", "messages", "memory"]
    output = _checks(names, 3)
    assert "send goes through gloo: a receive from any source can't be mixed with the library's messages, and" in output


@pytest.mark.slow
def test_the_same_bits_as_on_the_host():
    """Each dtype and reduction."""
    _checks(ARITHMETIC, 2, 2)


@pytest.mark.slow
def test_training():
    """DDP gives the CPU's bits in all its ways; FSDP2 and a GradScaler train; objects and functional collectives."""
    _checks(["barriers", *TRAINING], 2, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "lacking",
    [
        {"HDP_FAKE_CUDA_REFUSE": "cuStreamWaitValue32_v2"},
        {"HDP_FAKE_CUDA_STUCK": "1"},
        {"HDP_CUDA_WAIT": "host"},
        {"HDP_FAKE_CUDA_REFUSE": "cuMemHostRegister_v2"},
    ],
    ids=["no stream waits", "they stop copies", "host waits", "no registration"],
)
def test_a_driver_that_lacks_something(lacking):
    _checks(["calls", "other_dtypes", "streams", "late_errors", "ddp"], 2, **lacking)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["late_input", "ends_at_once"])
def test_a_wait_blocks_no_thread(name):
    output, codes = _script(name, 3)
    assert codes == [0, 0, 0], output
    assert len(re.findall(r"rank \d is fine", output)) == 3


def test_a_rank_that_is_killed_between_copies():
    output, codes = _script("killed", 3)
    assert codes == [1, -signal.SIGKILL, 1] and "is fine" not in output, output
    assert len(re.findall(r"PeerLost: .*rank 1 \(.*\), process \d+, ended without leaving", output)) >= 2, output


@pytest.mark.slow
def test_a_copy_that_fails():
    output, codes = _script("copy_fails", 2)
    assert codes == [0, 0] and len(re.findall(r"rank \d is fine", output)) == 2, output


@pytest.mark.slow
def test_an_error_that_nobody_was_told_of():
    output, codes = _script("untold", 2)
    text = "CollectiveMismatch: an earlier operation failed after its wait() had returned"
    assert codes[1] == 1 and re.search(rf"rank1\]: .*{re.escape(text)}", output), output


def test_without_a_driver():
    output, codes = _script("no_driver", 2, HDP_CUDA_DRIVER="libnot-there.so.1")
    assert codes == [0, 0], output
