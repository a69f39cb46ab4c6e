"""The file system, without FUSE: open, read, close by inode and handle, over a tree, a cache and a store.

A read is answered by a call of its `reply`, at once or from the thread that fetches the last part that it needs. The
one lock is the cache's; replies and fetches happen without it.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Iterator, Sequence

from hdp.runtime.channels.fastfile.cache import Cache, Part, Urgency
from hdp.runtime.channels.fastfile.fetcher import LARGE_BYTES, THREADS, Fetcher
from hdp.runtime.channels.fastfile.order import Order
from hdp.runtime.channels.fastfile.stats import Stats
from hdp.runtime.channels.fastfile.store import Store, StoreError
from hdp.runtime.channels.fastfile.tree import Tree
from hdp.runtime.channels.fastfile.windows import Window
from hdp.runtime.channels.keys import Entry

log = logging.getLogger(__name__)

#: Bytes of a file, or an errno.
Reply = Callable[[Sequence[memoryview], int], None]
#: What is told of an object that can't be read.
OnError = Callable[[Entry, StoreError], None]

#: A file up to this size is fetched whole.
SMALL_BYTES = LARGE_BYTES
#: Background fetches under way; the rest of the threads are for who waits.
_FILL_AT_ONCE = 48
#: So many files read a second time from the store: the page cache is too small for the channel.
_LOST = 16


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
        self._order = Order([tree.folder_of(i) for i in range(len(tree.entries))])
        self._fill: Iterator[int] | None = None
        self._fill_next: int | None = None
        self._fill_running = 0
        self._filled = False
        self._asked = bytearray(len(tree.entries))
        """Small files that were fetched once: the page cache has them."""
        self._handles: dict[int, _File] = {}
        self._open: dict[int, int] = {}
        self._next_handle = 1
        self._large_open = 0
        self._missed = 0
        stats.add(files=len(tree.entries), size_bytes=sum(e.size_bytes for e in tree.entries))

    def end(self) -> None:
        """Fetch nothing more."""
        with self._lock:
            self._fill = None
        self._fetcher.end()

    # -- what the kernel asks for -------------------------------------------------------------------------------

    def open(self, index: int) -> int:
        """A new handle on an entry. A small file's bytes are on their way then, and its neighbours'."""
        entry = self.tree.entries[index]
        file = _File(index, entry.size_bytes)
        with self._lock:
            handle, self._next_handle = self._next_handle, self._next_handle + 1
            self._handles[handle] = file
            self._open[index] = self._open.get(index, 0) + 1
            if file.small:
                self._open_small(index)
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
                self._pump()
        self.stats.add(reads=1, read_bytes=answer[1], cache_hits=1)
        reply(pieces if answer[1] else (), answer[0])

    def hint(self, paths: Sequence[str]) -> None:
        """The order in which the script will open files, by their paths in the channel. Unknown ones are left out."""
        places = {e.path: i for i, e in enumerate(self.tree.entries)}
        with self._lock:
            self._order.hint([places[p] for p in paths if p in places])
            self._fill, self._fill_next = self._order.background(), None
            self._pump()

    # -- with the lock held -------------------------------------------------------------------------------------

    def _open_small(self, index: int) -> None:
        if not self._asked[index]:
            self._fetch_small(index, Urgency.WAITED_FOR)
        before = self._order.out_of_order
        for following in self._order.opened(index):
            self._fetch_ahead(following, Urgency.NEXT_FILES)
        if self._order.out_of_order != before:
            self.stats.add(small_out_of_order=1)
        if self._order.shuffled and self._fill is None:
            self._fill = self._order.background()
        self._pump()

    def _fetch_ahead(self, index: int, urgency: Urgency) -> bool:
        """Whether there was room for it, or nothing to do."""
        size = self.tree.entries[index].size_bytes
        if self._asked[index] or not 0 < size <= SMALL_BYTES or self._cache.has(index):
            return True
        return self._fetch_small(index, urgency)

    def _fetch_small(self, index: int, urgency: Urgency) -> bool:
        size = self.tree.entries[index].size_bytes
        if size == 0:
            return True
        known = self._cache.find(index, 0)
        if known is not None:
            if urgency is Urgency.WAITED_FOR:
                self._cache.hurry(known)
            return True
        part = self._cache.add(index, 0, size, urgency)
        if part is None:
            return False
        self._asked[index] = 1
        if part.fill:
            self._fill_running += 1
        return True

    def _pump(self) -> None:
        """Keep the background fill going, within half the budget."""
        while self._fill is not None and self._fill_running < _FILL_AT_ONCE:
            index = self._fill_next if self._fill_next is not None else next(self._fill, None)
            if index is None:
                self._filled = True
                return
            size = self.tree.entries[index].size_bytes
            full = self._cache.fill_bytes + 2 * size > self._cache.budget_bytes // 2
            self._fill_next = index if full or not self._fetch_ahead(index, Urgency.FILL) else None
            if self._fill_next is not None:
                return

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
            self._read_again(file.index)
            start, until = 0, file.size
        else:
            length = file.window.first_part(end - start)
            # Short of room, a waiting reader gets what it asked for and no more.
            length = length if self._cache.room_for(length) else end - start
            until = min(file.size, start + length, self._cache.next_start(file.index, start) or file.size)
        part = self._cache.add(file.index, start, until, Urgency.WAITED_FOR)
        assert part is not None
        return part

    def _read_again(self, index: int) -> None:
        """The page cache has lost a file, so it may have lost those that follow; or, shuffled, any."""
        self._missed += bool(self._asked[index])
        if self._missed >= _LOST and self._fill is not None and self._filled:
            self._missed, self._filled = 0, False
            self._asked = bytearray(len(self._asked))
            self._order.again()
            self._fill = self._order.background()
        last = min(index + 1 + 64, len(self._asked))
        self._asked[index:last] = bytes(last - index)
        self._asked[index] = 1

    def _look_ahead(self, file: _File) -> None:
        window = file.window
        share = self._cache.budget_bytes // (2 * max(1, self._large_open))
        until = min(file.size, window.wanted(share))
        position = max(window.ahead, window.position)
        while position < until:
            known = self._cache.find(file.index, position)
            if known is not None:
                position = known.end
                continue
            next_start = self._cache.next_start(file.index, position) or file.size
            end = min(position + window.part, next_start, file.size)
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
                self._pump()
            self.stats.add(waits=int(done), waited_seconds=(time.monotonic() - began) if done or first else 0.0)
            if first:
                reply((), errno.EIO)
            elif done:
                self.stats.add(reads=1, read_bytes=end - start)
                reply(pieces, 0)

        for part in waiting:
            part.waiters.append(arrived)

    # -- in the fetcher's threads -------------------------------------------------------------------------------

    def _fetch(self, part: Part) -> memoryview:
        return self._store.get(self.tree.entries[part.index], part.start, part.end)

    def _arrived(self, part: Part, data: memoryview | None, error: StoreError | None) -> None:
        with self._lock:
            ahead = part.urgency is not Urgency.WAITED_FOR
            waiters = self._cache.arrived(part, data)
            if error is not None:
                self._asked[part.index] = 0
            if part.fill:
                self._fill_running -= 1
                self._pump()
        if ahead and data is not None:
            self.stats.add(ahead_bytes=len(data))
        if error is not None and waiters:
            self.stats.add(errors=1)
            self._on_error(self.tree.entries[part.index], error)
        for waiter in waiters:
            waiter(error)
