"""The file system, without FUSE: open, read, close by inode and handle, over a tree, a cache and a store.

A read is answered by a call of its `reply`, at once or from the thread that fetches the last part that it needs. The
one lock is the cache's; replies and fetches happen without it.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Sequence

from hdp.runtime.channels.fastfile.cache import Cache, Part, Urgency
from hdp.runtime.channels.fastfile.fetcher import LARGE_BYTES, THREADS, Fetcher
from hdp.runtime.channels.fastfile.small import SMALL_BYTES, SmallFiles
from hdp.runtime.channels.fastfile.stats import Stats
from hdp.runtime.channels.fastfile.store import Store, StoreError
from hdp.runtime.channels.fastfile.tree import Tree
from hdp.runtime.channels.fastfile.windows import Distance, Window
from hdp.runtime.channels.keys import Entry

log = logging.getLogger(__name__)

#: Bytes of a file, or an errno.
Reply = Callable[[Sequence[memoryview], int], None]
#: What is told of an object that can't be read.
OnError = Callable[[Entry, StoreError], None]


class _File:
    """One open file."""

    __slots__ = ("index", "size", "small", "window")

    def __init__(self, index: int, size: int) -> None:
        self.index = index
        self.size = size
        self.small = size <= SMALL_BYTES
        self.window = Window()


class FileSystem:
    """One channel."""

    def __init__(
        self, tree: Tree, store: Store, *, budget_bytes: int, stats: Stats, on_error: OnError, threads: int = THREADS
    ) -> None:
        """store: used from many threads. on_error: called, from any thread, when a reader gets an error."""
        self.tree = tree
        self.stats = stats
        self._store = store
        self._on_error = on_error
        self._cache = Cache(budget_bytes, stats)
        self._lock = self._cache.lock
        self._fetcher = Fetcher(self._lock, self._fetch, self._arrived, threads)
        self._cache.enqueue = self._fetcher.enqueue
        self._small = SmallFiles(tree, self._cache, stats)
        self._handles: dict[int, _File] = {}
        self._open: dict[int, int] = {}
        self._next_handle = 1
        self._large_open = 0
        self._distance = Distance()
        stats.add(files=len(tree.entries), size_bytes=tree.entries.size_bytes)

    def end(self) -> None:
        """Fetch nothing more."""
        with self._lock:
            self._small.end()
        self._fetcher.end()

    # -- what the kernel asks for -------------------------------------------------------------------------------

    def open(self, index: int) -> int:
        """A new handle on an entry. A small file's bytes are on their way then, and its neighbours'."""
        file = _File(index, self.tree.entries.sizes[index])
        with self._lock:
            handle, self._next_handle = self._next_handle, self._next_handle + 1
            self._handles[handle] = file
            self._open[index] = self._open.get(index, 0) + 1
            if file.small:
                self._small.opened(index)
            else:
                self._large_open += 1
        self.stats.add(opens=1)
        return handle

    def close(self, handle: int) -> None:
        """Give a handle back. Of a large file that nobody has open any more, nothing is kept."""
        with self._lock:
            file = self._handles.pop(handle, None)
            if file is None:
                return
            self._large_open -= not file.small
            left = self._open[file.index] - 1
            if left:
                self._open[file.index] = left
            else:
                del self._open[file.index]
                if not file.small:
                    self._cache.drop_unwanted(file.index)

    def read(self, handle: int, offset: int, size: int, reply: Reply) -> None:
        """Bytes of an open file; fewer than `size` only at its end."""
        with self._lock:
            file = self._handles.get(handle)
            if file is None:
                answer, parts = (errno.EBADF, 0), []
            else:
                end = min(offset + size, file.size)
                answer, parts = (0, max(0, end - offset)), self._cover(file, offset, end)
                waiting = [p for p in parts if p.data is None]
                if waiting:
                    self._wait(parts, waiting, offset, end, reply)
                    return
                pieces = [self._cache.take(p, offset, end) for p in parts]
                self._small.pump()
        self.stats.add(reads=1, read_bytes=answer[1], cache_hits=1)
        self.stats.answered(0.0)
        reply(pieces if answer[1] else (), answer[0])

    def hint(self, paths: Sequence[str]) -> None:
        """The order in which the script will open files, by their paths in the channel. Unknown ones are left out."""
        found = [self.tree.find(path) for path in paths]
        with self._lock:
            self._small.hint([index for index in found if index is not None])

    # -- with the lock held -------------------------------------------------------------------------------------

    def _cover(self, file: _File, start: int, end: int) -> list[Part]:
        """Parts that hold the bytes, some of them only asked for now."""
        if end <= start:
            return []
        if not file.small and file.window.read(start, end):
            self._jumped(file)
        parts, position = [], start
        while position < end:
            part = self._cache.find(file.index, position) or self._demand(file, position, end)
            self._cache.hurry(part)
            parts.append(part)
            position = part.end
        if not file.small:
            self._look_ahead(file)
        return parts

    def _jumped(self, file: _File) -> None:
        self.stats.add(seeks=1)
        if self._open[file.index] == 1:
            self._cache.drop_queued(file.index, file.window.position, file.window.position)

    def _demand(self, file: _File, start: int, end: int) -> Part:
        if file.small:
            return self._small.demand(file.index)
        length = file.window.first_part(end - start)
        # Short of room, a waiting reader gets what it asked for and no more.
        length = length if self._cache.room_for(length) else end - start
        until = min(file.size, start + length, self._cache.next_start(file.index, start) or file.size)
        part = self._cache.add(file.index, start, until, Urgency.WAITED_FOR)
        assert part is not None
        return part

    def _look_ahead(self, file: _File) -> None:
        window = file.window
        share = self._cache.budget_bytes // (2 * max(1, self._large_open))
        until = min(file.size, window.wanted(min(share, self._distance.window)))
        position = max(window.ahead, window.position)
        while position < until:
            known = self._cache.find(file.index, position)
            if known is not None:
                position = known.end
                continue
            next_start = self._cache.next_start(file.index, position) or file.size
            end = min(position + min(window.part, self._distance.part), next_start, file.size)
            if self._cache.add(file.index, position, end, Urgency.WINDOW) is None:
                break
            window.grow()
            position = end
        window.ahead = max(window.ahead, position)

    def _wait(self, parts: list[Part], waiting: list[Part], start: int, end: int, reply: Reply) -> None:
        missing, began, failed = len(waiting), time.monotonic(), False

        def arrived(error: StoreError | None) -> None:
            nonlocal missing, failed
            with self._lock:
                missing -= 1
                first = error is not None and not failed
                failed = failed or error is not None
                done = missing == 0 and not failed
                pieces = [self._cache.take(p, start, end) for p in parts] if done else []
                self._small.pump()
            self.stats.add(waits=int(done), waited_seconds=(time.monotonic() - began) if done or first else 0.0)
            if first:
                reply((), errno.EIO)
            elif done:
                self.stats.add(reads=1, read_bytes=end - start)
                self.stats.answered(time.monotonic() - began)
                reply(pieces, 0)

        for part in waiting:
            part.waiters.append(arrived)

    # -- in the fetcher's threads -------------------------------------------------------------------------------

    def _fetch(self, part: Part) -> memoryview:
        began = time.monotonic()
        data = self._store.get(self.tree.entries[part.index], part.start, part.end)
        if part.size > LARGE_BYTES:
            with self._lock:
                self._distance.fetched(part.size, time.monotonic() - began)
        return data

    def _arrived(self, part: Part, data: memoryview | None, error: StoreError | None) -> None:
        with self._lock:
            ahead = part.urgency is not Urgency.WAITED_FOR
            waiters = self._cache.arrived(part, data)
            self._small.arrived(part, failed=error is not None)
        if ahead and data is not None:
            self.stats.add(ahead_bytes=len(data))
        if error is not None and waiters:
            self.stats.add(errors=1)
            self._on_error(self.tree.entries[part.index], error)
        for waiter in waiters:
            waiter(error)
