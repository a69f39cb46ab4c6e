"""Backend "hdp" under plain torchrun: no launcher of ours, one or two emulated nodes."""

import contextlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch isn't installed: pip install 'hdp-train[torch]'")

SCRIPT = Path(__file__).with_name("torch_ranks.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(autouse=True)
def temporary_folder(monkeypatch):
    """Of the processes that a test starts; torchrun leaves folders of its own there. Short: servers' folders fit in."""
    with tempfile.TemporaryDirectory(prefix="torch-", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


def _run(name, nodes, ranks):
    """Output of torchrun on `nodes` nodes with `ranks` ranks each, all on this machine; and the exit codes."""
    port = _free_port()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HDP_TIMEOUT_SECONDS": "30"}
    with contextlib.ExitStack() as stack:
        processes = []
        for node in range(nodes):
            place = [f"--nnodes={nodes}", f"--node_rank={node}", f"--nproc_per_node={ranks}"]
            rendezvous = ["--master_addr=127.0.0.1", f"--master_port={port}"]
            processes.append(
                subprocess.Popen(
                    [*TORCHRUN, *place, *rendezvous, str(SCRIPT), name],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    env=environment,
                )
            )
            stack.callback(processes[-1].terminate)  # of one that hangs; torchrun then ends its ranks
        outputs = _outputs(processes, time.monotonic() + 100)
    return "\n".join(outputs), [p.returncode for p in processes]


def _outputs(processes, deadline):
    """What each wrote. Where one hangs: an error with all that was written, the ranks' stacks after 70 s among it."""
    outputs, late = [], False
    for process in processes:
        try:
            outputs.append(process.communicate(timeout=max(0.1, deadline - time.monotonic()))[0])
        except subprocess.TimeoutExpired as exc:
            late = True
            outputs.append((exc.output or b"").decode())
    assert not late, "torchrun hangs:\n" + "\n---- next node\n".join(outputs)
    return outputs


def _processes_with(mark):
    return [p.parent.name for p in Path("/proc").glob("[0-9]*/environ") if mark.encode() in _read(p)]


def _read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize(("nodes", "ranks"), [pytest.param(1, 3, marks=pytest.mark.slow), (2, 2)])
@pytest.mark.parametrize("name", ["collectives", "ddp", "groups_and_again"])
def test_on_one_node_and_on_two(name, nodes, ranks):
    output, codes = _run(name, nodes, ranks)
    assert codes == [0] * nodes, output
    assert len(re.findall(r"rank \d is fine", output)) == nodes * ranks


@pytest.mark.parametrize(
    "name", ["futures", "futures_of_several_groups", pytest.param("smddp", marks=pytest.mark.slow)]
)
def test_on_one_node(name):
    output, codes = _run(name, 1, 2)
    assert codes == [0], output


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "ranks"), [(1, 2), (2, 2)])
@pytest.mark.parametrize("name", ["parallel", "groups"])
def test_like_gloo(name, nodes, ranks):
    """DDP, FSDP2, DTensor on a grid, compiled steps; groups, messages, barriers, timeouts."""
    output, codes = _run(name, nodes, ranks)
    assert codes == [0] * nodes, output


@pytest.mark.slow
def test_a_step_compiled_by_inductor():
    """A minute: it runs a C++ compiler."""
    output, codes = _run("inductor", 1, 2)
    assert codes == [0], output


@pytest.mark.parametrize("nodes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_what_people_run(nodes):
    """FSDP2, ZeRO, DTensor, checkpoints, objects: right, and none of it by gloo."""
    output, codes = _run("users", nodes, 2)
    assert codes == [0] * nodes, output
    assert len(re.findall(r"rank \d is fine", output)) == nodes * 2
    assert "goes through gloo" not in output


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "ranks"), [(1, 3), (2, 2)])
def test_what_the_library_does_not_have(nodes, ranks):
    """Other dtypes, bitwise and premultiplied reductions, sparse tensors: right, and none of it by gloo."""
    output, codes = _run("dtypes", nodes, ranks)
    assert codes == [0] * nodes, output
    assert "goes through gloo" not in output


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
