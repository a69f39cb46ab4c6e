"""Operations of several steps, each of which needs the results of the one before.

The steps are a generator of `Call`: it is resumed once the call that it gave is complete. The first is started at
once, in the order of the group's operations; the others by the thread that completes its future, with tags that are
the same on every rank (`hdp.torch.callbacks`). With tensors on a device that thread goes on in the caller's stream,
where the caller must not use the tensors before ``wait()`` anyway: so all memory is of that stream.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from hdp.contract.errors import CollectiveTimeout
from hdp.torch.call import Call
from hdp.torch.devices import Origin
from hdp.torch.work import HdpWork


class StagedWork(dist.Work):
    """An operation of several steps, in flight."""

    def __init__(
        self,
        start: Callable[[Call, bool], HdpWork],
        steps: Iterator[Call],
        outputs: list[torch.Tensor],
        origin: Origin | None = None,
    ) -> None:
        """start: starts a call, whose work has a future if the second argument says so.

        Raises what the first step raises, before anything is started.
        """
        super().__init__()
        self._start, self._steps, self._outputs, self._origin = start, steps, outputs, origin
        self._error: Exception | None = None
        self._finished: Any = None  # the event after the last step
        self._complete = threading.Event()
        self._first = start(next(steps), True)
        self._future = self._first.get_future().then(self._go_on)

    def _go_on(self, _: Any) -> list[torch.Tensor]:
        origin = self._origin
        try:
            with nullcontext() if origin is None else origin.resumed():
                self._first.wait_on_host()
                for call in self._steps:
                    self._start(call, False).wait_on_host()
            if origin is not None:
                self._finished = origin.cuda.record(origin.stream)
        except Exception as exc:
            self._error = exc
            raise
        finally:
            self._complete.set()
        return self._outputs

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until complete. Raises the operation's error, or CollectiveTimeout after `timeout`."""
        seconds = timeout.total_seconds() if timeout is not None and timeout.total_seconds() > 0 else None
        if not self._complete.wait(seconds):
            raise CollectiveTimeout(f"not complete after {seconds} s; the operation goes on")
        if self._error is not None:
            raise self._error
        if self._origin is not None:
            cuda, device = self._origin.cuda, self._origin.device
            cuda.wait(cuda.current(device), self._finished)
        return True

    def is_completed(self) -> bool:
        """Whether `wait` would return at once."""
        return self._complete.is_set()

    def is_success(self) -> bool:
        """Complete and without an error."""
        return self._complete.is_set() and self._error is None

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
        return self._future
