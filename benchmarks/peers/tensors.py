"""A backend of torch.distributed on tensors of a device: ``join("", "hdp", "cuda")``.

Ranks of one host share its GPUs where there are fewer. An operation is over when the device has nothing left to do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import device_place
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from peers.hdp import version
from peers.rank import Array


class DeviceMemory:
    """Tensors of one device."""

    def __init__(self, place: device_place.Place) -> None:
        self.settle = place.settle
        self._place = place

    def empty(self, elements: int, dtype: np.dtype[Any]) -> Tensor:
        return self._place.tensor(torch.empty(elements, dtype=_torch_dtype(dtype)))

    def source(self, values: Array) -> Tensor:
        return self._place.tensor(torch.tensor(values))

    def add(self, source: Tensor, value: int, out: Tensor) -> None:
        torch.add(source, value, out=out)

    def host(self, buffer: Tensor) -> Array:
        array: Array = buffer.cpu().numpy()
        return array


class Ranks:
    """A rank of the backend."""

    def __init__(self, backend: str, device: str) -> None:
        torch.set_num_threads(1)
        place = device_place.choose(device)
        self.memory = DeviceMemory(place)
        self.versions = {"torch": str(torch.__version__)}
        if backend == "hdp":
            import hdp.torch  # noqa: F401  (where the tree is only on the path, nothing else tells torch of it)

            self.versions["hdp"] = version()
        dist.init_process_group(backend)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def allreduce(self, buffer: Tensor) -> Callable[[], object]:
        return lambda: dist.all_reduce(buffer)

    def allgather(self, piece: Tensor, whole: Tensor) -> Callable[[], object]:
        return lambda: dist.all_gather_into_tensor(whole, piece)

    def reduce_scatter(self, whole: Tensor, piece: Tensor) -> Callable[[], object]:
        return lambda: dist.reduce_scatter_tensor(piece, whole)

    def close(self) -> None:
        dist.destroy_process_group()


def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype


def join(wire: str, backend: str, device: str) -> Ranks:  # noqa: ARG001  (of hdp's own face alone)
    """Join with torch's environment variables."""
    return Ranks(backend, device)
