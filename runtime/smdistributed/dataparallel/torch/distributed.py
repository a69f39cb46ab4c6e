"""SMDDP's PyTorch API up to version 1.3: ``torch.distributed``'s functions, through backend "smddp"."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as _torch
from torch.distributed import (
    all_gather,
    all_reduce,
    all_to_all_single,
    barrier,
    get_rank,
    get_world_size,
    group,
    is_initialized,
)
from torch.distributed import get_node_local_rank as get_local_rank

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 - registers the backend
from hdp.contract.errors import InvalidCollective

__all__ = [
    "ReduceOp",
    "all_gather",
    "all_reduce",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "get_local_rank",
    "get_rank",
    "get_world_size",
    "group",
    "init_process_group",
    "is_available",
    "is_initialized",
]


class ReduceOp:
    """How tensors are combined, by SMDDP's names."""

    AVERAGE = _torch.ReduceOp.AVG
    SUM = _torch.ReduceOp.SUM
    MIN = _torch.ReduceOp.MIN
    MAX = _torch.ReduceOp.MAX


def is_available() -> bool:
    """Whether a launcher started this process as a rank."""
    return _torch.is_available() and "RANK" in os.environ and "WORLD_SIZE" in os.environ


def init_process_group(backend: str = "smddp", *args: Any, **kwargs: Any) -> None:
    """Join the job; arguments as those of torch's. Raises InvalidCollective for other backends."""
    if backend not in ("smddp", "hdp"):
        raise InvalidCollective(
            f"init_process_group(backend={backend!r}): here it is 'smddp', served by hdp; leave it out, or call "
            "torch.distributed's own"
        )
    _torch.init_process_group(backend, *args, **kwargs)


def broadcast(tensor: Any, src: int = 0, group: Any = None, async_op: bool = False) -> Any:
    """``torch.distributed.broadcast``, by default from rank 0."""
    return _torch.broadcast(tensor, src, group, async_op)
