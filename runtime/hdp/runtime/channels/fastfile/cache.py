"""Parts of files in memory or on their way, under one byte budget.

A part that isn't there yet costs twice its size, since the client holds pieces and whole for a moment. What nobody
waits for is admitted only while there is room; what somebody waits for always is, and pushes out the parts used longest
ago. A part that was read to its end is forgotten: the kernel's page cache has it.

All methods need `lock` held, but for those that say otherwise.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from enum import IntEnum

from hdp.runtime.channels.fastfile.stats import Stats
from hdp.runtime.channels.fastfile.store import StoreError

#: A part fetched for nobody may go after this long; before, it may be about to be read.
_STALE_SECONDS = 10.0


class Urgency(IntEnum):
    """Why a part is fetched; lower goes first."""

    WAITED_FOR = 0
    WINDOW = 1
    NEXT_FILES = 2
    FILL = 3


class State(IntEnum):
    """Where a part is on its way."""

    QUEUED = 0
    RUNNING = 1
    THERE = 2
    GONE = 3


class Part:
    """Bytes `start` to `end` of the file `index`."""

    __slots__ = ("data", "end", "fill", "index", "left", "start", "state", "urgency", "used", "waiters")

    def __init__(self, index: int, start: int, end: int, urgency: Urgency) -> None:
        self.index = index
        self.start = start
        self.end = end
        self.urgency = urgency
        self.fill = urgency is Urgency.FILL
        self.state = State.QUEUED
        self.data: memoryview | None = None
        self.left = end - start
        self.used = 0.0
        self.waiters: list[Callable[[StoreError | None], None]] = []
        """Called, without the lock, when the part is there or can't be had."""

    @property
    def size(self) -> int:
        """Its length."""
        return self.end - self.start

    @property
    def cost(self) -> int:
        """What it takes of the budget now."""
        return self.size * (1 if self.state is State.THERE else 2)


class Cache:
    """All parts of one mount."""

    def __init__(self, budget_bytes: int, stats: Stats, enqueue: Callable[[Part], None] = lambda _part: None) -> None:
        """enqueue: has a part fetched; called again when it has become more urgent."""
        self.lock = threading.Lock()
        self.budget_bytes = budget_bytes
        self.held_bytes = 0
        self.fill_bytes = 0
        self.enqueue = enqueue
        self._stats = stats
        self._files: dict[int, list[Part]] = {}
        self._idle: OrderedDict[Part, None] = OrderedDict()
        """Parts that are there, the one used longest ago first."""

    def find(self, index: int, offset: int) -> Part | None:
        """The part of a file that has the byte at `offset`."""
        parts = self._files.get(index)
        if not parts:
            return None
        at = _after(parts, offset) - 1
        return parts[at] if at >= 0 and offset < parts[at].end else None

    def next_start(self, index: int, offset: int) -> int | None:
        """Where the first part behind `offset` begins."""
        parts = self._files.get(index, ())
        at = _after(parts, offset)
        return parts[at].start if at < len(parts) else None

    def has(self, index: int) -> bool:
        """Whether anything of the file is here or on its way."""
        return index in self._files

    def room_for(self, size: int) -> bool:
        """Whether a part of this size could be fetched without pushing anything out."""
        return self.held_bytes + 2 * size <= self.budget_bytes

    def add(self, index: int, start: int, end: int, urgency: Urgency) -> Part | None:
        """A new part, queued; None where it would only be ahead of its time, and there is no room."""
        size, waited = end - start, urgency is Urgency.WAITED_FOR
        if not self._make_room(2 * size, 0.0 if waited else _STALE_SECONDS) and not waited:
            return None
        part = Part(index, start, end, urgency)
        parts = self._files.setdefault(index, [])
        parts.insert(_after(parts, start), part)
        self._charge(part, part.cost)
        self.enqueue(part)
        return part

    def hurry(self, part: Part) -> None:
        """Somebody waits for it now."""
        if part.state is State.QUEUED and part.urgency is not Urgency.WAITED_FOR:
            part.urgency = Urgency.WAITED_FOR
            self.enqueue(part)

    def arrived(self, part: Part, data: memoryview | None) -> list[Callable[[StoreError | None], None]]:
        """The part is there, or, with None, can't be had. Returns who has to hear of it, once the lock is free."""
        waiters, part.waiters, part.data = part.waiters, [], data
        if part.state is State.GONE:
            return waiters
        if data is None:
            self.forget(part)
            return waiters
        before = part.cost
        part.state, part.used = State.THERE, time.monotonic()
        self._charge(part, part.cost - before)
        self._idle[part] = None
        return waiters

    def take(self, part: Part, start: int, end: int) -> memoryview:
        """Bytes of a part that is there. The part goes when all of it was taken."""
        assert part.data is not None
        piece = part.data[max(start, part.start) - part.start : min(end, part.end) - part.start]
        part.left -= len(piece)
        if part.state is State.THERE:
            if part.left <= 0:
                self.forget(part)
            else:
                part.used = time.monotonic()
                self._idle.move_to_end(part)
        return piece

    def drop_unwanted(self, index: int) -> None:
        """Nobody has the file open any more: what nobody waits for goes, unless it is being fetched."""
        for part in [p for p in self._files.get(index, ()) if not p.waiters and p.state is not State.RUNNING]:
            self.forget(part)

    def drop_queued(self, index: int, keep_from: int, keep_to: int) -> None:
        """Take back what was asked for ahead of its time, outside of some bytes. Never what somebody waits for."""
        for part in list(self._files.get(index, ())):
            outside = part.end <= keep_from or part.start >= keep_to
            if outside and part.state is State.QUEUED and not part.waiters:
                self.forget(part)

    def forget(self, part: Part) -> None:
        """Give back what it holds. Who has got bytes of it keeps them."""
        if part.state is State.GONE:
            return
        self._charge(part, -part.cost)
        part.state = State.GONE
        self._idle.pop(part, None)
        parts = self._files[part.index]
        parts.remove(part)
        if not parts:
            del self._files[part.index]

    def _make_room(self, cost: int, older_than: float) -> bool:
        now = time.monotonic()
        while self.held_bytes + cost > self.budget_bytes and self._idle:
            oldest = next(iter(self._idle))
            if now - oldest.used < older_than:
                return False
            self.forget(oldest)
        return self.held_bytes + cost <= self.budget_bytes

    def _charge(self, part: Part, cost: int) -> None:
        self.held_bytes += cost
        if part.fill:
            self.fill_bytes += cost
        self._stats.top(self.held_bytes)


def _after(parts: Sequence[Part], offset: int) -> int:
    """How many of `parts`, in their order, begin at `offset` or before (`bisect` has no key in Python 3.9)."""
    low, high = 0, len(parts)
    while low < high:
        middle = (low + high) // 2
        if parts[middle].start <= offset:
            low = middle + 1
        else:
            high = middle
    return low
