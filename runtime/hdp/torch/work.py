"""One operation in flight, as torch sees it.

What torch demands of a work's future, each found by a crash or a hang and kept by a test: the value is a *list* of
tensors; an error must come out of a ``then`` callback, since ``set_exception`` on a future that DDP waits for ends
the process. Who completes it is in `hdp.torch.completions`; what its callbacks may do in `hdp.torch.callbacks`.

With tensors on a device, `wait` makes the caller's current stream wait and returns. What is left to do then
(`finish`) is put into the stream of whoever comes first: one that waits, or a side stream, from the thread that sees
the operation complete; the streams of all who wait later wait for its event. Since `wait` has returned by then, an
error that comes later is raised by the group's next operation (`hdp.torch.runner`); until then what was read from the
outputs is undefined.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from hdp.collectives import Communicator
from hdp.contract.errors import CollectiveTimeout, HdpError
from hdp.torch import callbacks, threads
from hdp.torch.devices import Origin


class HdpWork(dist.Work):
    """One torch operation: one or more collectives, and what is left to do with their results."""

    def __init__(
        self,
        comm: Communicator,
        outputs: list[torch.Tensor],
        keep: Sequence[torch.Tensor] = (),
        finish: Sequence[Callable[[], None]] = (),
        origin: Origin | None = None,
    ) -> None:
        super().__init__()
        self._comm = comm
        self.path = ""
        """Names this operation on every rank, for the tags of what its callbacks start."""
        self._origin = origin
        self._outputs = outputs
        self._keep = list(keep)  # memory that the core reads or writes
        self._finish = list(finish)
        self._finished: Any = None  # the event after `finish`
        self._tickets: list[int] = []
        self._left = 0
        self._error: Exception | None = None
        self._settled = False
        self.passed = False
        """Whether a `wait` has returned that only a stream waits in."""
        self._lock = threading.Lock()
        self._token: torch.futures.Future[None] | None = None
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None
        self.on_settled: Callable[[HdpWork, Exception | None], None] | None = None

    def add_ticket(self, ticket: int) -> None:
        """One more collective belongs to this work."""
        self._tickets.append(ticket)
        self._left += 1

    @property
    def started(self) -> bool:
        """Whether the core has anything of this work, and so may use its memory."""
        return bool(self._tickets)

    @property
    def settled(self) -> bool:
        """Whether the results, or the error, are there, and the core has nothing of this work any more."""
        return self._settled

    @property
    def on_device(self) -> bool:
        """Whether its tensors are a device's."""
        return self._origin is not None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until complete; with tensors on a device and no `timeout`, only what comes in the current stream.

        Raises the operation's error, or CollectiveTimeout after `timeout`.
        """
        seconds = timeout.total_seconds() if timeout is not None and timeout.total_seconds() > 0 else None
        if seconds is None and self._origin is not None and self._wait_in_stream(self._origin):
            return True
        return self.wait_on_host(seconds)

    def wait_on_host(self, seconds: float | None = None) -> bool:
        """Block this thread until complete. Raises as `wait` does."""
        fine = True
        for ticket in [] if self._settled else list(self._tickets):
            try:
                complete = self._comm.wait(ticket, seconds)
            except HdpError:
                fine = False  # settle() has the error, and knows what another thread has settled already
                break
            if not complete:
                raise CollectiveTimeout(f"not complete after {seconds} s; the operation goes on")
        self.settle(fine, waiting=True)
        self._end_wait()
        return True

    def _wait_in_stream(self, origin: Origin) -> bool:
        """Make the current stream wait, unless the device can't, or the operation is over."""
        stream = origin.cuda.current(origin.device)
        handle = origin.cuda.handle(stream)
        try:
            if self._settled or not all(self._comm.stream_wait(t, handle) for t in list(self._tickets)):
                return False
        except HdpError:
            return False  # settle() knows why
        with self._lock:
            if self._settled:
                return False
            self._run_finish(stream)
            self.passed = self._error is None
        self._end_wait()
        return True

    def _end_wait(self) -> None:
        """Raise the error; else the current stream waits for what was left to do."""
        if self._error is not None:
            raise self._error
        if self._origin is not None and self._finished is not None:
            self._origin.cuda.wait(self._origin.cuda.current(self._origin.device), self._finished)

    def settle(self, fine: bool = False, waiting: bool = False) -> None:
        """All collectives are complete: finish, once, and release what was kept.

        fine: this thread has seen that none has an error. waiting: its current stream needs the results.
        """
        with self._lock:
            if self._settled:
                return
            for ticket in self._tickets:
                try:
                    if not fine:
                        self._comm.wait(ticket)
                except HdpError as exc:
                    self._error = self._error or _with_advice(exc)
                self._comm.release(ticket)
            if self._error is None:
                self._run_finish(self._stream(waiting))
            self._keep.clear()
            self._finish.clear()
            self._settled = True
        if self.on_settled is not None:
            self.on_settled(self, self._error)

    def _stream(self, waiting: bool) -> Any:
        if self._origin is None:
            return None
        cuda, device = self._origin.cuda, self._origin.device
        return cuda.current(device) if waiting else cuda.side(device)

    def _run_finish(self, stream: Any) -> None:
        actions, self._finish = self._finish, []
        try:
            if self._origin is None:
                for action in actions:
                    action()
            elif actions:
                cuda = self._origin.cuda
                with cuda.on(stream):
                    for action in actions:
                        action()
                cuda.used(self._keep, stream)
                self._finished = cuda.record(stream)
        except Exception as exc:  # a work that never settles would hang whoever waits for it
            self._error = exc

    def is_completed(self) -> bool:
        """Whether `wait` would return at once."""
        if self._settled:
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
        """Same as `wait`."""
        self.wait()

    def block_current_stream(self) -> None:
        """Same as `wait`."""
        self.wait()

    def get_future(self) -> Any:
        """A future of the list of output tensors."""
        with self._lock:
            if self._future is None:
                self.make_future()
                threads.start(self._comm, self.complete_future, "hdp-future")
        return self._future

    def make_future(self) -> None:
        """From now on there is a future; `complete_future` must be called."""
        origin = self._origin
        self._token = torch.futures.Future() if origin is None else origin.cuda.future(origin.device)
        self._future = self._token.then(self._value)
        callbacks.name(self._future, self.path)

    def _value(self, _: Any) -> list[torch.Tensor]:
        self._end_wait()
        return self._outputs

    def complete_future(self) -> None:
        """Settle, then run the future's callbacks in this thread. Once: later calls do nothing."""
        self.settle()
        with self._lock:
            token, self._token = self._token, None
        if token is not None:
            token.set_result(None)

    def one_done(self) -> bool:
        """A collective of this work is complete; true for the last one."""
        self._left -= 1
        return self._left == 0


