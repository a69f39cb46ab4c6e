"""Backend "hdp" without a launcher of ours: under torchrun, and given its variables; one or two emulated nodes."""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import forked
import pytest
import torchrun

pytest.importorskip("torch", reason="torch isn't installed: pip install 'hdp-train[torch]'")

SCRIPT = Path(__file__).with_name("torch_ranks.py")


@pytest.fixture(autouse=True)
def temporary_folder(monkeypatch):
    """Of the processes that a test starts; torchrun leaves folders of its own there. Short: servers' folders fit in."""
    with tempfile.TemporaryDirectory(prefix="torch-", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


def _processes_with(mark):
    return [p.parent.name for p in Path("/proc").glob("[0-9]*/environ") if mark.encode() in _read(p)]


def _read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_under_torchrun_on_two_nodes():
    output, codes = torchrun.run(SCRIPT, ["collectives"], 2, 2)
    assert codes == [0] * 2, output
    assert len(re.findall(r"rank \d is fine", output)) == 4


def test_a_killed_rank_is_named_and_nothing_is_left(temporary_folder):
    """Not a process, nor a server's folder; under torchrun."""
    output, codes = torchrun.run(SCRIPT, ["dies"], 1, 3)
    assert codes == [1], output
    assert re.search(r"PeerLost: rank 1 \(.*\), process \d+, ended without leaving", output), output
    assert not _processes_with(str(temporary_folder))
    assert not [*temporary_folder.glob("hdp-*")]


def _check(name, *sizes, **options):
    """Every rank must be fine. What they wrote."""
    outputs = forked.succeeds(SCRIPT, [name], sizes, **options)
    for rank, output in enumerate(outputs):
        assert f"rank {rank} is fine" in output, output
    return "\n".join(outputs)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        pytest.param("collectives", (3,), marks=[pytest.mark.slow, pytest.mark.exhaustive]),
        ("ddp", (2, 2)),
        pytest.param("ddp", (3,), marks=[pytest.mark.slow, pytest.mark.exhaustive]),
        ("groups_and_again", (2, 2)),
        ("futures", (2,)),
        ("futures_of_several_groups", (2,)),
        ("smddp", (2,)),
        pytest.param("parallel", (2, 2), marks=pytest.mark.slow),
        pytest.param("groups", (2, 2), marks=pytest.mark.slow),
    ],
)
def test_what_is_promised(name, sizes):
    """Collectives, DDP with hooks, groups, futures; like gloo: FSDP2, DTensor, compiled steps, messages, timeouts."""
    _check(name, *sizes)


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_a_step_compiled_by_inductor():
    """Half a minute, or several on a busy machine: it runs a C++ compiler, on one rank while the other waits."""
    _check("inductor", 2, seconds=400, HDP_TIMEOUT_SECONDS=300, TORCHINDUCTOR_COMPILE_THREADS=1, RANKS_SECONDS=390)


@pytest.mark.parametrize("sizes", [(2,), pytest.param((2, 2), marks=pytest.mark.slow)])
def test_what_people_run(sizes):
    """FSDP2, ZeRO, DTensor, checkpoints, objects: right, and none of it by gloo."""
    assert "goes through gloo" not in _check("users", *sizes)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [pytest.param((3,), marks=pytest.mark.exhaustive), (2, 2)])
def test_what_the_library_does_not_have(sizes):
    """Other dtypes, bitwise and premultiplied reductions, sparse tensors: right, and none of it by gloo."""
    assert "goes through gloo" not in _check("dtypes", *sizes)


def test_delegation_is_logged_once():
    output = _check("delegated", 2)
    messages = "a receive from any source can't be mixed with the library's messages"
    for method in ("send", "recv", "recv_anysource"):
        assert output.count(f"backend hdp: {method} goes through gloo: {messages}") == 2, (
            f"{method}, once a rank: {output}"
        )


def test_importing_torch_registers_the_backend():
    """No import of ours is needed; a broken installation of ours must not break `import torch`."""
    code = "import torch.distributed as d; print(d.Backend.HDP)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "hdp"
