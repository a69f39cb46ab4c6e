"""Operations in flight, as torch sees them: `HdpWork`, its future, and the threads that complete futures.

What torch demands of futures, each found by a crash or a hang (and kept by a test): the value is a *list* of tensors;
an error must come out of a ``then`` callback, since ``set_exception`` on a future that DDP waits for ends the process;
and a callback may itself start and await another operation (PowerSGD does), so futures are completed by threads
that move no data, and there is always an idle one left.

Callbacks of different operations run at the same time, in another order on every rank. So what a callback starts is
not matched by its place in the group's sequence, but by a tag: the operation whose callback it is, and a count.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from hdp.collectives import Communicator
from hdp.contract.errors import CollectiveError, CollectiveTimeout, HdpError

_LONG_TAG = 48


class HdpWork(dist.Work):
    """One torch operation: one or more collectives, and what is left to do with their results."""

    def __init__(
        self,
        comm: Communicator,
        outputs: list[torch.Tensor],
        keep: Sequence[torch.Tensor] = (),
        finish: Sequence[Callable[[], None]] = (),
    ) -> None:
        super().__init__()
        self._comm = comm
        self.path = ""
        """Names this operation on every rank, for the tags of what its callbacks start."""
        self._outputs = outputs
        self._keep = list(keep)  # memory that the core reads or writes
        self._finish = list(finish)
        self._tickets: list[int] = []
        self._left = 0
        self._error: HdpError | None = None
        self._settled = threading.Event()
        self._lock = threading.Lock()
        self._token: torch.futures.Future[None] | None = None
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until complete. Raises the operation's error, or CollectiveTimeout after `timeout`."""
        seconds = timeout.total_seconds() if timeout is not None and timeout.total_seconds() > 0 else None
        for ticket in list(self._tickets):
            try:
                complete = self._comm.wait(ticket, seconds)
            except HdpError:
                break  # settle() has the error, and knows what another thread has settled already
            if not complete:
                raise CollectiveTimeout(f"not complete after {seconds} s; the operation goes on")
        self.settle()
        if self._error is not None:
            raise self._error
        return True

    def settle(self) -> None:
        """All collectives are complete: finish, once, and release what was kept."""
        with self._lock:
            if self._settled.is_set():
                return
            for ticket in self._tickets:
                try:
                    self._comm.wait(ticket)
                except HdpError as exc:
                    self._error = self._error or exc
                self._comm.release(ticket)
            if self._error is None:
                for action in self._finish:
                    action()
            self._keep.clear()
            self._finish.clear()
            self._settled.set()

    def is_completed(self) -> bool:
        """Whether `wait` would return at once."""
        if self._settled.is_set():
            return True
        try:
            return all(self._comm.wait(t, 0) for t in list(self._tickets))
        except HdpError:
            return True

    def is_success(self) -> bool:
        """Complete and without an error."""
        if not self.is_completed():
            return False
        self.settle()
        return self._error is None

    def result(self) -> list[torch.Tensor]:
        """The output tensors."""
        return self._outputs

    def synchronize(self) -> None:
        """Same as `wait`; there is no device stream."""
        self.wait()

    def get_future(self) -> Any:
        """A future of the list of output tensors."""
        with self._lock:
            if self._future is None:
                self._make_future()
                threading.Thread(target=self.complete_future, daemon=True).start()
        return self._future

    def _make_future(self) -> None:
        self._token = torch.futures.Future()
        self._future = self._token.then(self._value)

    def _value(self, _: Any) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return self._outputs

    def complete_future(self) -> None:
        """Settle, then run the future's callbacks in this thread."""
        self.settle()
        if self._token is not None:
            with _callbacks_of(self.path):
                self._token.set_result(None)

    def one_done(self) -> bool:
        """A collective of this work is complete; true for the last one."""
        self._left -= 1
        return self._left == 0


class _Context(threading.local):
    path = ""
    started = 0


_context = _Context()


@contextmanager
def _callbacks_of(path: str) -> Iterator[None]:
    before = (_context.path, _context.started)
    _context.path, _context.started = path, 0
    try:
        yield
    finally:
        _context.path, _context.started = before


def callback_tag() -> str | None:
    """The tag for an operation that is started now: None, unless a callback starts it."""
    if not _context.path:
        return None
    _context.started += 1
    tag = f"{_context.path}>{_context.started}"
    # A callback of a callback of ...: long, so shortened the same way on every rank.
    return tag if len(tag) < _LONG_TAG else hashlib.sha256(tag.encode()).hexdigest()[:_LONG_TAG]


class Completions:
    """Completes futures of a communicator's operations, on threads of its own."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._lock = threading.Lock()
        self._works: dict[int, HdpWork] = {}
        self._idle = 0
        self._closed = False
        self._threads: list[threading.Thread] = []

    def start(self, work: HdpWork, starts: Sequence[Callable[[bool], int]], asynchronous: bool) -> HdpWork:
        """Start the collectives of `work` (each called with ``notify``). Asynchronous work gets a future."""
        if not asynchronous:
            work._tickets.extend(start(False) for start in starts)
            return work
        with self._lock:  # a ticket may complete before it is in the table
            work._make_future()
            for start in starts:
                ticket = start(True)
                work._tickets.append(ticket)
                self._works[ticket] = work
            work._left = len(work._tickets)
            if self._idle == 0:
                self._add_thread()
        if not starts:
            work.complete_future()
        return work

    def _add_thread(self) -> None:
        self._idle += 1
        thread = threading.Thread(target=self._run, name="hdp-futures", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self) -> None:
        while True:
            try:
                ticket = self._comm.next_done()
            except CollectiveError:
                return
            if ticket is None:
                continue
            with self._lock:
                work = self._works.pop(ticket)
                if not work.one_done():
                    continue
                self._idle -= 1
                if self._idle == 0 and not self._closed:
                    self._add_thread()  # a callback may wait for the next operation
            work.complete_future()
            with self._lock:
                if self._idle >= 1:
                    return  # another took this one's place
                self._idle += 1

    def close(self) -> None:
        """End the threads; futures that are not complete fail."""
        with self._lock:
            self._closed = True
        self._comm.interrupt()
