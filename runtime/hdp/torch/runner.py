"""Starts calls in one group of the library, and remembers what failed after its ``wait()`` had returned.

An operation on a device's tensors can fail when nobody waits for it any more (`hdp.torch.work`). That is logged at
once, and raised by whatever is called next in the group: the operation itself, and those after it, left undefined
numbers behind.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from hdp.collectives import Group
from hdp.contract.errors import CollectiveError, HdpError
from hdp.contract.zipping import zip_strict
from hdp.torch import callbacks
from hdp.torch.call import Call, Request
from hdp.torch.completions import Completions
from hdp.torch.devices import Origin
from hdp.torch.work import HdpWork

logger = logging.getLogger(__name__)

_LATE = " after its wait() had returned"


class Runner:
    """A group's calls in flight."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.completions = Completions.of(group.comm)
        self._started = 0
        self._failure: Exception | None = None
        self._raised = False
        self._when = ""

    def start(self, call: Call, origin: Origin | None, seconds: float, asynchronous: bool) -> HdpWork:
        """Start what `call` needs; `seconds`: for all ranks to come. Asynchronous work has a future at once.

        origin: where the tensors are; their stream is the one that was current when they were written.
        """
        memory = [t for r in call.requests for t in (r.source, r.target) if t is not None]
        work = HdpWork(self.group.comm, call.outputs, [*call.outputs, *memory], call.finish, origin)
        work.on_settled = self._settled
        tags = [callbacks.tag() for _ in call.requests]
        nested = next((t for t in tags if t), None)
        if nested is None:
            self._started += 1  # counts the same on every rank, as the callbacks' operations don't
        work.path = nested or f"{self.group.id:x}.{self._started}"
        starts = [partial(self._submit, r, tag, origin, seconds) for r, tag in zip_strict(call.requests, tags)]
        return self.completions.start(work, starts, asynchronous)

    def check(self) -> None:
        """Raise the error of an earlier operation after which the group is of no use: see `fail`."""
        if self._failure is None:
            return
        self._raised = True
        kind = type(self._failure) if isinstance(self._failure, HdpError) else CollectiveError
        raise kind(f"an earlier operation failed{self._when}: {self._failure}") from self._failure

    def fail(self, error: Exception, late: bool) -> None:
        """An operation has failed; late: after its ``wait()`` had returned, so nothing has raised `error` yet."""
        if self._failure is None:
            self._failure, self._raised = error, not late
            self._when = _LATE if late else ""
            if late:
                logger.error("backend hdp: an operation failed%s: %s", _LATE, error)

    def end(self) -> None:
        """The last `check`: raises what nothing has raised yet."""
        if not self._raised:
            self.check()

    def _settled(self, work: HdpWork, error: Exception | None) -> None:
        if error is not None and work.passed:
            self.fail(error, late=True)

    def _submit(self, request: Request, tag: str | None, origin: Origin | None, seconds: float, notify: bool) -> int:
        source, target = request.source, request.target
        dtype, lanes = request.carrier
        there = origin if source is not None or target is not None else None
        return self.group.start(
            request.kind,
            dtype,
            source.data_ptr() if source is not None else 0,
            target.data_ptr() if target is not None else 0,
            request.count * lanes,
            op=request.op,
            root=request.root,
            send_counts=_times(request.send_counts, lanes),
            recv_counts=_times(request.recv_counts, lanes),
            tag=tag,
            timeout=seconds,
            notify=notify,
            once=tag is not None,
            device=None if there is None else there.device,
            stream=0 if there is None else there.handle,
        )


def _times(counts: Sequence[int] | None, lanes: int) -> Sequence[int] | None:
    return counts if counts is None or lanes == 1 else [n * lanes for n in counts]
