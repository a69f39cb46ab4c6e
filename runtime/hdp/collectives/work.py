"""An operation in flight."""

from __future__ import annotations

import threading
from collections import deque
from typing import Optional

from hdp.collectives.arrays import Array
from hdp.collectives.communicator import Communicator, Group
from hdp.contract.errors import HdpError

#: Inputs and outputs; None in the place of one that an operation hasn't.
Arrays = tuple[Optional[Array], ...]


class Work:
    """An operation in flight. Its arrays stay alive until it is complete, also where the Work is dropped before."""

    __slots__ = ("__weakref__", "_complete", "_error", "_group", "_keep", "_result", "_ticket")

    def __init__(self, group: Group, keep: Arrays, result: Array | None) -> None:
        """Made before the operation is started, so that `keep` outlasts an interrupt in the middle of that."""
        self._group, self._keep, self._result = group, keep, result
        self._ticket: int | None = None
        self._complete = False
        self._error: HdpError | None = None
        if _dropped:
            _sweep()

    def started(self, ticket: int) -> None:
        """The library has the operation."""
        self._ticket = ticket

    def refused(self) -> None:
        """The library hasn't, so nobody uses the arrays."""
        self._complete = True

    def __del__(self) -> None:
        if not self._complete:  # the library may still use the arrays
            _dropped.append((self._group.comm, self._ticket, self._keep))

    def wait(self, timeout: float | None = None) -> Array | None:
        """The result; None where this rank gets none. `timeout`: seconds to wait; then TimeoutError, and it goes on.

        Raises CollectiveMismatch, CollectiveTimeout, PeerLost or another CollectiveError: the output is undefined, and
        the group is unusable. The input is as it was, unless the output shares its memory.
        """
        if not self._poll(timeout):
            raise TimeoutError(f"not complete after {timeout} s; it goes on")
        if self._error is not None:
            raise self._error
        return self._result

    def done(self) -> bool:
        """Whether `wait` would return (or raise) at once."""
        return self._poll(0)

    def _poll(self, timeout: float | None) -> bool:
        if self._complete or self._ticket is None:
            return self._complete
        error = None
        try:
            complete = self._group.comm.wait(self._ticket, timeout)
        except HdpError as exc:
            complete, error = True, exc
        with _lock:
            if complete and not self._complete:  # else another thread has seen to it, and the ticket is gone
                self._complete, self._error = True, error
                self._group.comm.release(self._ticket)
                self._keep = ()
        return self._complete


_lock = threading.Lock()
#: What dropped Works leave: communicator, ticket, arrays. Without a ticket (an interrupt came while the operation was
#: started) nobody can know when the library is done with the arrays, so they stay.
_dropped: deque[tuple[Communicator, int | None, Arrays]] = deque()


def _sweep() -> None:
    """Forget dropped operations that are complete, the oldest first."""
    for _ in range(len(_dropped)):
        try:
            comm, ticket, keep = _dropped.popleft()
        except IndexError:  # another thread was faster
            return
        if ticket is not None and _complete(comm, ticket):
            comm.release(ticket)
        else:
            _dropped.append((comm, ticket, keep))


def _complete(comm: Communicator, ticket: int) -> bool:
    try:
        return comm.wait(ticket, 0)
    except HdpError:
        return True
