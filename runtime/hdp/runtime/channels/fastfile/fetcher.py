"""Threads that fetch parts, the most urgent first.

Each thread is a connection. Small objects want many, since each costs a round trip; large parts few, since each costs
memory: S3 gives a connection 60 to 90 MB/s, so 16 fill 10 Gbit/s.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections.abc import Callable

from hdp.runtime.channels.fastfile.cache import Part, State, Urgency
from hdp.runtime.channels.fastfile.store import StoreError

log = logging.getLogger(__name__)

THREADS = 64
LARGE_BYTES = 1 << 20
#: Each takes its bytes twice over while it arrives: with 16 and 8 more, 16 readers took 699 MiB; with these 598.
LARGE_AT_ONCE = 15
#: Beyond those, so that what somebody waits for never queues behind other people's windows.
_SPARE = 2

_Job = tuple[int, int, Part]


class Fetcher:
    """The threads. `fetch` gets a part's bytes; `arrived` takes them, or the error. `lock` is the cache's."""

    def __init__(
        self,
        lock: threading.Lock,
        fetch: Callable[[Part], memoryview],
        arrived: Callable[[Part, memoryview | None, StoreError | None], None],
        threads: int = THREADS,
    ) -> None:
        self._fetch = fetch
        self._arrived = arrived
        self._most = threads
        self._ready = threading.Condition(lock)
        self._small: list[_Job] = []
        self._large: list[_Job] = []
        self._order = itertools.count()
        self._threads = 0
        self._idle = 0
        self._large_running = 0
        self._ended = False

    def enqueue(self, part: Part) -> None:
        """Fetch a part soon. Again: it has become more urgent. The caller holds the lock."""
        heapq.heappush(self._large if part.size > LARGE_BYTES else self._small, _job(part, next(self._order)))
        if self._idle:
            self._wake()
        elif self._threads < self._most:
            self._threads += 1
            threading.Thread(target=self._run, name="hdp-fetch", daemon=True).start()

    def end(self) -> None:
        """Start nothing more. What is being fetched is left to end by itself."""
        with self._ready:
            self._ended = True
            self._ready.notify_all()

    def _run(self) -> None:
        while (part := self._next()) is not None:
            data: memoryview | None = None
            error: StoreError | None = None
            try:
                data = self._fetch(part)
            except StoreError as exc:
                error = exc
            except Exception as exc:
                log.exception("a part can't be fetched")
                error = StoreError(f"{type(exc).__name__}: {exc}")
            if part.size > LARGE_BYTES:
                with self._ready:
                    self._large_running -= 1
                    if self._idle:
                        self._wake()
            self._arrived(part, data, error)

    def _next(self) -> Part | None:
        with self._ready:
            while not self._ended:
                part = self._pop()
                if part is not None:
                    part.state = State.RUNNING
                    return part
                self._idle += 1
                self._ready.wait()
            return None

    def _wake(self) -> None:
        """Have an idle thread look again. It counts as busy from now on, though it needs a moment to wake."""
        self._idle -= 1
        self._ready.notify()

    def _pop(self) -> Part | None:
        for jobs in (self._small, self._large):
            while jobs and (jobs[0][2].state is not State.QUEUED or jobs[0][2].urgency != jobs[0][0]):
                heapq.heappop(jobs)
        large = bool(self._large) and self._large_running < self._limit(self._large[0])
        if large and not (self._small and self._small[0] < self._large[0]):
            self._large_running += 1
            return heapq.heappop(self._large)[2]
        return heapq.heappop(self._small)[2] if self._small else None

    @staticmethod
    def _limit(job: _Job) -> int:
        return LARGE_AT_ONCE + (_SPARE if job[0] == Urgency.WAITED_FOR else 0)


def _job(part: Part, order: int) -> _Job:
    return int(part.urgency), order, part
