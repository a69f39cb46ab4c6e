"""Backend "hdp" under plain torchrun: no launcher of ours, one or two emulated nodes."""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

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


def _run(name, nodes, ranks, **options):
    """Output of torchrun on `nodes` nodes with `ranks` ranks each, all on this machine; and the exit codes."""
    return torchrun.run(SCRIPT, [name], nodes, ranks, **options)


def _processes_with(mark):
    return [p.parent.name for p in Path("/proc").glob("[0-9]*/environ") if mark.encode() in _read(p)]


def _read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize(("nodes", "ranks"), [pytest.param(1, 3, marks=pytest.mark.exhaustive), (2, 2)])
@pytest.mark.parametrize("name", ["collectives", "ddp", pytest.param("groups_and_again", marks=pytest.mark.slow)])
def test_on_one_node_and_on_two(name, nodes, ranks):
    output, codes = _run(name, nodes, ranks)
    assert codes == [0] * nodes, output
    assert len(re.findall(r"rank \d is fine", output)) == nodes * ranks


@pytest.mark.parametrize(
    "name", ["futures", *(pytest.param(n, marks=pytest.mark.slow) for n in ("futures_of_several_groups", "smddp"))]
)
def test_on_one_node(name):
    output, codes = _run(name, 1, 2)
    assert codes == [0], output


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "ranks"), [pytest.param(1, 2, marks=pytest.mark.exhaustive), (2, 2)])
@pytest.mark.parametrize("name", ["parallel", "groups"])
def test_like_gloo(name, nodes, ranks):
    """DDP, FSDP2, DTensor on a grid, compiled steps; groups, messages, barriers, timeouts."""
    output, codes = _run(name, nodes, ranks)
    assert codes == [0] * nodes, output


@pytest.mark.slow
@pytest.mark.timeout(260)
def test_a_step_compiled_by_inductor():
    """A minute, or several on a busy machine: it runs a C++ compiler, on one rank while the other waits."""
    output, codes = _run("inductor", 1, 2, seconds=240, HDP_TIMEOUT_SECONDS="120")
    assert codes == [0], output


@pytest.mark.parametrize("nodes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_what_people_run(nodes):
    """FSDP2, ZeRO, DTensor, checkpoints, objects: right, and none of it by gloo."""
    output, codes = _run("users", nodes, 2)
    assert codes == [0] * nodes, output
    assert len(re.findall(r"rank \d is fine", output)) == nodes * 2
    assert "goes through gloo" not in output


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "ranks"), [pytest.param(1, 3, marks=pytest.mark.exhaustive), (2, 2)])
def test_what_the_library_does_not_have(nodes, ranks):
    """Other dtypes, bitwise and premultiplied reductions, sparse tensors: right, and none of it by gloo."""
    output, codes = _run("dtypes", nodes, ranks)
    assert codes == [0] * nodes, output
    assert "goes through gloo" not in output


@pytest.mark.slow
def test_delegation_is_logged_once():
    output, codes = _run("delegated", 1, 2)
    assert codes == [0], output
    messages = "a receive from any source can't be mixed with the library's messages"
    for method in ("send", "recv", "recv_anysource"):
        assert output.count(f"backend hdp: {method} goes through gloo: {messages}") == 2, (
            f"{method}, once a rank: {output}"
        )


def test_a_killed_rank_is_named_and_nothing_is_left(temporary_folder):
    """Not a process, nor a server's folder."""
    output, codes = _run("dies", 1, 3)
    assert codes == [1], output
    assert re.search(r"PeerLost: rank 1 \(.*\), process \d+, ended without leaving", output), output
    assert not _processes_with(str(temporary_folder))
    assert not [*temporary_folder.glob("hdp-*")]


def test_importing_torch_registers_the_backend():
    """No import of ours is needed; a broken installation of ours must not break `import torch`."""
    code = "import torch.distributed as d; print(d.Backend.HDP)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "hdp"
