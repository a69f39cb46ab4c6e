"""An operation in flight."""

from __future__ import annotations

import threading

from hdp.collectives.arrays import Array
from hdp.collectives.communicator import Group
from hdp.contract.errors import HdpError


class Work:
    """An operation in flight. Keeps its arrays alive until it is complete."""

    def __init__(self, group: Group, ticket: int, keep: tuple[Array, ...], result: Array | None) -> None:
        self._group, self._ticket, self._keep, self._result = group, ticket, keep, result
        self._complete = False
        self._error: HdpError | None = None
        with _pending_lock:
            _pending[id(self)] = self  # whoever drops a Work must not free memory that is in use

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
        if self._complete:
            return True
        error = None
        try:
            complete = self._group.comm.wait(self._ticket, timeout)
        except HdpError as exc:
            complete, error = True, exc
        with _pending_lock:
            if complete and not self._complete:  # else another thread has seen to it, and the ticket is gone
                self._complete, self._error = True, error
                self._group.comm.release(self._ticket)
                self._keep = ()
                _pending.pop(id(self), None)
        return self._complete


_pending: dict[int, Work] = {}
_pending_lock = threading.Lock()
