"""What the harness asks of a library in a rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Buffer = Any
"""What a `Memory` made: a NumPy array, or a torch tensor."""


class Memory(Protocol):
    """Where a library's buffers are: contiguous, one-dimensional, and sliced like NumPy arrays."""

    def empty(self, elements: int, dtype: np.dtype[Any]) -> Buffer:
        """A buffer with anything in it."""

    def source(self, values: Array) -> Buffer:
        """A buffer with `values`, which may be them."""

    def add(self, source: Buffer, value: int, out: Buffer) -> None:
        """``out = source + value``."""

    def host(self, buffer: Buffer) -> Array:
        """What is in a buffer."""

    def settle(self) -> None:
        """Return once everything that was begun is done."""


class HostMemory:
    """NumPy arrays."""

    def empty(self, elements: int, dtype: np.dtype[Any]) -> Array:
        return np.empty(elements, dtype)

    def source(self, values: Array) -> Array:
        return values

    def add(self, source: Array, value: int, out: Array) -> None:
        np.add(source, source.dtype.type(value), out=out)

    def host(self, buffer: Array) -> Array:
        return buffer

    def settle(self) -> None:
        """Nothing is done later."""


class Rank(Protocol):
    """This process as a rank of a library. Buffers are of its `memory`."""

    rank: int
    size: int
    memory: Memory
    versions: dict[str, str]

    def allreduce(self, buffer: Buffer) -> Callable[[], object]:
        """A call that sums `buffer` over the ranks, in place."""

    def allgather(self, piece: Buffer, whole: Buffer) -> Callable[[], object]:
        """A call that puts every rank's `piece` into `whole`, by rank."""

    def reduce_scatter(self, whole: Buffer, piece: Buffer) -> Callable[[], object]:
        """A call that sums `whole` over the ranks and puts this rank's share into `piece`."""

    def close(self) -> None:
        """Leave."""


def rows(whole: Array, size: int) -> Array:
    """`whole` with a row for each rank, the same memory."""
    return np.reshape(whole, (size, -1))
