"""``python -I -S shepherd.py``: what mpirun starts for each rank; it stands in for the rank towards mpirun.

The rank itself is started by its host's agent, like under every other launcher: its log, its exit code and its
exception are the agent's to see, and it ends with the agent. The shepherd hands the agent the environment that mpirun
gave it (in an anonymous file, since it may be long), its processors, and the descriptor through which MPICH's ranks
speak with their launcher. Then it waits, and ends as the rank does. When mpirun ends it first, the agents end the job.

It stands alone (no import but the standard library's), so that it costs some 10 ms.
"""

import json
import os
import socket
import sys

_SOCKET = "HDP_MPI_SOCKET"  # hdp.contract.env.MPI_SOCKET


def main() -> int:
    """Ask for the rank, wait for it, return its exit code."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as agent:
        agent.connect(os.environ[_SOCKET])
        channel = os.environ.get("PMI_FD", "")
        fds = [_environment(), *([int(channel)] if channel else [])]
        socket.send_fds(agent, [json.dumps({"cpus": sorted(os.sched_getaffinity(0))}).encode()], fds)
        answer = agent.recv(4096)
    return int(json.loads(answer)["code"]) if answer else 1


def _environment() -> int:
    """A file with this process's environment as the kernel has it."""
    fd = os.memfd_create("environment")
    with open("/proc/self/environ", "rb") as file:  # noqa: PTH123  (pathlib is slow to import)
        os.write(fd, file.read())
    return fd


if __name__ == "__main__":
    sys.exit(main())
