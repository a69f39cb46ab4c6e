"""Where a channel's bytes come from: a range of one object at a time, whole or an error, never a part.

A store is used by many threads at once. `MemoryStore` and `FaultyStore` are for tests and for trying things out.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from hdp.contract.errors import ChannelError
from hdp.runtime.channels.keys import Entry
from hdp.runtime.channels.local import etag_of


class StoreError(ChannelError):
    """An object can't be read. `status` is what S3 answered, or would have; None where nothing was answered."""

    def __init__(self, what: str, status: int | None = None) -> None:
        self.status = status
        super().__init__(what)


class Denied(StoreError):
    """This job's credentials may not read it."""


class Missing(StoreError):
    """It isn't there any more."""


class Changed(StoreError):
    """It isn't what was listed."""


class Transient(StoreError):
    """The store is busy or can't be reached: another try may well succeed."""


class Store(Protocol):
    """Gives bytes."""

    def get(self, entry: Entry, start: int, end: int) -> memoryview:
        """The bytes from `start` to before `end`, all of them. Raises StoreError."""

    def uri(self, entry: Entry) -> str:
        """How a person would name the object."""


class FolderStore:
    """Files below a folder."""

    def __init__(self, base: Path) -> None:
        self._base = base

    def get(self, entry: Entry, start: int, end: int) -> memoryview:
        """The bytes from `start` to before `end`. Raises Denied, Missing, Changed, StoreError."""
        try:
            fd = os.open(self._base / entry.key, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as exc:
            raise _of_errno(exc) from exc
        try:
            if entry.etag is not None and etag_of(os.fstat(fd)) != entry.etag:
                raise Changed("the file has changed since the job started", 412)
            return _read_all(fd, start, end)
        except OSError as exc:
            raise _of_errno(exc) from exc
        finally:
            os.close(fd)

    def uri(self, entry: Entry) -> str:
        """Its path."""
        return str(self._base / entry.key)


def _read_all(fd: int, start: int, end: int) -> memoryview:
    data = bytearray(end - start)
    view, done = memoryview(data), 0
    while done < len(data):
        count = os.preadv(fd, [view[done:]], start + done)
        if count == 0:
            raise Changed("the file is shorter than when the job started", 412)
        done += count
    return view


def _of_errno(exc: OSError) -> StoreError:
    if exc.errno in (errno.ENOENT, errno.ENOTDIR):
        return Missing("the file is gone", 404)
    if exc.errno in (errno.EACCES, errno.EPERM):
        return Denied("the file may not be read", 403)
    return StoreError(exc.strerror or str(exc))


class MemoryStore:
    """Objects in memory."""

    def __init__(self, objects: Mapping[str, bytes]) -> None:
        self.objects = dict(objects)
        self.gets: list[tuple[str, int, int]] = []

    def get(self, entry: Entry, start: int, end: int) -> memoryview:
        """The bytes from `start` to before `end`."""
        self.gets.append((entry.key, start, end))
        try:
            return memoryview(self.objects[entry.key])[start:end]
        except KeyError as exc:
            raise Missing("no such object", 404) from exc

    def uri(self, entry: Entry) -> str:
        """``memory:key``."""
        return f"memory:{entry.key}"


class FaultyStore:
    """Another store, with faults: `fault(entry, n)` may raise before the n-th try for this object is passed on."""

    def __init__(
        self, store: Store, fault: Callable[[Entry, int], None] = lambda _entry, _n: None, seconds: float = 0.0
    ) -> None:
        """seconds: what each answer is late."""
        self._store = store
        self._fault = fault
        self._seconds = seconds
        self._lock = threading.Lock()
        self.tries: dict[str, int] = {}

    def get(self, entry: Entry, start: int, end: int) -> memoryview:
        """As the other store, late, or not at all."""
        with self._lock:
            n = self.tries[entry.key] = self.tries.get(entry.key, 0) + 1
        time.sleep(self._seconds)
        self._fault(entry, n)
        return self._store.get(entry, start, end)

    def uri(self, entry: Entry) -> str:
        """As the other store says."""
        return self._store.uri(entry)
