"""What the library doesn't serve goes through an inner gloo process group, and says so."""

# torch's stubs leave out what its own callers use.
# mypy: disable-error-code="attr-defined, call-arg, assignment"

from __future__ import annotations

import logging
import os
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from hdp.collectives import Group
from hdp.contract import env
from hdp.contract.errors import CollectiveError
from hdp.contract.zipping import zip_strict
from hdp.torch.work import JoinedWork

logger = logging.getLogger(__name__)

#: gloo's names of calls that it has by older names, or for one tensor at a time only.
_OLD_NAMES = {
    "all_gather_single": "_allgather_base",
    "all_to_all_single": "alltoall_base",
    "reduce_scatter_single": "_reduce_scatter_base",
}
_ONE_BY_ONE = {
    "all_gather_single_coalesced": "all_gather_single",
    "reduce_scatter_single_coalesced": "reduce_scatter_single",
}
_LET_GO_SECONDS = 0.2
_told: set[tuple[str, str]] = set()


class Gloo:
    """The inner gloo process group of a group."""

    def __init__(self, group: Group, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        self.backend = _connect(group, store, rank, size, timeout)
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
        own = self._method(method)
        if own is not None:
            return own(*arguments, **named)
        outputs, inputs, opts = arguments
        one = self._method(_ONE_BY_ONE[method])
        return JoinedWork([one(o, i, opts) for o, i in zip_strict(outputs, inputs)])

    def let_go(self) -> None:
        """Before the group is destroyed.

        gloo's threads need the GIL to let go of the last operation's tensors, and torch holds it while it waits for
        them to end: they get a moment before that.
        """
        if self._used:
            time.sleep(_LET_GO_SECONDS)

    def _method(self, name: str) -> Any:
        return getattr(self.backend, name, None) or getattr(self.backend, _OLD_NAMES.get(name, name), None)


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
