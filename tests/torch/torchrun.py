"""Runs a script under plain torchrun: no launcher of ours, one or more nodes, all on this machine."""

import contextlib
import os
import socket
import subprocess
import sys
import time

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def free_port():
    """A TCP port that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run(script, arguments, nodes, ranks, seconds=100, **environment):
    """Output of torchrun on `nodes` nodes with `ranks` ranks each, in at most `seconds`; and the exit codes."""
    port = free_port()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HDP_TIMEOUT_SECONDS": "30", **environment}
    with contextlib.ExitStack() as stack:
        processes = []
        for node in range(nodes):
            place = [f"--nnodes={nodes}", f"--node_rank={node}", f"--nproc_per_node={ranks}"]
            rendezvous = ["--master_addr=127.0.0.1", f"--master_port={port}"]
            processes.append(
                subprocess.Popen(
                    [*TORCHRUN, *place, *rendezvous, str(script), *arguments],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    env=environment,
                )
            )
            stack.callback(processes[-1].terminate)  # of one that hangs; torchrun then ends its ranks
        outputs = _outputs(processes, time.monotonic() + seconds)
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
