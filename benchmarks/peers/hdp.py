"""hdp through its own Python face, `hdp.collectives`."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from typing import Any

import hdp.collectives as hc
from peers.rank import Array, HostMemory, rows


def version() -> str:
    """Of the installed distribution; "source": this tree is only on the path."""
    try:
        return importlib.metadata.version("hdp-train")
    except importlib.metadata.PackageNotFoundError:
        return "source"


class Ranks:
    """A rank of hdp. wire: dtype on the links between hosts, for the operations that take it; "": that of the data."""

    def __init__(self, wire: str) -> None:
        self.memory = HostMemory()
        self._comm = hc.init()
        self.rank, self.size = self._comm.rank, self._comm.world.size
        self.versions = {"hdp": version()}
        self._more: dict[str, Any] = {"wire": wire} if wire else {}

    def allreduce(self, buffer: Array) -> Callable[[], object]:
        world = self._comm.world
        return lambda: hc.allreduce(buffer, world, out=buffer, **self._more).wait()

    def allgather(self, piece: Array, whole: Array) -> Callable[[], object]:
        world, out = self._comm.world, rows(whole, self.size)
        return lambda: hc.allgather(piece, world, out=out).wait()

    def reduce_scatter(self, whole: Array, piece: Array) -> Callable[[], object]:
        world, source = self._comm.world, rows(whole, self.size)
        return lambda: hc.reduce_scatter(source, world, out=piece, **self._more).wait()

    def close(self) -> None:
        self._comm.close()


def join(wire: str) -> Ranks:
    """Join under the launcher's server."""
    return Ranks(wire)
