"""Threads that run the callbacks of futures.

The interpreter takes a thread that is still there when it ends out of whatever it does. One that completes a future
is within torch's C++ code then, which ends the process with SIGABRT. So they are waited for before.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from hdp.collectives import Communicator

#: A callback that takes longer isn't waited for.
_PATIENCE_SECONDS = 30.0
_alive: dict[threading.Thread, Communicator] = {}


def start(comm: Communicator, run: Callable[[], None], name: str) -> None:
    """Call `run` in a thread of its own, for a future of an operation of `comm`."""

    def body() -> None:
        try:
            run()
        finally:
            _alive.pop(threading.current_thread(), None)

    thread = threading.Thread(target=body, name=name, daemon=True)
    _alive[thread] = comm
    thread.start()


def join_all(comm: Communicator) -> None:
    """Wait until those of a closed communicator have ended, but for the caller's own."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    for thread, theirs in list(_alive.items()):
        if theirs is comm and thread is not threading.current_thread():
            thread.join(max(0.0, deadline - time.monotonic()))
