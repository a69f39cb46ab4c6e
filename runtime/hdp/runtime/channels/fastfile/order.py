"""Which small files to fetch before they are opened. Pure.

Kept per folder, not per open file or per process: several workers that share a folder move through it together. A
folder that is read in about the listing's order gets the files that follow, more of them the longer it goes well; at
its end come the next folder's. Files opened out of order can't be guessed: then the whole channel is fetched in the
background, in the listing's order or in that of a hint, as far as the budget goes. In a small folder, or channel, no
order shows before it is through: it is fetched in the background once a few of its files weren't there when wanted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

LARGEST_DEPTH = 128
_FIRST_DEPTH = 4
#: Workers take batches in turn: 8 with 32 files each are up to 256 files apart. What has no more files is small.
_BEHIND = 256
#: So many opens out of order, or of files that weren't there, and it is no accident.
_SHUFFLED = 3


class Order:
    """What was opened so far."""

    def __init__(self, folder_of: Sequence[int], files_in: Callable[[int], Sequence[int]]) -> None:
        """folder_of: each entry's folder, in the listing's order. files_in: a folder's entries."""
        self._folder_of = folder_of
        self._files_in = files_in
        self._frontiers: dict[int, tuple[int, int]] = {}
        """Folder -> (furthest file of the stream, depth)."""
        self._last = 0
        self._absent: dict[int, int] = {}
        """Small folder -> files that weren't there when wanted."""
        self._queue: deque[int] = deque()
        """Files of small folders, to be fetched in the background."""
        self._hint: Sequence[int] = range(len(folder_of))
        self._places: dict[int, int] = {}
        self._place = self._cursor = 0
        self.out_of_order = 0
        self.hinted = False

    @property
    def shuffled(self) -> bool:
        """Whether to fetch the whole channel in the background."""
        return self.hinted or self.out_of_order >= _SHUFFLED

    def opened(self, index: int) -> range:
        """Note that a small file is opened. Returns the ones to fetch next, by the listing's order."""
        folder = self._folder_of[index]
        known, last, self._last = self._frontiers.get(folder), self._last, index
        if index in self._places:
            self._cursor = max(self._cursor, self._places[index] + 1)
            return range(0)  # the hint says what is next
        if known is None:
            first = index == 0 or self._folder_of[index - 1] != folder
            self.out_of_order += not first and abs(index - last) > _BEHIND
            frontier, depth = index, _FIRST_DEPTH if first else 0
        elif known[0] - _BEHIND <= index <= known[0] + max(2 * known[1], 16):
            frontier = max(known[0], index)
            depth = min(LARGEST_DEPTH, max(_FIRST_DEPTH, 2 * known[1])) if index > known[0] else known[1]
        else:
            self.out_of_order += 1
            frontier, depth = index, 0
        self._frontiers[folder] = frontier, depth
        return range(frontier + 1, min(frontier + 1 + depth, len(self._folder_of)))

    def absent(self, index: int) -> Sequence[int]:
        """Note that a small file was wanted that was neither here nor on its way. Returns what is filled therefore."""
        small = len(self._folder_of) <= _BEHIND
        folder = 0 if small else self._folder_of[index]
        files = range(len(self._folder_of)) if small else self._files_in(folder)
        if len(files) > _BEHIND:
            return ()
        self._absent[folder] = self._absent.get(folder, 0) + 1
        if self._absent[folder] < _SHUFFLED:
            return ()
        del self._absent[folder]
        self._queue.extend(files)
        return files

    def hint(self, indexes: Sequence[int]) -> None:
        """The order in which files will be opened from now on."""
        self._hint, self.hinted = indexes, True
        self._place = self._cursor = 0
        self._places = {index: place for place, index in enumerate(indexes)}

    def next_to_fill(self) -> int | None:
        """What to fetch next in the background; None for nothing now. Follows a hint, and what was opened meanwhile."""
        if self._queue:
            return self._queue.popleft()
        self._place = max(self._place, self._cursor)
        if not self.shuffled or self._place >= len(self._hint):
            return None
        self._place += 1
        return self._hint[self._place - 1]

    def again(self) -> None:
        """Everything was read once, and is read again."""
        self._frontiers.clear()
        self._absent.clear()
        self._queue.clear()
        self._place = self._cursor = 0
