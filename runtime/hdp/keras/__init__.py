"""hdp for Keras: callbacks, and what scripts that begin with ``import horovod.keras as hvd`` look for here."""

from typing import Any

from hdp.keras import callbacks
from hdp.keras.callbacks import (
    BestModelCheckpoint,
    BroadcastGlobalVariablesCallback,
    CheckInSyncCallback,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    MetricAverageCallback,
)
from hdp.keras.models import load_model
from hdp.tensorflow import (
    Average,
    Compression,
    DistributedOptimizer,
    Sum,
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    broadcast_variables,
    check_in_sync,
    cross_rank,
    cross_size,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    reducescatter,
    shutdown,
    size,
)

__all__ = [
    "Average",
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "CheckInSyncCallback",
    "Compression",
    "DistributedOptimizer",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "Sum",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_variables",
    "callbacks",
    "check_in_sync",
    "cross_rank",
    "cross_size",
    "init",
    "is_homogeneous",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "rank",
    "reducescatter",
    "shutdown",
    "size",
]

_ELASTIC = "ranks can't join or leave a running job; save checkpoints, and fit() again"
#: What Horovod has besides, and why it isn't here.
_MISSING = {
    "elastic": _ELASTIC,
    "CommitStateCallback": _ELASTIC,
    "UpdateBatchStateCallback": _ELASTIC,
    "UpdateEpochStateCallback": _ELASTIC,
    "PartialDistributedOptimizer": "there are no local layers; every gradient is that of all ranks",
    "ProcessSet": "every operation is over all ranks; hdp.collectives has groups",
    "global_process_set": "every operation is over all ranks; hdp.collectives has groups",
    "add_process_set": "every operation is over all ranks; hdp.collectives has groups",
    "remove_process_set": "every operation is over all ranks; hdp.collectives has groups",
    "start_timeline": "set HDP_TIMELINE=1 before the job starts",
    "stop_timeline": "set HDP_TIMELINE=1 before the job starts",
}


def __getattr__(name: str) -> Any:
    why = f": {_MISSING[name]}" if name in _MISSING else ""
    raise AttributeError(f"module {__name__!r} has no {name!r}{why}")
