"""One call in flight through the local tier, as torch sees it.

The tier's thread issues it, in the order of the group's calls: first what all ranks must agree on (`guard`), then
what happens inside the host and between hosts, each in a stream that waits for the one before. So `wait` blocks its
caller until the call is issued, which is when every rank has made it, and then only the caller's current stream.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from hdp.contract.errors import CollectiveTimeout, HdpError
from hdp.contract.zipping import zip_strict
from hdp.torch import callbacks
from hdp.torch.call import Call, Request
from hdp.torch.devices import Origin
from hdp.torch.runner import Runner
from hdp.torch.tier_pieces import Tiered
from hdp.torch.work import HdpWork


class TierWork(dist.Work):
    """A call in several pieces."""

    def __init__(
        self, call: Tiered, guard: HdpWork, origin: Origin, path: str, told: Callable[[Exception, bool], None]
    ) -> None:
        """guard: completes once all ranks have made this call. told: is given an error; late: after `wait` returned."""
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
            with torch.inference_mode():  # in which the caller's tensors may have been made
                exchanges = self._begin(runner, before, seconds)
                self._end(exchanges, before, after)
        except Exception as exc:  # whoever waits is told
            self._fail(exc)
        self._issued.set()
        self._one_done()

    def abandon(self, error: Exception) -> None:
        """It will not be issued."""
        self._fail(error)
        self._issued.set()
        self._one_done()

    def _begin(self, runner: Runner, before: Any, seconds: float) -> list[HdpWork | None]:
        cuda = self._origin.cuda
        there = Origin(cuda, self._origin.device, before)
        cuda.wait(before, self._ready)
        exchanges: list[HdpWork | None] = []
        with cuda.on(before):
            for piece in self._call.pieces:
                if piece.before is not None:
                    piece.before()
                request = piece.exchange
                exchanges.append(None if request is None else self._exchange(runner, request, there, seconds))
        return exchanges

    def _end(self, exchanges: list[HdpWork | None], before: Any, after: Any) -> None:
        """Also where an exchange has failed: the other ranks of the host come to what is after it, and would hang."""
        cuda = self._origin.cuda
        cuda.wait(after, cuda.record(before))
        with cuda.on(after):
            for piece, exchange in zip_strict(self._call.pieces, exchanges):
                if exchange is not None:
                    with suppress(HdpError):  # `_exchanged` tells
                        exchange.wait()
                if piece.after is not None:
                    piece.after()
            self._finished = cuda.record(after)
        memory = [t for piece in self._call.pieces for t in piece.memory]
        cuda.used(memory, before)
        cuda.used(memory, after)

    def _exchange(self, runner: Runner, request: Request, there: Origin, seconds: float) -> HdpWork | None:
        with self._lock:
            self._left += 1
        outputs = [] if request.target is None else [request.target]
        try:
            work = runner.start(Call([request], outputs), there, seconds, True)
        except HdpError as exc:
            self._fail(exc)
            self._one_done()
            return None
        work.get_future().add_done_callback(self._exchanged)
        return work

    def _fail(self, error: Exception) -> None:
        with self._lock:
            first, self._error, late = self._error is None, self._error or error, self._passed
        if first:
            self._told(error, late)

    # ---- threads that complete futures

    def _exchanged(self, future: Any) -> None:
        try:
            future.value()
        except Exception as exc:
            self._fail(exc)
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
            self._passed = self._error is None
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
