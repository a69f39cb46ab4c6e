"""Pipes of child processes, read by the agent's loop until their last writer is gone."""

from __future__ import annotations

import os
from collections.abc import Callable

from hdp.runtime.launch.logs import LineSplitter
from hdp.runtime.launch.reactor import Reactor

#: Read at once; as much as a pipe holds by default.
_CHUNK_BYTES = 65_536
#: Chunks per turn of the loop, so that one rank's flood doesn't keep the loop from the others.
_CHUNKS_A_TURN = 4


class Pipe:
    """One pipe. Lines go to `emit`.

    The end of the process that we started doesn't end the pipe: a forked child may hold it open, and may go on writing.
    Nor does the end of the pipe mean that the process has ended. So neither is used to tell the other.
    """

    def __init__(self, reactor: Reactor, fd: int, emit: Callable[[str], None]) -> None:
        self._reactor = reactor
        self._fd = fd
        self._open = True
        self._lines = LineSplitter(emit)
        os.set_blocking(fd, False)
        reactor.watch(fd, self._readable)

    def drain(self) -> None:
        """Take what is in the pipe now, and give out a last line without an end."""
        # Bounded: a forked child may write faster than we read.
        for _ in range(64):
            if not self._take():
                break
        self._lines.flush()

    def close(self) -> None:
        """Drain and close."""
        self.drain()
        self._end()

    def _readable(self) -> None:
        for _ in range(_CHUNKS_A_TURN):
            if not self._take():
                return

    def _take(self) -> bool:
        """Read one chunk. False: there is nothing more for now."""
        if not self._open:
            return False
        try:
            data = os.read(self._fd, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._lines.flush()
            self._end()
            return False
        self._lines.feed(data)
        return True

    def _end(self) -> None:
        if self._open:
            self._open = False
            self._reactor.forget(self._fd)
            os.close(self._fd)
