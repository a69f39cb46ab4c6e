"""This process as a rank: `init`, `shutdown`, and who is who."""

from __future__ import annotations

import atexit
import os
import threading
from typing import Any

from hdp.collectives import Communicator
from hdp.collectives.alone import alone
from hdp.collectives.communicator import from_environment
from hdp.contract import env
from hdp.contract.errors import CollectiveError
from hdp.tensorflow import native, sequence, xla
from hdp.tensorflow.refusals import refuse

_lock = threading.RLock()
_joined: list[Communicator] = []  # one, or none


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Join the job, as the launcher's environment says; a process that no launcher started is a world of its own.

    Called again it does nothing. comm, process_sets: Horovod's; refused. Raises CollectiveError: the job's other
    ranks or hosts are missing (they are named); InvalidCollective.
    """
    refuse("init", {"comm": (comm, None), "process_sets": (process_sets, None)})
    with _lock:
        if _joined:
            return
        started = bool(os.environ.get(env.SERVER_SOCKET.name)) or int(os.environ.get("WORLD_SIZE") or "1") > 1
        made = from_environment() if started else alone()
        try:
            native.attach(made)
            xla.guard()
            sequence.restart()
        except BaseException:
            made.close()
            raise
        _joined.append(made)


@atexit.register
def shutdown() -> None:
    """Leave the job. Operations that aren't complete fail, here and on the other ranks. May be called twice."""
    with _lock:
        while _joined:
            left = _joined.pop()
            native.stop()
            left.interrupt()
            left.close()
            native.fail_pending("hdp.tensorflow was shut down")


def communicator() -> Communicator:
    """The process's communicator, which `hdp.collectives` can use as well. Raises CollectiveError before `init`."""
    if not _joined:
        raise CollectiveError("hdp.tensorflow isn't initialised; call init() first")
    return _joined[0]


def is_initialized() -> bool:
    """Whether `init` was called, and `shutdown` not since."""
    return bool(_joined)


def rank() -> int:
    """Number of this process among all, from 0."""
    return communicator().rank


def size() -> int:
    """Number of processes."""
    return communicator().world.size


def local_rank() -> int:
    """Number of this process among those of its host, from 0."""
    return communicator().local_rank


def local_size() -> int:
    """Number of processes on this host."""
    return communicator().local_size


def cross_rank() -> int:
    """Number of this process's host, from 0."""
    comm = communicator()
    return comm.layout.host_of(comm.rank)


def cross_size() -> int:
    """Number of hosts."""
    return len(communicator().layout.hosts)


def is_homogeneous() -> bool:
    """Whether every host has as many processes."""
    return len(set(communicator().layout.local_sizes)) == 1
