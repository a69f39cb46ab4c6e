"""Copies what a channel holds to a folder, many parts at once, with progress lines.

From S3 in parts that are pinned to the listed ETag, or time; each is written where it belongs as soon as it is there.
From a folder file by file, in the kernel where that is possible. A `Journal` knows what is there already.

Threads take the next part from one list; the first error ends them all. The calling thread looks after them.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from hdp.contract.errors import ChannelError
from hdp.contract.units import format_time
from hdp.runtime.channels.copying import copy_file
from hdp.runtime.channels.fastfile.stats import Stats
from hdp.runtime.channels.fastfile.store import StoreError
from hdp.runtime.channels.journal import Journal, keep_only, version
from hdp.runtime.channels.keys import Entry, Listing
from hdp.runtime.channels.stores import open_store

log = logging.getLogger(__name__)

#: Connections for small objects, each of which costs a round trip; and for large parts, which cost memory: 16 of them
#: fill 10 Gbit/s at the 60 to 90 MB/s that S3 gives a connection.
_CONNECTIONS, _LARGE_AT_ONCE = 48, 16
#: Copies from folders at once; more than one for those on a network.
_COPIES = 4
_PART_BYTES = 8 << 20
_LARGE_BYTES = 1 << 20
_PROGRESS_SECONDS = 10.0
_LOOK_SECONDS = 0.1


class Part(NamedTuple):
    """Bytes of one object or file, or all of an empty one."""

    entry: Entry
    start: int
    end: int

    @property
    def size_bytes(self) -> int:
        """Its length."""
        return self.end - self.start


def download(
    name: str, listing: Listing, target: Path, journal: Journal, stopped: Callable[[], bool], stats: Stats
) -> None:
    """Make every file of `listing` below `target`, but for the parts that `journal` has. Ends early once `stopped()`.

    name: the channel's, for the log. stats: takes the requests and bytes. Raises ChannelError that names the
    object, OSError as the target's disk does.
    """
    known = journal.known()
    keep_only(target, {e.path for e in listing.items if version(e) in known})
    remote = listing.base.startswith("s3://")
    parts = [p for e in listing.items for p in _parts_of(e, remote) if not _there(p, target, journal)]
    there = listing.size_bytes - sum(p.size_bytes for p in parts)
    if there:
        log.info("channel %s: %.1f MB are there from an earlier download", name, there / 1e6)
    source: _Source = _Bucket(listing.base, target) if remote else _Folder(Path(listing.base), target)
    try:
        _Run(parts, source, journal).watch(stopped, _Progress(name, listing.size_bytes, there))
    finally:
        stats.merge(source.stats)


def _parts_of(entry: Entry, remote: bool) -> Iterator[Part]:
    step = _PART_BYTES if remote else max(entry.size_bytes, 1)
    for start in range(0, max(entry.size_bytes, 1), step):
        yield Part(entry, start, min(entry.size_bytes, start + step))


def _there(part: Part, target: Path, journal: Journal) -> bool:
    return journal.has(part.entry, part.start, part.end) and (target / part.entry.path).exists()


class _Source(Protocol):
    threads: int
    stats: Stats

    def copy(self, part: Part) -> None:
        """Write the part to its place. Raises ChannelError, OSError."""

    def end(self) -> None:
        """Wait for nothing any more."""


class _Bucket:
    threads = _CONNECTIONS

    def __init__(self, base: str, target: Path) -> None:
        self._store = open_store(base, _CONNECTIONS)
        self._target = target
        self.stats = self._store.stats
        self._large = threading.Semaphore(_LARGE_AT_ONCE)
        self.end = self._store.end

    def copy(self, part: Part) -> None:
        if part.size_bytes > _LARGE_BYTES:
            with self._large:
                self._copy(part)
        else:
            self._copy(part)

    def _copy(self, part: Part) -> None:
        try:
            data = self._store.get(part.entry, part.start, part.end) if part.size_bytes else memoryview(b"")
        except StoreError as exc:
            raise ChannelError(f"{self._store.uri(part.entry)} can't be read: {exc}") from exc
        path = self._target / part.entry.path
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _write(fd, data, part.start)
        finally:
            os.close(fd)


def _write(fd: int, data: memoryview, start: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:], start + done)


class _Folder:
    threads = _COPIES

    def __init__(self, base: Path, target: Path) -> None:
        self._base = base
        self._target = target
        self.stats = Stats()

    def copy(self, part: Part) -> None:
        size = copy_file(self._base / part.entry.key, self._target / part.entry.path)
        self.stats.add(gets=1, fetched_bytes=size)

    def end(self) -> None:
        """A copy in the kernel can't be interrupted."""


class _Run:
    """The threads."""

    def __init__(self, parts: Sequence[Part], source: _Source, journal: Journal) -> None:
        self._parts = iter(parts)
        self._source = source
        self._journal = journal
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._bytes = 0
        count = min(source.threads, len(parts))
        self._threads = [threading.Thread(target=self._work, name="hdp-download", daemon=True) for _ in range(count)]

    def watch(self, stopped: Callable[[], bool], progress: _Progress) -> None:
        """Run until all is there, or an error, which is raised, or `stopped()`."""
        for thread in self._threads:
            thread.start()
        try:
            while any(t.is_alive() for t in self._threads) and not stopped():
                progress.say(self._bytes)
                for thread in [t for t in self._threads if t.is_alive()][:1]:
                    thread.join(_LOOK_SECONDS)
        finally:
            self._ended.set()
            self._source.end()
            for thread in self._threads:
                thread.join()
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        try:
            while not self._ended.is_set() and (part := self._next()) is not None:
                self._source.copy(part)
                self._journal.add(part.entry, part.start, part.end)
                with self._lock:
                    self._bytes += part.size_bytes
        except BaseException as exc:
            with self._lock:
                self._error = self._error or exc
            self._ended.set()

    def _next(self) -> Part | None:
        with self._lock:
            return next(self._parts, None)


class _Progress:
    """A line in the log every few seconds."""

    def __init__(self, name: str, total: int, there: int) -> None:
        self._name = name
        self._total = total
        self._there = there
        self._start = self._said = time.monotonic()

    def say(self, done: int) -> None:
        """done: bytes that were copied so far."""
        now = time.monotonic()
        if now < self._said + _PROGRESS_SECONDS:
            return
        self._said = now
        rate, so_far = done / (now - self._start), self._there + done
        left = format_time((self._total - so_far) / rate) if rate else "?"
        log.info(
            "channel %s: %.0f of %.0f MB, %.0f MB/s, %s left",
            self._name, so_far / 1e6, self._total / 1e6, rate / 1e6, left,
        )  # fmt: skip
