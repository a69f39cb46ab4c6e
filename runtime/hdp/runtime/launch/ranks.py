"""What each rank of a host is started with: argument vector and environment. Pure."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hdp.contract import env
from hdp.runtime.code import EntryPoint
from hdp.runtime.environment import TrainingEnvironment
from hdp.runtime.launch.position import Position, World, apart, interface_variables, positions, variables
from hdp.runtime.settings import Settings
from hdp.runtime.variables import sm_variables

#: Linux refuses to start a program with a longer variable (MAX_ARG_STRLEN, 32 pages).
MAX_VARIABLE_BYTES = 131_071
#: Not for the ranks: how the engine and the agent deal with each other.
_AGENTS_OWN = frozenset({env.DIE_WITH_PARENT.name, env.RUN_DIR.name})


@dataclass(frozen=True)
class RankFiles:
    """Files and folders that the agent made for its ranks."""

    folder: Path
    """0700, the agent's own."""
    secret_file: Path | None = None
    server_socket: Path | None = None
    overlay: bool = False
    """The host has an overlay with the job's requirements."""

    def error_file(self, rank: int | None) -> Path:
        """Where `rank` leaves its exception."""
        return self.folder / ("error.json" if rank is None else f"error-{rank}.json")


@dataclass(frozen=True)
class RankPlan:
    """All it takes to start one rank, or the one process of a host without ranks."""

    rank: int | None
    """None: it isn't one."""
    local_rank: int
    argv: tuple[str, ...]
    environ: Mapping[str, str]
    cwd: Path
    error_file: Path
    shell: bool = False
    pass_fds: tuple[int, ...] = ()
    cpus: frozenset[int] = frozenset()
    """Processors to which the launcher binds it; empty: all."""
    under_mpi: bool = False
    """MPI ends it, without an exception, when another rank is gone."""


def plan_ranks(
    training: TrainingEnvironment,
    settings: Settings,
    world: World,
    *,
    entry: EntryPoint,
    files: RankFiles,
    environ: Mapping[str, str],
) -> tuple[list[RankPlan], list[str]]:
    """The plans of this host's ranks, and the names of variables that are too long to pass."""
    common, too_long = common_environment(training, settings, world, files, environ)
    node = world.node(training.resources.current_host)
    make = partial(plan_rank, training, settings, world, entry=entry, files=files, common=common)
    return [make(position) for position in positions(world, node)], too_long


def plan_rank(
    training: TrainingEnvironment,
    settings: Settings,
    world: World,
    position: Position,
    *,
    entry: EntryPoint,
    files: RankFiles,
    common: Mapping[str, str],
    channel: int | None = None,
    cpus: frozenset[int] = frozenset(),
) -> RankPlan:
    """The plan of one rank of this host. common: what all of them have, and what its launcher adds for this one."""
    kind, node = training.launch.kind, world.node(training.resources.current_host)
    own = variables(kind, position, world, node, settings)
    if kind == "apart":
        own |= apart(position, training.layout)
    error_file = files.error_file(position.rank)
    return RankPlan(
        position.rank, position.local_rank, tuple(rank_argv(entry, training.argv)),
        {**common, **own, env.ERROR_FILE.name: str(error_file)}, training.layout.code, error_file, entry.shell,
        (channel,) if channel is not None else (), cpus, kind == "mpi",
    )  # fmt: skip


def plan_other(
    training: TrainingEnvironment,
    settings: Settings,
    world: World,
    *,
    entry: EntryPoint,
    files: RankFiles,
    environ: Mapping[str, str],
) -> tuple[RankPlan, list[str]]:
    """The plan of a host without ranks, the script as a plain process; and the variables that are too long to pass."""
    common, too_long = common_environment(training, settings, world, files, environ)
    error_file = files.error_file(None)
    own = {env.LAUNCHER.name: "none", env.ERROR_FILE.name: str(error_file)}
    argv = tuple(rank_argv(entry, training.argv))
    return RankPlan(None, 0, argv, {**common, **own}, training.layout.code, error_file, entry.shell), too_long


def common_environment(
    training: TrainingEnvironment, settings: Settings, world: World, files: RankFiles, environ: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """What every process of this host has, and the names of variables that are too long to pass."""
    common = {**_base(training, settings, world, files, environ), **_defaults(training, environ)}
    too_long = sorted(k for k, v in common.items() if len(k) + len(os.fsencode(v)) + 2 > MAX_VARIABLE_BYTES)
    return {k: v for k, v in common.items() if k not in too_long}, too_long


def rank_argv(entry: EntryPoint, arguments: Sequence[str]) -> list[str]:
    """The argument vector of a rank; no shell parses it."""
    if entry.shell:
        return [sys.executable, "-m", "hdp.runtime.launch.tether", "/bin/sh", entry.script, *arguments]
    return [sys.executable, "-m", "hdp.runtime.launch.rank_main", entry.script, *arguments]


def _base(
    training: TrainingEnvironment, settings: Settings, world: World, files: RankFiles, environ: Mapping[str, str]
) -> dict[str, str]:
    values = {
        **{k: v for k, v in environ.items() if k not in _AGENTS_OWN},
        **sm_variables(training),
        env.BASE_DIR.name: str(training.layout.root),
        env.AGENT_PID.name: str(os.getpid()),
        "SM_MASTER_ADDR": world.hosts[0].address,
        "SM_MASTER_PORT": str(settings.master_port),
        "PYTHONPATH": os.pathsep.join(_python_path(training, files, environ)),
    }
    if files.overlay:
        values["PATH"] = os.pathsep.join([str(training.layout.overlay / "bin"), environ.get("PATH", os.defpath)])
    if wire_dtype := training.launch.options.get("wire_dtype"):
        values[env.WIRE_DTYPE.name] = str(wire_dtype)
    if files.secret_file is not None:
        values[env.SECRET_FILE.name] = str(files.secret_file)
    if files.server_socket is not None:
        values[env.SERVER_SOCKET.name] = str(files.server_socket)
    return values


def _defaults(training: TrainingEnvironment, environ: Mapping[str, str]) -> dict[str, str]:
    """What a rank gets unless the user has set it."""
    values = {
        "PYTHONUNBUFFERED": "1",
        # Without it, every rank's OpenMP takes all cores.
        "OMP_NUM_THREADS": str(max(1, training.num_cpus // max(1, training.local_size))),
    }
    if interface := network_interface(training):
        values |= interface_variables(training.launch.kind, interface)
    return {k: environ.get(k) or v for k, v in values.items()}


def network_interface(training: TrainingEnvironment) -> str:
    """The interface between the hosts, where the host has it; else nothing."""
    name = training.resources.network_interface
    return name if name and Path("/sys/class/net", name).exists() else ""


def _python_path(training: TrainingEnvironment, files: RankFiles, environ: Mapping[str, str]) -> list[str]:
    overlay = [str(training.layout.overlay_packages)] if files.overlay else []
    before = environ.get("PYTHONPATH", "")
    return [*overlay, str(training.layout.code), *([before] if before else [])]
