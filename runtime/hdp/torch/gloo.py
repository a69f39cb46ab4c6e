"""What the library doesn't serve goes through an inner gloo process group, and says so."""

# torch's stubs leave out what its own callers use.
# mypy: disable-error-code="attr-defined, call-arg, assignment"

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from hdp.collectives import Group
from hdp.contract import env
from hdp.contract.errors import CollectiveError
from hdp.torch.devices import Cuda

logger = logging.getLogger(__name__)

_MESSAGES = "a receive from any source can't be mixed with the library's messages"
_COPIED = ", and gloo copies a device's tensors through pageable memory"
_LET_GO_SECONDS = 0.2
_told: set[tuple[str, str]] = set()


class Gloo:
    """The inner gloo process group of a group."""

    def __init__(self, group: Group, store: Any, rank: int, size: int, timeout: timedelta, cuda: Cuda) -> None:
        self.backend = _connect(group, store, rank, size, timeout)
        self._cuda = cuda
        self._used = False

    @property
    def timeout(self) -> timedelta:
        """How long operations may take: gloo's, which torch sets where it sets that of a group."""
        return self.backend.options._timeout  # type: ignore[no-any-return]

    @timeout.setter
    def timeout(self, timeout: timedelta) -> None:
        self.backend._set_default_timeout(timeout)

    def call(self, method: str, reason: str, *arguments: Any, **named: Any) -> Any:
        """``method(*arguments)``, logged once in a process for each method and reason."""
        self._used = True
        if (method, reason) not in _told:
            _told.add((method, reason))
            plain = ", which does not encrypt" if os.environ.get(env.ENCRYPT.name) == "1" else ""
            logger.warning("backend hdp: %s goes through gloo%s: %s", method, plain, reason)
        return getattr(self.backend, method)(*arguments, **named)

    def message(self, method: str, tensors: Sequence[torch.Tensor], *arguments: Any) -> Any:
        """A send or a receive. A device's tensors are copied, since gloo reads and writes host memory."""
        if all(self._cuda.ordinal(t) is None for t in tensors):
            return self.call(method, _MESSAGES, tensors, *arguments)
        sends = method == "send"
        copies = [torch.empty(t.shape, dtype=t.dtype, device="cpu") for t in tensors]
        if sends:
            for t, copied in zip(tensors, copies):
                copied.copy_(t.detach())
        work = self.call(method, _MESSAGES + _COPIED, copies, *arguments)
        return CopiedWork(work, [] if sends else list(zip(tensors, copies)))

    def let_go(self) -> None:
        """Before the group is destroyed.

        gloo's threads need the GIL to let go of the last operation's tensors, and torch holds it while it waits for
        them to end: they get a moment before that.
        """
        if self._used:
            time.sleep(_LET_GO_SECONDS)


class CopiedWork(dist.Work):
    """A message whose tensors gloo has copies of."""

    def __init__(self, work: Any, received: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """received: tensors, each with its copy, that get what it holds once `work` is complete."""
        super().__init__()
        self._work, self._received = work, received
        self._lock = threading.Lock()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until the message is there; what is received is then in the current stream."""
        self._work.wait(*([timeout] if timeout is not None else []))
        with self._lock:
            received, self._received = self._received, []
        for tensor, copied in received:
            tensor.detach().copy_(copied)
        return True

    def is_completed(self) -> bool:
        """Whether `wait` would return at once."""
        return bool(self._work.is_completed())

    def is_success(self) -> bool:
        """Complete and without an error."""
        return bool(self._work.is_success())

    def synchronize(self) -> None:
        """Same as `wait`."""
        self.wait()

    def _source_rank(self) -> int:
        """Who sent it."""
        return int(self._work._source_rank())

    source_rank = _source_rank


def _connect(group: Group, store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    layout = group.comm.layout
    options = dist.ProcessGroupGloo._Options()
    options._timeout = timeout
    # The address that the servers use; a host's own name may not resolve.
    address = layout.hosts[layout.host_of(group.comm.rank)].address
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
    try:
        return dist.ProcessGroupGloo(store, rank, size, options)
    except RuntimeError as exc:
        raise CollectiveError(f"the inner gloo process group could not connect over {address}: {exc}") from exc
