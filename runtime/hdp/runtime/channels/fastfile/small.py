"""Small files are fetched whole: when they are opened, ahead of that where an order shows, and in the background.

All methods need the cache's lock held.
"""

from __future__ import annotations

from collections.abc import Sequence

from hdp.runtime.channels.fastfile.cache import Cache, Part, Urgency
from hdp.runtime.channels.fastfile.fetcher import LARGE_BYTES
from hdp.runtime.channels.fastfile.order import Order
from hdp.runtime.channels.fastfile.stats import Stats
from hdp.runtime.channels.fastfile.tree import Tree

#: A file up to this size is small.
SMALL_BYTES = LARGE_BYTES
#: Background fetches under way; the rest of the threads are for who waits.
_FILL_AT_ONCE = 48
#: So many files read a second time from the store: the page cache is too small for the channel.
_LOST = 16
#: Where the page cache has lost a file, it may have lost those that follow.
_LOST_BEHIND = 64
_LAST_PASS = 255


class SmallFiles:
    """The small files of one channel."""

    def __init__(self, tree: Tree, cache: Cache, stats: Stats) -> None:
        self._tree = tree
        self._cache = cache
        self._stats = stats
        self._order = Order(tree.folder_of, tree.files_in)
        self._asked = bytearray(len(tree.entries))
        """In which pass a file was fetched: the page cache has it. 0: not yet, or it may be lost."""
        self._pass = 1
        """How often the page cache was found to have lost what it was given."""
        self._ended = False
        self._fill_next: int | None = None
        self._filling = 0
        self._filled = False
        self._missed: list[int] = []
        """Files that were read again from the store."""

    def opened(self, index: int) -> None:
        """A file is opened: it is wanted now, and perhaps others soon."""
        if not self._asked[index] and self._tree.entries.sizes[index]:
            self._fetch(index, Urgency.WAITED_FOR)
            self._order.absent(index)
        before = self._order.out_of_order
        for following in self._order.opened(index):
            self._ahead(following, Urgency.NEXT_FILES)
        if self._order.out_of_order != before:
            self._stats.add(small_out_of_order=1)
        self.pump()

    def hint(self, indexes: Sequence[int]) -> None:
        """The order in which files will be opened."""
        self._order.hint(indexes)
        self._fill_next = None
        self.pump()

    def demand(self, index: int) -> Part:
        """A file is read that is neither here nor on its way."""
        self._read_again(index)
        part = self._cache.add(index, 0, self._tree.entries.sizes[index], Urgency.WAITED_FOR)
        assert part is not None
        return part

    def arrived(self, part: Part, *, failed: bool) -> None:
        """A part has come, or can't be had."""
        if failed:
            self._asked[part.index] = 0
        if part.fill:
            self._filling -= 1
            self.pump()

    def pump(self) -> None:
        """Keep the background fill going, within half the budget."""
        while not self._ended and self._filling < _FILL_AT_ONCE:
            index = self._fill_next if self._fill_next is not None else self._order.next_to_fill()
            if index is None:
                self._filled = self._order.shuffled
                return
            cost = 2 * self._tree.entries.sizes[index]
            full = self._cache.fill_bytes + cost > self._cache.budget_bytes // 2
            small = cost <= 2 * SMALL_BYTES
            self._fill_next = index if small and (full or not self._ahead(index, Urgency.FILL)) else None
            if self._fill_next is not None:
                return

    def end(self) -> None:
        """Ask for nothing more."""
        self._ended = True

    def _ahead(self, index: int, urgency: Urgency) -> bool:
        """Whether there was room for it, or nothing to do."""
        if self._asked[index]:  # as most are that follow an opened file
            return True
        if self._tree.entries.sizes[index] > SMALL_BYTES or self._cache.has(index):
            return True
        return self._fetch(index, urgency)

    def _fetch(self, index: int, urgency: Urgency) -> bool:
        size = self._tree.entries.sizes[index]
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
        self._asked[index] = self._pass
        self._filling += part.fill
        return True

    def _read_again(self, index: int) -> None:
        if self._asked[index] == self._pass:
            self._next_pass()
        if self._order.shuffled:
            self._missed += [index] if self._asked[index] and self._filled else []
            if len(self._missed) >= _LOST:
                self._start_again()
        else:
            self._lost(range(index, min(index + 1 + _LOST_BEHIND, len(self._asked))))
            self._lost(self._order.absent(index))
        self._asked[index] = self._pass

    def _next_pass(self) -> None:
        if self._pass == _LAST_PASS:
            self._asked, self._pass = bytearray(map(bool, self._asked)), 1
        self._pass += 1

    def _lost(self, indexes: Sequence[int]) -> None:
        """The page cache may not have these any more, but for those that it was given in this pass."""
        for index in indexes:
            if self._asked[index] < self._pass:
                self._asked[index] = 0

    def _start_again(self) -> None:
        self._asked = bytearray(len(self._asked))
        for index in self._missed:
            self._asked[index] = self._pass
        self._missed, self._filled = [], False
        self._order.again()
