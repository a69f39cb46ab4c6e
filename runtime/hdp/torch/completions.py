"""The threads that complete futures, and settle what nobody's thread waits for.

They move no data, so a callback may wait for another operation; and there is always an idle one left for that
operation's future. A communicator has one `Completions`, which all its process groups share.

An operation on a device's tensors goes on after its ``wait()`` has returned. So before a communicator is closed, and
before the process ends in order, those are waited for: else the other ranks would lose them.
"""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from hdp.collectives import Communicator
from hdp.contract.errors import CollectiveError, HdpError
from hdp.torch import threads
from hdp.torch.work import HdpWork


class Completions:
    """Works in flight on a communicator."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._lock = threading.Lock()
        self._by_ticket: dict[int, HdpWork] = {}
        self._live: set[HdpWork] = set()  # also of whom nobody holds: the core uses their memory
        self._idle = 0

    @classmethod
    def of(cls, comm: Communicator) -> Completions:
        """That of `comm`."""
        with _made_lock:
            return _made.setdefault(comm, cls(comm))

    def start(self, work: HdpWork, starts: Sequence[Callable[[bool], int]], asynchronous: bool) -> HdpWork:
        """Start the collectives of `work` (each called with ``notify``). Asynchronous work gets a future."""
        told = work.on_settled

        def settled(work: HdpWork, error: Exception | None) -> None:
            self._live.discard(work)
            if told is not None:
                told(work, error)

        work.on_settled = settled
        self._live.add(work)
        if asynchronous:
            work.make_future()
        try:
            if asynchronous or work.on_device:
                self._start_watched(work, starts)
            else:
                for start in starts:
                    work.add_ticket(start(False))
        except BaseException:
            if not work.started:
                self._live.discard(work)
            raise
        return work

    def _start_watched(self, work: HdpWork, starts: Sequence[Callable[[bool], int]]) -> None:
        """Start them so that a thread of ours settles `work`."""
        with self._lock:  # a ticket may complete before it is in the table
            for start in starts:
                ticket = start(True)
                work.add_ticket(ticket)
                self._by_ticket[ticket] = work
            if self._idle == 0:
                self._add_thread()
        if not starts:
            work.complete_future()

    def drain(self) -> None:
        """Wait for all operations whose ``wait()`` has returned; their errors are for whoever comes next."""
        for work in [w for w in list(self._live) if w.passed]:
            with suppress(HdpError):
                work.wait_on_host()

    def close(self) -> None:
        """Leave: what is in flight fails, waiting callers return, threads end."""
        self._leave(only_settled=False)
        with _made_lock:
            _made.pop(self._comm, None)

    def _leave(self, *, only_settled: bool) -> None:
        """Close the communicator, and complete the futures that no thread comes to any more.

        Among them may be one of a work that somebody has waited for already.
        """
        self._comm.interrupt()
        self._comm.close()
        with self._lock:
            left = {*self._live, *self._by_ticket.values()}
            self._by_ticket.clear()
        for work in left:
            if work.settled or not only_settled:
                work.complete_future()
        threads.join_all(self._comm)

    def _add_thread(self) -> None:
        self._idle += 1
        threads.start(self._comm, self._run, "hdp-futures")

    def _run(self) -> None:
        while True:
            try:
                ticket = self._comm.next_done()
            except CollectiveError:
                return
            if ticket is None:
                continue
            with self._lock:
                work = self._by_ticket.pop(ticket, None)
                if work is None or not work.one_done():
                    continue
                self._idle -= 1
                if self._idle == 0:
                    self._add_thread()  # a callback may wait for the next operation
            work.complete_future()
            with self._lock:
                if self._idle >= _KEPT_IDLE:
                    return
                self._idle += 1


#: Idle threads that stay; one is taken by each operation that completes, so a second saves making one each time.
_KEPT_IDLE = 2
_made: dict[Communicator, Completions] = {}
_made_lock = threading.Lock()


@atexit.register
def _leave_all() -> None:
    """A process that ends in order without leaving its groups: its threads end before the interpreter does.

    What its streams still wait for is waited for here, but not where a script failed. Callbacks of works that nobody
    has waited for aren't called any more.
    """
    if getattr(sys, "last_type", None) is None:
        for completions in list(_made.values()):
            completions.drain()
    for completions in list(_made.values()):
        completions._leave(only_settled=True)
