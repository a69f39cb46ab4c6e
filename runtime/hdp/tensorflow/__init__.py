"""hdp for TensorFlow: the functions that Horovod's and SMDDP's users know.

    import hdp.tensorflow as dist

    dist.init()
    tape = dist.DistributedGradientTape(tape)                     # in a train step of your own, or
    model.compile(dist.DistributedOptimizer(optimizer), ...)      # in Keras's
    model.fit(..., callbacks=[hdp.keras.BroadcastGlobalVariablesCallback(0)])

Gradients are reduced by native asynchronous operations, in buckets that leave during the backward pass.

With a GPU, variables and tensors stay on it. The operations work on host memory, so TensorFlow copies each tensor to
the host and its result back, through pageable memory: 8 to 11 GB/s each way (measured on an H200, where pinned memory
has 55), and of one tensor nothing travels before all of it is copied. Where a host has several GPUs, a rank takes its
own after `init`: ``tf.config.set_visible_devices(gpus[dist.local_rank()], "GPU")``.
"""

from hdp.collectives import ReduceOp
from hdp.tensorflow.compression import Compression
from hdp.tensorflow.functions import (
    Average,
    Max,
    Min,
    Product,
    Sum,
    allgather,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    grouped_allreduce,
    oob_allreduce,
    overlap,
    reducescatter,
)
from hdp.tensorflow.hook import BroadcastGlobalVariablesHook
from hdp.tensorflow.native import name as operations_name
from hdp.tensorflow.optimizers import DistributedOptimizer
from hdp.tensorflow.process import (
    communicator,
    cross_rank,
    cross_size,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from hdp.tensorflow.tape import DistributedGradientTape
from hdp.tensorflow.variables import OutOfSync, broadcast_global_variables, broadcast_variables, check_in_sync

__all__ = [
    "Average",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Max",
    "Min",
    "OutOfSync",
    "Product",
    "ReduceOp",
    "Sum",
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_variables",
    "check_in_sync",
    "communicator",
    "cross_rank",
    "cross_size",
    "grouped_allreduce",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "oob_allreduce",
    "operations_name",
    "overlap",
    "rank",
    "reducescatter",
    "shutdown",
    "size",
]
