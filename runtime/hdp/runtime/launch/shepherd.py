"""``python -I -S shepherd.py``: what mpirun starts for each rank; it stands in for the rank towards mpirun.

The rank itself is started by its host's agent, like under every other launcher: its log, its exit code and its
exception are the agent's to see, and it ends with the agent. The shepherd hands the agent the environment that mpirun
gave it (in an anonymous file, since it may be long) and its processors. Then it waits, and ends as the rank does. When
mpirun ends it first, the agents end the job.

MPICH's ranks speak with their launcher through a descriptor that they inherit. The shepherd passes on what is said
there, for one word that the agent has to hear before mpirun does: that the rank has called MPI_Abort.

It stands alone (no import but the standard library's), so that it costs some 10 ms.
"""

import json
import os
import re
import select
import socket
import sys

_SOCKET = "HDP_MPI_SOCKET"  # hdp.contract.env.MPI_SOCKET
_CHANNEL = "PMI_FD"
_ABORT = re.compile(rb"cmd=abort(?: exitcode=(-?\d+))?")


def main() -> int:
    """Ask for the rank, wait for it, return its exit code."""
    launcher = int(os.environ.get(_CHANNEL) or -1)
    ours, ranks = socket.socketpair()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as agent, ours:
        agent.connect(os.environ[_SOCKET])
        fds = [_environment(), *([ranks.fileno()] if launcher >= 0 else [])]
        socket.send_fds(agent, [json.dumps({"cpus": sorted(os.sched_getaffinity(0))}).encode()], fds)
        ranks.close()
        answer = _wait(agent, ours.fileno(), launcher)
    return int(json.loads(answer)["code"]) if answer else 1


def _environment() -> int:
    """A file with this process's environment as the kernel has it."""
    fd = os.memfd_create("environment")
    with open("/proc/self/environ", "rb") as file:  # noqa: PTH123  (pathlib is slow to import)
        os.write(fd, file.read())
    return fd


def _wait(agent: socket.socket, rank: int, launcher: int) -> bytes:
    """The agent's answer; meanwhile, what rank and launcher say to each other."""
    poll = select.poll()
    poll.register(agent, select.POLLIN)
    ways = {rank: launcher, launcher: rank} if launcher >= 0 else {}
    for fd in ways:
        poll.register(fd, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == agent.fileno():
                return agent.recv(4096)
            said = _read(fd)
            if not said:
                poll.unregister(fd)
                continue
            if fd == rank and (abort := _ABORT.search(said)):
                agent.send(json.dumps({"abort": int(abort[1] or 1)}).encode())
            _write(ways[fd], said)


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 65536)
    except OSError:
        return b""


def _write(fd: int, data: bytes) -> None:
    try:
        while data:
            data = data[os.write(fd, data) :]
    except OSError:
        return  # that side has ended, which the agent or mpirun notices


if __name__ == "__main__":
    sys.exit(main())
