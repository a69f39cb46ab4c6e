"""SMDDP's API beside Keras; served by `hdp.keras`."""

from smdistributed.dataparallel.tensorflow import (
    BroadcastGlobalVariablesHook,
    Compression,
    DistributedGradientTape,
    DistributedOptimizer,
    ReduceOp,
    allreduce,
    broadcast,
    broadcast_global_variables,
    broadcast_variables,
    init,
    local_rank,
    local_size,
    oob_allreduce,
    overlap,
    rank,
    shutdown,
    size,
)
from smdistributed.dataparallel.tensorflow.keras import callbacks

__all__ = [
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "ReduceOp",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_variables",
    "callbacks",
    "init",
    "local_rank",
    "local_size",
    "oob_allreduce",
    "overlap",
    "rank",
    "shutdown",
    "size",
]
