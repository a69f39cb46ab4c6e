"""What each rank of a host is started with: argument vector and environment. Pure."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hdp.contract import env
from hdp.contract.launch import tf_config
from hdp.runtime.code import EntryPoint
from hdp.runtime.environment import TrainingEnvironment
from hdp.runtime.launch.wire import Message
from hdp.runtime.settings import Settings
from hdp.runtime.variables import sm_variables

#: Linux refuses to start a program with a longer variable (MAX_ARG_STRLEN, 32 pages).
MAX_VARIABLE_BYTES = 131_071
#: Not for the ranks: how the engine and the agent deal with each other.
_AGENTS_OWN = frozenset({env.DIE_WITH_PARENT.name, env.RUN_DIR.name})


@dataclass(frozen=True)
class HostInfo:
    """One host of the world."""

    name: str
    address: str
    local_size: int


@dataclass(frozen=True)
class World:
    """Every host with its number of ranks, in the order of resourceconfig."""

    hosts: tuple[HostInfo, ...]

    @property
    def size(self) -> int:
        """Ranks of the job."""
        return sum(h.local_size for h in self.hosts)

    def first_rank(self, node_rank: int) -> int:
        """Rank of the first process on the host with this index."""
        return sum(h.local_size for h in self.hosts[:node_rank])


@dataclass(frozen=True)
class RankFiles:
    """Files and folders that the agent made for its ranks."""

    folder: Path
    """0700, the agent's own."""
    secret_file: Path | None = None
    server_socket: Path | None = None
    overlay: bool = False
    """The host has an overlay with the job's requirements."""

    def error_file(self, rank: int) -> Path:
        """Where `rank` leaves its exception."""
        return self.folder / f"error-{rank}.json"


@dataclass(frozen=True)
class RankPlan:
    """All it takes to start one rank."""

    rank: int
    local_rank: int
    argv: tuple[str, ...]
    environ: Mapping[str, str]
    cwd: Path
    error_file: Path
    shell: bool = False


def read_world(message: Message) -> World:
    """The world in the coordinator's message."""
    return World(tuple(HostInfo(str(h["name"]), str(h["address"]), int(h["local_size"])) for h in message["hosts"]))


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
    node = training.resources.node_rank
    common = {**_base(training, settings, world, files, environ), **_defaults(training, world, environ)}
    too_long = sorted(k for k, v in common.items() if len(k) + len(os.fsencode(v)) + 2 > MAX_VARIABLE_BYTES)
    common = {k: v for k, v in common.items() if k not in too_long}
    plans = []
    for local_rank in range(world.hosts[node].local_size):
        rank = world.first_rank(node) + local_rank
        own = {
            "RANK": str(rank),
            "LOCAL_RANK": str(local_rank),
            env.ERROR_FILE.name: str(files.error_file(rank)),
        }
        plans.append(
            RankPlan(
                rank, local_rank, tuple(rank_argv(entry, training.argv)), {**common, **own}, training.layout.code,
                files.error_file(rank), entry.shell,
            )
        )  # fmt: skip
    return plans, too_long


def rank_argv(entry: EntryPoint, arguments: Sequence[str]) -> list[str]:
    """The argument vector of a rank; no shell parses it."""
    if entry.shell:
        return [sys.executable, "-m", "hdp.runtime.launch.tether", "/bin/sh", entry.script, *arguments]
    return [sys.executable, "-m", "hdp.runtime.launch.rank_main", entry.script, *arguments]


def _base(
    training: TrainingEnvironment, settings: Settings, world: World, files: RankFiles, environ: Mapping[str, str]
) -> dict[str, str]:
    node = training.resources.node_rank
    values = {
        **{k: v for k, v in environ.items() if k not in _AGENTS_OWN},
        **sm_variables(training),
        env.BASE_DIR.name: str(training.layout.root),
        env.AGENT_PID.name: str(os.getpid()),
        "WORLD_SIZE": str(world.size),
        "LOCAL_WORLD_SIZE": str(world.hosts[node].local_size),
        "GROUP_RANK": str(node),
        "GROUP_WORLD_SIZE": str(len(world.hosts)),
        "MASTER_ADDR": world.hosts[0].address,
        "MASTER_PORT": str(settings.master_port),
        "SM_MASTER_ADDR": world.hosts[0].address,
        "SM_MASTER_PORT": str(settings.master_port),
        "PYTHONPATH": os.pathsep.join(_python_path(training, files, environ)),
    }
    if files.overlay:
        values["PATH"] = os.pathsep.join([str(training.layout.overlay / "bin"), environ.get("PATH", os.defpath)])
    if training.launch.kind == "multi_worker_mirrored_strategy":
        workers = [f"{h.address}:{settings.tensorflow_port(i)}" for i, h in enumerate(world.hosts)]
        values["TF_CONFIG"] = tf_config(workers, node)
    if wire_dtype := training.launch.options.get("wire_dtype"):
        values[env.WIRE_DTYPE.name] = str(wire_dtype)
    if files.secret_file is not None:
        values[env.SECRET_FILE.name] = str(files.secret_file)
    if files.server_socket is not None:
        values[env.SERVER_SOCKET.name] = str(files.server_socket)
    return values


def _defaults(training: TrainingEnvironment, world: World, environ: Mapping[str, str]) -> dict[str, str]:
    """What a rank gets unless the user has set it."""
    local_size = world.hosts[training.resources.node_rank].local_size
    interface = training.resources.network_interface
    values = {
        "PYTHONUNBUFFERED": "1",
        # Without it, every rank's OpenMP takes all cores.
        "OMP_NUM_THREADS": str(max(1, training.num_cpus // max(1, local_size))),
    }
    if interface and Path("/sys/class/net", interface).exists():
        values |= {"NCCL_SOCKET_IFNAME": interface, "GLOO_SOCKET_IFNAME": interface}
    return {k: environ.get(k) or v for k, v in values.items()}


def _python_path(training: TrainingEnvironment, files: RankFiles, environ: Mapping[str, str]) -> list[str]:
    overlay = [str(training.layout.overlay_packages)] if files.overlay else []
    before = environ.get("PYTHONPATH", "")
    return [*overlay, str(training.layout.code), *([before] if before else [])]
