"""gloo as PyTorch ships it, through torch.distributed."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from peers.rank import Array, HostMemory


class Ranks:
    """A rank of gloo."""

    def __init__(self) -> None:
        self.memory = HostMemory()
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.versions = {"torch": torch.__version__}

    def allreduce(self, buffer: Array) -> Callable[[], object]:
        tensor = torch.from_numpy(buffer)
        return lambda: dist.all_reduce(tensor)

    def allgather(self, piece: Array, whole: Array) -> Callable[[], object]:
        source, out = torch.from_numpy(piece), torch.from_numpy(whole)
        return lambda: dist.all_gather_into_tensor(out, source)

    def reduce_scatter(self, whole: Array, piece: Array) -> Callable[[], object]:
        source, out = torch.from_numpy(whole), torch.from_numpy(piece)
        return lambda: dist.reduce_scatter_tensor(out, source)

    def close(self) -> None:
        dist.destroy_process_group()


def join(wire: str) -> Ranks:  # noqa: ARG001  (of hdp alone)
    """Join with torch's environment variables."""
    return Ranks()
