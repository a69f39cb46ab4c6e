"""CUDA tensors without a device: the fake driver behind CPU tensors, under torchrun, on one node and on two."""

import re
import tempfile
from pathlib import Path

import fake_cuda_driver
import pytest
import torchrun

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


def _checks(names, nodes, ranks, **environment):
    """Run some of the checks that a real device must pass as well."""
    output, codes = torchrun.run(
        FOLDER / "device_checks.py", ["--device", "fake", *names], nodes, ranks, **SLOW, **environment
    )
    assert codes == [0] * nodes, output
    assert re.findall(r"^(\w+): fine, ", output, re.MULTILINE) == list(names), output
    return output


def _script(name, nodes, ranks, **environment):
    return torchrun.run(FOLDER / "device_ranks.py", [name], nodes, ranks, **{**SLOW, **environment})


@pytest.mark.parametrize(("nodes", "ranks"), [(2, 2)])
def test_calls(nodes, ranks):
    """Every collective, against plain torch arithmetic."""
    _checks(["calls"], nodes, ranks)


@pytest.mark.parametrize(("nodes", "ranks"), [(1, 3)])
@pytest.mark.slow
def test_streams_and_errors(nodes, ranks):
    names = ["mixed", "streams", "without_blocking", "several_groups", "refused", "late_errors", "messages", "memory"]
    output = _checks(names, nodes, ranks)
    assert "send goes through gloo: a receive from any source can't be mixed with the library's messages, and" in output


@pytest.mark.parametrize(("nodes", "ranks"), [(2, 2)])
@pytest.mark.slow
def test_the_same_bits_as_on_the_host(nodes, ranks):
    """Each dtype and reduction."""
    _checks(ARITHMETIC, nodes, ranks)


@pytest.mark.parametrize(("nodes", "ranks"), [(2, 2)])
@pytest.mark.slow
def test_training(nodes, ranks):
    """DDP gives the CPU's bits in all its ways; FSDP2 and a GradScaler train; objects and functional collectives."""
    _checks(["barriers", *TRAINING], nodes, ranks)


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
    _checks(["calls", "other_dtypes", "streams", "late_errors", "ddp"], 1, 2, **lacking)


@pytest.mark.parametrize(("nodes", "ranks"), [(1, 3)])
@pytest.mark.slow
@pytest.mark.parametrize("name", ["late_input", "ends_at_once"])
def test_a_wait_blocks_no_thread(name, nodes, ranks):
    output, codes = _script(name, nodes, ranks)
    assert codes == [0] * nodes, output
    assert len(re.findall(r"rank \d is fine", output)) == nodes * ranks


def test_a_rank_that_is_killed_between_copies():
    output, codes = _script("killed", 1, 3)
    assert codes == [1] and "is fine" not in output, output
    assert re.search(r"PeerLost: .*rank 1 \(.*\), process \d+, ended without leaving", output), output


@pytest.mark.slow
def test_a_copy_that_fails():
    output, codes = _script("copy_fails", 1, 2)
    assert codes != [0] or len(re.findall(r"rank \d is fine", output)) == 2, output


@pytest.mark.slow
def test_an_error_that_nobody_was_told_of():
    output, codes = _script("untold", 1, 2)
    text = "CollectiveMismatch: an earlier operation failed after its wait() had returned"
    assert codes == [1] and re.search(rf"rank1\]: .*{re.escape(text)}", output), output


def test_without_a_driver():
    output, codes = _script("no_driver", 1, 2, HDP_CUDA_DRIVER="libnot-there.so.1")
    assert codes == [0], output
