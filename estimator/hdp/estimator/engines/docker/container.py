"""One host's agent, in a container: followed by a thread, which copies its output into the host's log."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hdp.contract.errors import EngineError
from hdp.estimator.engines.docker import daemon

LOG = logging.getLogger(__name__)
#: What a shell, and Docker, say of a process that SIGKILL has ended.
_KILLED = 128 + signal.SIGKILL


@dataclass(frozen=True)
class Ended:
    """How a container ended."""

    exit_code: int
    """Negative for SIGKILL, which no program can give as its own exit code."""
    out_of_memory: bool = False
    trouble: str = ""
    """What the daemon had to say about it, if anything."""


class ContainerAgent:
    """A container that was made; it is an `hdp.estimator.engines.local.watch.Agent`."""

    def __init__(self, where: str, container: str, log: Path) -> None:
        """where: the daemon's address. container: its ID. log: what it says is appended there."""
        self._container, self._log = container, log
        # One for each thread: a connection that a stream holds serves nothing else.
        self._commands, self._follower = daemon.connect(where), daemon.connect(where)
        self._ended: Ended | None = None
        self._end_fd = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._follow, name=f"follow-{log.stem}", daemon=True)

    @property
    def ended(self) -> Ended | None:
        """How it ended; None: it hasn't."""
        return self._ended

    def start(self) -> None:
        """Start the container, and follow it. Raises EngineError."""
        with daemon.explained("it can't be started"):
            # Before it starts, so that whatever the daemon does with its own log, ours is whole.
            self._output = self._follower.attach(self._container, stdout=True, stderr=True, stream=True)
            self._commands.start(self._container)
        self._thread.start()

    def end_fd(self) -> int:
        """As `Agent`."""
        return self._end_fd

    def wait(self) -> int:
        """As `Agent`."""
        self._thread.join()
        self._commands.close()
        self._follower.close()
        return self._ended.exit_code if self._ended else -signal.SIGKILL

    def terminate(self) -> None:
        """As `Agent`."""
        self._signal("SIGTERM")

    def kill(self) -> None:
        """As `Agent`."""
        self._signal("SIGKILL")

    def _signal(self, name: str) -> None:
        try:
            with daemon.explained(name):
                self._commands.kill(self._container, name)
        except EngineError as exc:  # it has just ended, or the daemon has: the thread notices
            LOG.warning("to %s: %s", self._container[:12], exc)

    def _follow(self) -> None:
        try:
            self._copy()
            self._ended = self._outcome()
        except Exception as exc:  # whatever happens to this thread, whoever waits must hear of it
            LOG.exception("follow %s", self._container[:12])
            self._ended = Ended(-signal.SIGKILL, trouble=f"the Docker daemon lost it: {exc}")
        finally:
            os.eventfd_write(self._end_fd, 1)

    def _copy(self) -> None:
        """Its output to the log. What doesn't fit on a full disk is lost; a pipe that nobody empties would block it."""
        with self._log.open("ab", buffering=0) as log, daemon.explained("its output can't be read"):
            for chunk in self._output:
                with contextlib.suppress(OSError):
                    log.write(chunk)

    def _outcome(self) -> Ended:
        from docker.errors import NotFound

        with daemon.explained("its end can't be seen"):
            try:
                code = int(self._follower.wait(self._container, timeout=None)["StatusCode"])
                state: dict[str, Any] = self._follower.inspect_container(self._container)["State"]
            except NotFound:
                return Ended(-signal.SIGKILL, trouble="somebody removed its container (docker rm -f)")
        killed = code == _KILLED
        return Ended(-signal.SIGKILL if killed else code, bool(state.get("OOMKilled")), str(state.get("Error") or ""))
