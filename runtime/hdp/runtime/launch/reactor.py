"""The agent's one loop: pipes, process ends, signals and messages from other threads, each handled in the main thread.

`post` may be called from any thread and from a signal handler; everything else only from the loop's own thread. Nobody
spins: the loop sleeps in `select` until something happened or a timer is due.
"""

from __future__ import annotations

import os
import queue
import selectors
import time
from collections.abc import Callable

Callback = Callable[[], None]


class Timer:
    """Calls a function every so often. `cancel` ends it."""

    def __init__(self, seconds: float, callback: Callback) -> None:
        self.seconds = seconds
        self.callback = callback
        self.due = time.monotonic() + seconds
        self.cancelled = False

    def cancel(self) -> None:
        """No further calls."""
        self.cancelled = True


class Reactor:
    """Waits for many things at once and calls who is responsible."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._posted: queue.SimpleQueue[Callback] = queue.SimpleQueue()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._woken)
        self._timers: list[Timer] = []

    def watch(self, fd: int, callback: Callback) -> None:
        """Call `callback` whenever `fd` is readable (a pidfd: when its process has ended)."""
        self._selector.register(fd, selectors.EVENT_READ, callback)

    def forget(self, fd: int) -> None:
        """Undo `watch`."""
        self._selector.unregister(fd)

    def every(self, seconds: float, callback: Callback) -> Timer:
        """Call `callback` every `seconds`."""
        timer = Timer(seconds, callback)
        self._timers.append(timer)
        return timer

    def post(self, callback: Callback) -> None:
        """Have the loop call `callback` soon. For other threads and signal handlers."""
        self._posted.put(callback)
        try:
            os.write(self._wake_write, b"x")
        except BlockingIOError:
            return  # the pipe is full, so the loop will wake anyway

    def run_until(self, done: Callable[[], bool], timeout: float | None = None) -> bool:
        """Handle events until `done()`. False if `timeout` seconds passed before. What callbacks raise comes out."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not done():
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                return False
            for key, _ in self._selector.select(self._patience(deadline, now)):
                # An earlier callback of this round may have forgotten the descriptor.
                if key.fd in self._selector.get_map():
                    key.data()
            self._run_timers()
        return True

    def close(self) -> None:
        """Give the loop's own descriptors back."""
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _patience(self, deadline: float | None, now: float) -> float | None:
        due = [t.due for t in self._timers if not t.cancelled] + ([deadline] if deadline is not None else [])
        return max(0.0, min(due) - now) if due else None

    def _run_timers(self) -> None:
        self._timers = [t for t in self._timers if not t.cancelled]
        now = time.monotonic()
        for timer in list(self._timers):
            if timer.due <= now and not timer.cancelled:
                timer.due = now + timer.seconds
                timer.callback()

    def _woken(self) -> None:
        os.read(self._wake_read, 4096)
        while not self._posted.empty():
            self._posted.get()()
