"""SMDDP's TensorFlow API, by its import path and signatures. Served by `hdp.tensorflow`, which says more."""

from __future__ import annotations

from typing import Any

import hdp.tensorflow as _hdp
from hdp.tensorflow import (
    BroadcastGlobalVariablesHook,
    Compression,
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
    "init",
    "local_rank",
    "local_size",
    "oob_allreduce",
    "overlap",
    "rank",
    "shutdown",
    "size",
]


class ReduceOp:
    """How tensors are combined, by SMDDP's names."""

    AVERAGE = _hdp.Average
    SUM = _hdp.Sum
    MIN = _hdp.Min
    MAX = _hdp.Max


def allreduce(
    tensor: Any,
    param_index: int,
    num_params: int,
    compression: Any = Compression.none,
    op: Any = ReduceOp.AVERAGE,
) -> Any:
    """Combine `tensor` over all ranks. Calls with the same param_index meet, in any order."""
    return _hdp.allreduce(tensor, compression=compression, op=op, name=f"parameter {param_index} of {num_params}")


def DistributedGradientTape(  # noqa: N802 - SMDDP's name
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: Any = ReduceOp.AVERAGE,
) -> Any:
    """`hdp.tensorflow.DistributedGradientTape`; an op of None is the average."""
    return _hdp.DistributedGradientTape(
        gradtape, device_dense, device_sparse, compression, sparse_as_dense, ReduceOp.AVERAGE if op is None else op
    )


def DistributedOptimizer(  # noqa: N802 - SMDDP's name
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: Any = ReduceOp.AVERAGE,
    bucket_cap_mb: float = 25,
) -> Any:
    """`hdp.tensorflow.DistributedOptimizer`; an op of None is the average."""
    return _hdp.DistributedOptimizer(
        optimizer,
        name,
        use_locking,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op=ReduceOp.AVERAGE if op is None else op,
        bucket_cap_mb=bucket_cap_mb,
    )
