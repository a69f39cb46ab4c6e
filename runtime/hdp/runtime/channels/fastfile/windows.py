"""What one open file reads, and what to fetch before it asks. Pure.

A reader is sequential as long as it goes on about where it was: the kernel reads ahead in parallel, so requests come
out of order by a little. Its window is four times what it has read so far, so one that reads a header and leaves costs
one part, and one that stays has a full window after 32 MiB. One that jumps gets what it asks for, rounded up, until it
goes on where it was. Near a store a full window is smaller: a few connections bring all that a mount can hand on, and
what waits for the reader meanwhile only falls out of the processor's cache.
"""

from __future__ import annotations

from collections import deque

KIB, MIB = 1 << 10, 1 << 20
#: At 90 MB/s a first part of 1 MiB is there 12 ms after its first byte. 128 KiB more, so that the kernel's first
#: read-ahead doesn't end just behind it.
FIRST_PART = MIB + 128 * KIB
LARGEST_PART = 8 * MIB
#: What a jumping reader's requests are rounded up to.
JUMP_PART = 128 * KIB
#: The kernel's own read-ahead, twice: how far requests of one reader come out of order.
BACKWARD = 2 * MIB
FORWARD = 2 * MIB
LARGEST_WINDOW = 128 * MIB
#: With these on loopback, two cores: 1,440 MiB/s and 1.21 s of processor time a GiB; with the ones above 1,312 and 1.26
#: (medians of 16 reads of 1 GiB each, in turn).
NEAR_WINDOW, NEAR_PART = 32 * MIB, 4 * MIB
#: A connection that gives so much is near; S3's give 60 to 90 MB/s. Eight of them are 2 GiB/s.
_NEAR_BYTES_PER_SECOND = 256 * MIB
#: So many fetches tell; the best of them counts, as others shared the processor.
_TELLING = 16


class Window:
    """One open file's reading."""

    __slots__ = ("ahead", "part", "position", "sequential", "started", "stream")

    def __init__(self) -> None:
        self.started = False
        self.sequential = False
        self.position = 0
        """Behind the furthest byte read in this stream."""
        self.stream = 0
        """Bytes read since the last jump."""
        self.ahead = 0
        """Up to here parts were asked for."""
        self.part = FIRST_PART
        """Length of the next part."""

    def read(self, start: int, end: int) -> bool:
        """Note a read. Returns whether it was a jump."""
        if not self.started:
            self.started, self.sequential = True, start == 0
            self._restart(end)
            return False
        if self.position - BACKWARD <= start <= max(self.position + FORWARD, self.ahead):
            self.sequential = self.sequential or start <= self.position < end
            self.stream += max(0, end - self.position)
            self.position = max(self.position, end)
            return False
        self.sequential = False
        self._restart(end)
        return True

    def wanted(self, most: int) -> int:
        """Up to where to fetch ahead now."""
        if not self.sequential or self.stream == 0:
            return self.position
        return self.position + min(max(4 * MIB, 4 * self.stream), most, LARGEST_WINDOW)

    def grow(self) -> int:
        """The length of the next part; the one after it is twice as long."""
        length, self.part = self.part, min(2 * self.part, LARGEST_PART)
        return length

    def first_part(self, request: int) -> int:
        """How much to fetch for a request that nothing was fetched for."""
        if self.sequential:
            return max(self.part, request)
        return -(-request // JUMP_PART) * JUMP_PART

    def _restart(self, end: int) -> None:
        self.position = end
        self.stream = 0
        self.ahead = 0
        self.part = FIRST_PART


class Distance:
    """How far the store is, by what the last fetches of large parts took. Needs the cache's lock held."""

    def __init__(self) -> None:
        self._rates: deque[float] = deque(maxlen=_TELLING)

    def fetched(self, size: int, seconds: float) -> None:
        """Note a fetch."""
        self._rates.append(size / max(seconds, 1e-6))

    @property
    def near(self) -> bool:
        """Whether small windows and parts are enough."""
        return max(self._rates, default=0.0) >= _NEAR_BYTES_PER_SECOND

    @property
    def window(self) -> int:
        """The largest window that is of use."""
        return NEAR_WINDOW if self.near else LARGEST_WINDOW

    @property
    def part(self) -> int:
        """The largest part that is of use."""
        return NEAR_PART if self.near else LARGEST_PART
