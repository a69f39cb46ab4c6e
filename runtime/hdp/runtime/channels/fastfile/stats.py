"""What a mount has done so far, as numbers. One lock guards them all: they are counted from many threads."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass
class Numbers:
    """Counters of one channel on one host."""

    files: int = 0
    size_bytes: int = 0
    opens: int = 0
    reads: int = 0
    read_bytes: int = 0
    """Handed to the kernel. What its page cache serves isn't seen here."""
    gets: int = 0
    fetched_bytes: int = 0
    retries: int = 0
    errors: int = 0
    seeks: int = 0
    cache_hits: int = 0
    """Reads whose bytes were there already."""
    waits: int = 0
    waited_seconds: float = 0.0
    """Summed over all reads that had to wait for the store."""
    ahead_bytes: int = 0
    """Fetched before anybody asked."""
    small_out_of_order: int = 0
    """Small files opened in another order than they are listed in."""
    peak_bytes: int = 0
    """Most that was held at a time."""
    first_byte_seconds: float | None = None
    """From the first read to its bytes; None: nothing was read."""


class Stats:
    """Counters that threads share."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = Numbers()

    def add(self, **more: float) -> None:
        """Add to some counters."""
        with self._lock:
            values = vars(self._numbers)
            for name, value in more.items():
                values[name] += value

    def top(self, peak_bytes: int) -> None:
        """Note what is held now, if it is the most so far."""
        self._numbers.peak_bytes = max(self._numbers.peak_bytes, peak_bytes)

    def answered(self, seconds: float) -> None:
        """A read got its bytes, after so long. Only the first one is noted."""
        if self._numbers.first_byte_seconds is None:
            self._numbers.first_byte_seconds = seconds

    def merge(self, other: Stats) -> None:
        """Add what `other` has counted of requests and bytes."""
        more = other.snapshot()
        self.add(**{name: more[name] for name in ("gets", "fetched_bytes", "retries")})

    def snapshot(self) -> dict[str, float]:
        """All counters now, and what follows from them."""
        with self._lock:
            numbers = {name: value for name, value in asdict(self._numbers).items() if value is not None}
        return {**numbers, "fetched_over_read": round(fetched_over_read(numbers), 3)}


def fetched_over_read(numbers: Mapping[str, float]) -> float:
    """Bytes fetched for each byte read; 0 where nothing was read."""
    return numbers["fetched_bytes"] / numbers["read_bytes"] if numbers["read_bytes"] else 0.0


def line(numbers: Mapping[str, float]) -> str:
    """What a log says of a channel at its end."""
    return (
        f"{numbers['read_bytes'] / 1e6:.1f} MB read in {numbers['reads']:.0f} reads of {numbers['opens']:.0f} opened "
        f"files; {numbers['gets']:.0f} GETs, {fetched_over_read(numbers):.2f} bytes fetched for one read, "
        f"{numbers['seeks']:.0f} seeks, {numbers['cache_hits']:.0f} reads served at once, "
        f"{numbers['waits']:.0f} waited {numbers['waited_seconds']:.1f} s in all, {numbers['retries']:.0f} retries, "
        f"{numbers['errors']:.0f} errors"
    )
