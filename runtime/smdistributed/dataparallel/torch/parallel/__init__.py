"""SMDDP's ``DistributedDataParallel``. Served by hdp."""

from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel

__all__ = ["DistributedDataParallel"]
