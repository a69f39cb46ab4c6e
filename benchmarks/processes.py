"""Processes that a benchmark started, and their end."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)
_GRACE = 2.0  # seconds from SIGTERM to SIGKILL


@dataclass(frozen=True)
class Started:
    """One process, the leader of a process group, and the log that has what it wrote."""

    name: str
    process: subprocess.Popen[Any]
    log: Path

    def tail(self, characters: int = 1500) -> str:
        """The end of its log."""
        try:
            text = self.log.read_text(errors="replace").strip()
        except OSError:
            text = ""
        return text[-characters:] or "(it wrote nothing)"

    def signal(self, number: int) -> None:
        """Send a signal to its whole process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


def end_all(started: Sequence[Started]) -> None:
    """End the process groups: SIGTERM (and SIGCONT, they may be stopped), after a while SIGKILL to what is left."""
    ours = [s for s in started if s.process.returncode is None]  # of the others the number may be a stranger's by now
    for one in ours:
        one.signal(signal.SIGTERM)
        one.signal(signal.SIGCONT)
    deadline = time.monotonic() + _GRACE
    while not all(map(_ended, ours)) and time.monotonic() < deadline:
        time.sleep(0.01)
    for one in ours:
        one.signal(signal.SIGKILL)  # also to what a leader that has ended left in its group
        one.process.wait()


def _ended(one: Started) -> bool:
    """Whether the leader has ended; it stays unreaped, so that its number stays its own."""
    return os.waitid(os.P_PID, one.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


@functools.cache
def own_folder() -> Path:
    """A folder for this process's temporary files. It goes when this process ends, however it ends.

    A shell waits for the end of a pipe that only this process holds, and then removes it.
    """
    folder = Path(tempfile.mkdtemp(prefix="hdp-bench-"))
    waits, _ = os.pipe()
    command = ["/bin/sh", "-c", 'read _; rm -rf -- "$0"', str(folder)]
    os.posix_spawn(command[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, waits, 0)], setsid=True)
    os.close(waits)
    return folder


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def cpu_seconds(pid: int) -> float:
    """Processor time of a process and all its threads so far, to the nanosecond. Raises OSError: it is gone."""
    return time.clock_gettime((~pid << 3) | 2)  # the kernel's number for that clock, see clock_getcpuclockid(3)
