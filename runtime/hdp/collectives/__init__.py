"""Hierarchical collective operations: ranks combine within a host, then hosts exchange.

    import hdp.collectives as hc

    comm = hc.init()                        # under hdp's launcher
    total = hc.allreduce(array, comm.world).wait()

Every operation returns a `Work`; ``wait()`` gives the result. The n-th operation of a group on one rank meets the
n-th on the others; operations with a ``tag`` are matched by tag instead, in any order. After an error the contents
of the output are undefined and the group can't be used any more. No framework is imported here.
"""

from hdp.collectives.communicator import Communicator, Group
from hdp.collectives.communicator import from_environment as init
from hdp.collectives.library import DType, Kind, ReduceOp
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
from hdp.contract.errors import CollectiveError, CollectiveMismatch, CollectiveTimeout, InvalidCollective, PeerLost

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
