"""Pipe mode's data: which objects or attributes an epoch has on this host, in which order, in which form."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from hdp.contract.errors import ChannelError
from hdp.runtime.channels.augmented import Object, Value, read_lines
from hdp.runtime.channels.fastfile.retry import RetryingStore
from hdp.runtime.channels.fastfile.stats import Stats
from hdp.runtime.channels.keys import Entry, Listing
from hdp.runtime.channels.manifest import read
from hdp.runtime.channels.pipe import PipeChannel, fifos
from hdp.runtime.channels.readahead import Buffer, as_records, as_stream, read_ahead, unzipped
from hdp.runtime.channels.spec import ChannelSpec
from hdp.runtime.channels.stores import open_store

#: Each is a connection of up to 90 MB/s, or some 30 small objects a second.
_THREADS = 32

_Row = tuple[Value, ...]
_T = TypeVar("_T")


def stream_channel(
    spec: ChannelSpec, listing: Listing, target: Path, _stopped: Callable[[], bool], stats: Stats
) -> PipeChannel:
    """Make the FIFOs of the first epochs. Raises ChannelError, also for what is wrong in an augmented manifest."""
    for path in fifos(target):
        if not path.is_fifo():
            raise ChannelError(f"{path} is where a FIFO of this channel belongs; rename the other channel")
        path.unlink()  # of an agent that was killed
    rows, share = _dealt(spec, listing)
    source = _Source(listing.base, stats)

    def contents(epoch: int) -> Iterator[Buffer]:
        return _contents(spec, in_order(rows, spec.shuffle_seed, epoch, share), source)

    channel = PipeChannel(spec.name, target, contents, source.end)
    try:
        channel.start()
    except OSError:
        channel.stop()
        raise
    return channel


def all_rows(spec: ChannelSpec, listing: Listing) -> Sequence[_Row]:
    """All that there is for all hosts: a row is an object, or a line's attributes. Raises ChannelError."""
    if spec.attributes:
        return read_lines(read(spec.uri), spec.attributes, spec.uri)
    return _objects(listing.base, listing.whole or listing.items)


def _objects(base: str, entries: Sequence[Entry]) -> Sequence[_Row]:
    return [(Object(base, entry),) for entry in entries]


def _dealt(spec: ChannelSpec, listing: Listing) -> tuple[Sequence[_Row], tuple[int, int]]:
    """Rows, and the share of them that this host has in each epoch.

    Objects in the listed order are dealt already, as for the other modes. Lines, which only this mode knows, and what
    is shuffled over all hosts are dealt in each epoch.
    """
    if spec.attributes or spec.shuffle_seed is not None:
        return all_rows(spec, listing), listing.share
    return _objects(listing.base, listing.items), (0, 1)


def sizes_of(row: _Row) -> list[int]:
    """Bytes of each value."""
    return [len(value) if isinstance(value, bytes) else value.entry.size_bytes for value in row]


def _contents(spec: ChannelSpec, rows: Sequence[_Row], source: _Source) -> Iterator[Buffer]:
    chunks = read_ahead((value for row in rows for value in row), source.store, source.pool)
    return (as_records if spec.record_io else as_stream)(unzipped(chunks) if spec.gzip else chunks)


def in_order(rows: Sequence[_T], seed: int | None, epoch: int, share: tuple[int, int]) -> Sequence[_T]:
    """What this host streams in an epoch: shuffled anew each time if there is a seed, the same on all hosts, and then
    dealt, so that with shares an object may come to another host each time."""
    mixed = list(rows)
    if seed is not None:
        random.Random(f"{seed} {epoch}").shuffle(mixed)
    return mixed[share[0] :: share[1]]


class _Source:
    """Threads, and the stores of all buckets and folders that are named."""

    def __init__(self, base: str, stats: Stats) -> None:
        self._stats = stats
        self.pool = ThreadPoolExecutor(_THREADS, "hdp-pipe-read")
        self._stores: list[RetryingStore] = []
        self.store = functools.cache(self._open)
        self.store(base)  # what can't be set up is told before the job starts

    def _open(self, base: str) -> RetryingStore:
        self._stores.append(open_store(base, _THREADS))
        return self._stores[-1]

    def end(self) -> None:
        """Start nothing more, and wait for nothing."""
        for store in self._stores:
            store.end()
            self._stats.merge(store.stats)
        self.pool.shutdown(wait=False, cancel_futures=True)
