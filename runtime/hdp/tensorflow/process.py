"""This process as a rank: `init`, `shutdown`, and who is who."""

from __future__ import annotations

import atexit
import itertools
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
_generations = itertools.count(1)
_generation = 0
_process = 0


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Join the job, as the launcher's environment says; a process that no launcher started is a world of its own.

    Called again it does nothing. comm, process_sets: Horovod's; refused. Raises CollectiveError: the job's other
    ranks or hosts are missing (they are named); InvalidCollective.
    """
    refuse("init", {"comm": (comm, None), "process_sets": (process_sets, None)})
    global _generation, _process
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
        _generation, _process = next(_generations), os.getpid()
        _joined.append(made)


@atexit.register
def shutdown() -> None:
    """Leave the job. Operations that aren't complete fail, here and on the other ranks. May be called twice."""
    if os.getpid() != _process:  # a forked child: nothing here is its own, and its parent goes on
        return
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
    if os.getpid() != _process:
        raise CollectiveError("this process was forked from a rank, which alone can take part; start it anew")
    return _joined[0]


def generation() -> int:
    """How often `init` has joined: what ranks agreed on holds for one time."""
    communicator()
    return _generation


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
