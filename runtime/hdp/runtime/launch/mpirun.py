"""mpirun itself, as it runs on the first host."""

from __future__ import annotations

import logging
import os
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hdp.contract.errors import LaunchError
from hdp.runtime.launch import linux
from hdp.runtime.launch.pipes import Pipe
from hdp.runtime.launch.reactor import Reactor

log = logging.getLogger(__name__)

_TAIL_LINES = 12


class Mpirun:
    """One run of mpirun. Its output is the agent's log; the last lines are kept for a report."""

    def __init__(self, reactor: Reactor, children: linux.Children, ended: Callable[[int], None]) -> None:
        """ended: called, in the loop, with the return code."""
        self._reactor = reactor
        self._children = children
        self._ended = ended
        self._pipe: Pipe | None = None
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self.level = logging.INFO
        """Of its output in the log."""

    @property
    def said(self) -> str:
        """Its last lines."""
        return "\n".join(self._tail)

    def start(self, argv: Sequence[str], environ: Mapping[str, str], cwd: Path) -> None:
        """Start it. Raises LaunchError."""
        try:
            process = self._children.spawn_tethered(
                argv, environ, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        except OSError as exc:
            raise LaunchError(f"mpirun can't be started as {argv[0]}: {exc}") from exc
        assert process.stdout is not None
        self._pipe = Pipe(self._reactor, os.dup(process.stdout.fileno()), self._line)
        process.stdout.close()
        pidfd = os.pidfd_open(process.pid)
        self._reactor.watch(pidfd, lambda: self._on_exit(process, pidfd))

    def close(self) -> None:
        """Give out what is left of its output."""
        if self._pipe is not None:
            self._pipe.close()

    def _line(self, text: str) -> None:
        if text.strip():
            self._tail.append(text)
        log.log(self.level, "mpirun: %s", text)

    def _on_exit(self, process: subprocess.Popen[bytes], pidfd: int) -> None:
        self._reactor.forget(pidfd)
        os.close(pidfd)
        code = self._children.wait(process)
        if self._pipe is not None:
            self._pipe.drain()
        self._ended(code)
