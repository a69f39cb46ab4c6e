"""Which small files to fetch before they are opened. Pure.

Kept per folder, not per open file or per process: several workers that share a folder move through it together. A
folder that is read in about the listing's order gets the files that follow, more of them the longer it goes well; at
its end come the next folder's. Files opened out of order can't be guessed: then the whole channel is fetched in the
background, in the listing's order or in that of a hint, as far as the budget goes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

LARGEST_DEPTH = 128
_FIRST_DEPTH = 4
#: Workers take batches in turn: 8 with 32 files each are up to 256 files apart.
_BEHIND = 256
#: So many opens out of order, and it is no accident.
_SHUFFLED = 3


class Order:
    """What was opened so far."""

    def __init__(self, folder_of: Sequence[int]) -> None:
        """folder_of: each entry's folder, in the listing's order."""
        self._folder_of = folder_of
        self._frontiers: dict[int, tuple[int, int]] = {}
        """Folder -> (furthest file of the stream, depth)."""
        self._hint: Sequence[int] = range(len(folder_of))
        self._places: dict[int, int] = {}
        self._cursor = 0
        self.out_of_order = 0
        self.hinted = False

    @property
    def shuffled(self) -> bool:
        """Whether to fetch in the background."""
        return self.hinted or self.out_of_order >= _SHUFFLED

    def opened(self, index: int) -> range:
        """Note that a small file is opened. Returns the ones to fetch next, by the listing's order."""
        folder = self._folder_of[index]
        known = self._frontiers.get(folder)
        if index in self._places:
            self._cursor = max(self._cursor, self._places[index] + 1)
            return range(0)  # the hint says what is next
        if known is None:
            first = index == 0 or self._folder_of[index - 1] != folder
            frontier, depth = index, _FIRST_DEPTH if first else 0
        elif known[0] - _BEHIND <= index <= known[0] + max(2 * known[1], 16):
            frontier = max(known[0], index)
            depth = min(LARGEST_DEPTH, max(_FIRST_DEPTH, 2 * known[1])) if index > known[0] else known[1]
        else:
            self.out_of_order += 1
            frontier, depth = index, 0
        self._frontiers[folder] = frontier, depth
        return range(frontier + 1, min(frontier + 1 + depth, len(self._folder_of)))

    def hint(self, indexes: Sequence[int]) -> None:
        """The order in which files will be opened from now on."""
        self._hint, self._cursor, self.hinted = indexes, 0, True
        self._places = {index: place for place, index in enumerate(indexes)}

    def background(self) -> Iterator[int]:
        """What to fetch in the background, one after the other. Follows a hint, and what was opened meanwhile."""
        hint, place = self._hint, 0
        while True:
            if hint is not self._hint:
                hint, place = self._hint, 0
            place = max(place, self._cursor)
            if place >= len(hint):
                return
            yield hint[place]
            place += 1

    def again(self) -> None:
        """Everything was read once, and is read again."""
        self._frontiers.clear()
        self._cursor = 0
