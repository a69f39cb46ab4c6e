"""What the harness asks of a library in a rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Rank(Protocol):
    """This process as a rank of a library. Buffers are contiguous, one-dimensional NumPy arrays."""

    rank: int
    size: int
    versions: dict[str, str]

    def allreduce(self, buffer: Array) -> Callable[[], object]:
        """A call that sums `buffer` over the ranks, in place."""

    def allgather(self, piece: Array, whole: Array) -> Callable[[], object]:
        """A call that puts every rank's `piece` into `whole`, by rank."""

    def reduce_scatter(self, whole: Array, piece: Array) -> Callable[[], object]:
        """A call that sums `whole` over the ranks and puts this rank's share into `piece`."""

    def close(self) -> None:
        """Leave."""


def rows(whole: Array, size: int) -> Array:
    """`whole` with a row for each rank, the same memory."""
    return np.reshape(whole, (size, -1))
