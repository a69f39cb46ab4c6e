"""Threads that run the callbacks of futures.

The interpreter takes a thread that is still there when it ends out of whatever it does. One that completes a future
is within torch's C++ code then, which ends the process with SIGABRT. So they are waited for before.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

#: A callback that takes longer isn't waited for.
_PATIENCE_SECONDS = 30.0
_alive: set[threading.Thread] = set()


def start(run: Callable[[], None], name: str) -> None:
    """Call `run` in a thread of its own."""

    def body() -> None:
        try:
            run()
        finally:
            _alive.discard(threading.current_thread())

    thread = threading.Thread(target=body, name=name, daemon=True)
    _alive.add(thread)
    thread.start()


def join_all() -> None:
    """Wait until all have ended, but for the caller's own."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    for thread in list(_alive):
        if thread is not threading.current_thread():
            thread.join(max(0.0, deadline - time.monotonic()))
