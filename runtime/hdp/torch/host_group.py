"""The ranks of one host, as torch's own process group has them: what the local tier calls.

Every call puts its work into the current stream (of NCCL's; gloo's is done when the call returns) and returns nothing.
"""

# torch's stubs leave out what its own callers use.
# mypy: disable-error-code="attr-defined, call-arg, assignment"

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d


class HostGroup:
    """One communicator of NCCL's. Its calls must come in the same order on all ranks of the host."""

    def __init__(self, backend: Any, size: int) -> None:
        self._backend = backend
        self.size = size
        """Number of ranks."""

    def reduce_scatter(self, output: torch.Tensor, whole: torch.Tensor, op: Any) -> None:
        """Combine `whole` over the host's ranks; each gets its part, as many elements as `output` has."""
        how = c10d.ReduceScatterOptions()
        how.reduceOp = op
        self._backend._reduce_scatter_base(output, whole, how).wait()

    def all_gather(self, output: torch.Tensor, part: torch.Tensor) -> None:
        """All ranks' `part`, one after the other, into `output`."""
        self._backend._allgather_base(output, part, c10d.AllgatherOptions()).wait()

    def all_reduce(self, tensor: torch.Tensor, op: Any) -> None:
        """Combine `tensor` over the host's ranks, in place."""
        how = c10d.AllreduceOptions()
        how.reduceOp = op
        self._backend.allreduce([tensor], how).wait()


class GlooGroup(HostGroup):
    """The same by gloo, on CPU tensors: NCCL's stand-in where there is no GPU. gloo has no average."""

    def reduce_scatter(self, output: torch.Tensor, whole: torch.Tensor, op: Any) -> None:
        """Combine `whole` over the host's ranks; each gets its part."""
        super().reduce_scatter(output, whole, _summed(op))
        self._divide(output, op)

    def all_reduce(self, tensor: torch.Tensor, op: Any) -> None:
        """Combine `tensor` over the host's ranks, in place."""
        super().all_reduce(tensor, _summed(op))
        self._divide(tensor, op)

    def _divide(self, tensor: torch.Tensor, op: Any) -> None:
        if op == dist.ReduceOp.AVG:
            tensor.div_(self.size)


#: Makes a host's group: store, rank and size within the host, timeout.
MakeGroup = Callable[[Any, int, int, timedelta], HostGroup]


def by_nccl(store: Any, rank: int, size: int, timeout: timedelta) -> HostGroup:
    """A communicator of NCCL's, which connects when it is first used, and takes that call's device."""
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return HostGroup(dist.ProcessGroupNCCL(store, rank, size, options), size)


def by_gloo(store: Any, rank: int, size: int, timeout: timedelta) -> HostGroup:
    """A group of gloo's."""
    return GlooGroup(dist.ProcessGroupGloo(store, rank, size, timeout), size)


def _summed(op: Any) -> Any:
    return dist.ReduceOp.SUM if op == dist.ReduceOp.AVG else op
