"""One call in flight through the local tier, as torch sees it.

The tier's thread issues it, in the order of the group's calls: first what all ranks must agree on (`guard`), then
what happens inside the host and between hosts, each in a stream that waits for the one before. So `wait` blocks its
caller until the call is issued, which is when every rank has made it, and then only the caller's current stream.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from hdp.contract.errors import CollectiveTimeout
from hdp.torch import callbacks
from hdp.torch.call import Call
from hdp.torch.devices import Origin
from hdp.torch.runner import Runner
from hdp.torch.tier_pieces import Tiered
from hdp.torch.work import HdpWork


class TierWork(dist.Work):
    """A call in several pieces."""

    def __init__(
        self, call: Tiered, guard: HdpWork, origin: Origin, path: str, told: Callable[[Exception], None]
    ) -> None:
        """guard: completes once all ranks have made this call. told: is given an error that comes after `wait`."""
        super().__init__()
        self._call, self._guard, self._origin, self._told = call, guard, origin, told
        self._ready = origin.cuda.record(origin.stream)
        self._lock = threading.Lock()
        self._issued, self._complete = threading.Event(), threading.Event()
        self._left = 1  # exchanges, and one for issuing them
        self._error: Exception | None = None
        self._passed = False
        self._finished: Any = None  # the event after the last piece
        self._token = origin.cuda.future(origin.device)
        self._future = self._token.then(self._value)
        callbacks.name(self._future, path)

    # ---- the tier's thread

    def issue(self, runner: Runner, before: Any, after: Any, seconds: float) -> None:
        """Put it into the streams `before` and `after` the exchange, which `runner` starts. Never raises."""
        try:
            self._guard.wait_on_host()
            self._start(runner, before, after, seconds)
        except Exception as exc:  # whoever waits is told
            self.fail(exc)
        self._issued.set()
        self._one_done()

    def _start(self, runner: Runner, before: Any, after: Any, seconds: float) -> None:
        cuda, device = self._origin.cuda, self._origin.device
        there, exchanges = Origin(cuda, device, before), []
        cuda.wait(before, self._ready)
        with cuda.on(before):
            for piece in self._call.pieces:
                if piece.before is not None:
                    piece.before()
                exchanges.append(None if piece.exchange is None else self._exchange(runner, there, piece, seconds))
        cuda.wait(after, cuda.record(before))
        with cuda.on(after):
            for piece, exchange in zip(self._call.pieces, exchanges):
                if exchange is not None:
                    exchange.wait()
                if piece.after is not None:
                    piece.after()
            self._finished = cuda.record(after)
        memory = [t for piece in self._call.pieces for t in piece.memory]
        cuda.used(memory, before)
        cuda.used(memory, after)

    def _exchange(self, runner: Runner, there: Origin, piece: Any, seconds: float) -> HdpWork:
        with self._lock:
            self._left += 1
        try:
            work = runner.start(Call([piece.exchange], [piece.exchange.target]), there, seconds, True)
        except BaseException:
            with self._lock:
                self._left -= 1
            raise
        work.get_future().add_done_callback(self._exchanged)
        return work

    def fail(self, error: Exception) -> None:
        """It can't be completed, or has failed."""
        with self._lock:
            first, passed = self._error is None, self._passed
            self._error = self._error or error
        if first and passed:
            self._told(error)

    def abandon(self, error: Exception) -> None:
        """It will not be issued."""
        self.fail(error)
        self._issued.set()
        self._one_done()

    # ---- threads that complete futures

    def _exchanged(self, future: Any) -> None:
        try:
            future.value()
        except Exception as exc:
            self.fail(exc)
        self._one_done()

    def _one_done(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left:
                return
        # In a thread of its own: a callback may wait for a call that the tier's thread has yet to issue.
        threading.Thread(target=self._finish, name="hdp-tier-futures", daemon=True).start()

    def _finish(self) -> None:
        self._complete.set()
        self._token.set_result(None)

    def _value(self, _: Any) -> list[torch.Tensor]:
        self._order()
        return self._call.outputs

    # ---- torch.distributed.Work

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Let the current stream wait; with a `timeout`, block until the exchange is complete.

        Raises the operation's error, or CollectiveTimeout after `timeout`.
        """
        seconds = timeout.total_seconds() if timeout is not None and timeout.total_seconds() > 0 else None
        if seconds is None:
            self._issued.wait()
        elif not self._complete.wait(seconds):
            raise CollectiveTimeout(f"not complete after {seconds} s; the operation goes on")
        with self._lock:
            self._passed = True
        self._order()
        return True

    def _order(self) -> None:
        if self._error is not None:
            raise self._error
        cuda, device = self._origin.cuda, self._origin.device
        cuda.wait(cuda.current(device), self._finished)

    def is_completed(self) -> bool:
        """Whether all ranks' exchanges are complete; what comes after them is in a stream."""
        return self._complete.is_set()

    def is_success(self) -> bool:
        """Complete and without an error."""
        return self._complete.is_set() and self._error is None

    def result(self) -> list[torch.Tensor]:
        """The output tensors."""
        return self._call.outputs

    def synchronize(self) -> None:
        """Same as `wait`."""
        self.wait()

    def block_current_stream(self) -> None:
        """Same as `wait`."""
        self.wait()

    def get_future(self) -> Any:
        """A future of the list of output tensors."""
        return self._future
