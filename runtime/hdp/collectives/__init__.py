"""Hierarchical collective operations: ranks combine within a host, then hosts exchange.

    import hdp.collectives as hc

    comm = hc.init()                        # under hdp's launcher
    total = hc.allreduce(array, comm.world).wait()

Every operation returns a `Work`; ``wait()`` gives the result. The n-th operation of a group on one rank meets the
n-th on the others; operations with a ``tag`` are matched by tag instead, in any order. After an error the contents
of the output are undefined and the group can't be used any more. No framework is imported here.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hdp.collectives.communicator import Communicator, Group
from hdp.collectives.communicator import from_environment as init
from hdp.collectives.library import DType, Kind, ReduceOp
from hdp.contract.errors import CollectiveError, CollectiveMismatch, CollectiveTimeout, InvalidCollective, PeerLost

if TYPE_CHECKING:
    from hdp.collectives.operations import (
        allgather,
        allreduce,
        alltoall,
        barrier,
        broadcast,
        gather,
        recv,
        reduce,
        reduce_scatter,
        scatter,
        send,
    )
    from hdp.collectives.work import Work

__all__ = [
    "CollectiveError",
    "CollectiveMismatch",
    "CollectiveTimeout",
    "Communicator",
    "DType",
    "Group",
    "InvalidCollective",
    "Kind",
    "PeerLost",
    "ReduceOp",
    "Work",
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "gather",
    "init",
    "recv",
    "reduce",
    "reduce_scatter",
    "scatter",
    "send",
]


def __getattr__(name: str) -> Any:
    """Operations on NumPy's arrays, loaded on first use: a host's server needs none."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = importlib.import_module("hdp.collectives.work" if name == "Work" else "hdp.collectives.operations")
    globals()[name] = found = getattr(home, name)
    return found
