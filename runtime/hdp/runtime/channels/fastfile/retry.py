"""Tries again what may succeed the next time: 5xx, time-outs, broken connections. What can't is raised at once."""

from __future__ import annotations

import random
import threading
from datetime import timedelta

from hdp.runtime.channels.fastfile.stats import Stats
from hdp.runtime.channels.fastfile.store import Store, StoreError, Transient
from hdp.runtime.channels.keys import Entry

#: 0.1 s, 0.2 s, ... 3.2 s, each with as much again by chance, so that readers don't come back all at once: about
#: 10 s, as long as S3 takes to move a busy prefix to more servers, by the "503 Slow Down" that users report.
TRIES = 7
FIRST_WAIT = timedelta(milliseconds=100)


class RetryingStore:
    """Another store, with patience."""

    def __init__(self, store: Store, stats: Stats, tries: int = TRIES, first_wait: timedelta = FIRST_WAIT) -> None:
        self._store = store
        self._stats = stats
        self._tries = tries
        self._first_wait = first_wait.total_seconds()
        self._ended = threading.Event()

    @property
    def stats(self) -> Stats:
        """What it has counted."""
        return self._stats

    def get(self, entry: Entry, start: int, end: int) -> memoryview:
        """As the other store. Raises StoreError; Transient only after the last try."""
        for n in range(self._tries - 1):
            try:
                return self._get(entry, start, end)
            except Transient:
                if self._ended.wait(self._first_wait * 2**n * (1 + random.random())):
                    raise
                self._stats.add(retries=1)
        return self._get(entry, start, end)

    def uri(self, entry: Entry) -> str:
        """As the other store says."""
        return self._store.uri(entry)

    def end(self) -> None:
        """Wait for nothing any more."""
        self._ended.set()

    def _get(self, entry: Entry, start: int, end: int) -> memoryview:
        self._stats.add(gets=1)
        data = self._store.get(entry, start, end)
        if len(data) != end - start:
            raise StoreError(f"{len(data)} bytes arrived, {end - start} were expected")
        self._stats.add(fetched_bytes=len(data))
        return data
