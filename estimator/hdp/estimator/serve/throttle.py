"""Refuses calls that come too fast, as the service does, so that clients can be tried against it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from hdp.estimator.serve.errors import ServiceError


class Throttle:
    """So many calls a second are let through, and as many at once."""

    def __init__(self, per_second: float | None, now: Callable[[], float] = time.monotonic) -> None:
        """per_second: None lets everything through. now: seconds."""
        self._per_second = per_second
        self._now = now
        self._lock = threading.Lock()
        self._left = max(1.0, per_second or 0.0)
        self._at = now()

    def admit(self) -> None:
        """Count one call. Raises ServiceError where it is one too many."""
        if self._per_second is None:
            return
        with self._lock:
            now = self._now()
            self._left = min(max(1.0, self._per_second), self._left + (now - self._at) * self._per_second)
            self._at = now
            if self._left < 1:
                raise ServiceError("ThrottlingException", "Rate exceeded")
            self._left -= 1