def _with_advice(error: HdpError) -> HdpError:
    if type(error) is not CollectiveTimeout:
        return error
    advice = "the timeout is that of the call, or of its group: init_process_group(timeout=), new_group(timeout=)"
    return CollectiveTimeout(f"{error}; {advice}").with_traceback(error.__traceback__)


class JoinedWork(dist.Work):
    """Several works as one."""

    def __init__(self, works: Sequence[Any]) -> None:
        super().__init__()
        self._works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for all."""
        for work in self._works:
            work.wait(*([timeout] if timeout is not None else []))
        return True

    def is_completed(self) -> bool:
        """Whether all are complete."""
        return all(w.is_completed() for w in self._works)

    def is_success(self) -> bool:
        """Whether all are complete and without an error."""
        return all(w.is_success() for w in self._works)

    def result(self) -> list[torch.Tensor]:
        """All output tensors."""
        return [t for w in self._works for t in w.result()]

    def synchronize(self) -> None:
        """Same as `wait`."""
        self.wait()

    def block_current_stream(self) -> None:
        """Same as `wait`."""
        self.wait()

    def get_future(self) -> Any:
        """A future of all output tensors."""
        joined = torch.futures.collect_all([w.get_future() for w in self._works])
        return joined.then(self._value)

    def _value(self, joined: Any) -> list[torch.Tensor]:
        values = [t for f in joined.value() for t in f.value()]
        self.wait()  # they are complete; the current stream needs all of them
        return values
