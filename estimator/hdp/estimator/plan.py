"""What a job would be: the request, which rank runs where, and what to know before it starts. A value; pure.

`hdp.estimator.plan_view` renders it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from hdp.contract import env, mpi
from hdp.contract.hyperparameters import to_argv
from hdp.contract.launch import LaunchSpec, tf_config
from hdp.contract.mpirun import Installed
from hdp.contract.redact import redact, redact_argv, redact_text
from hdp.estimator.engines.base import JobRequest

#: Stands for a port that the engine chooses when the job starts.
LATER = "<chosen at start>"
#: Stands for the program through which mpirun has processes started on other hosts.
AGENT = "<agent>"


@dataclass(frozen=True)
class RankPlan:
    """One process of the job."""

    host: str
    node_rank: int
    rank: int
    local_rank: int
    device: str
    """``cuda:<i>``, or ``cpu``."""
    argv: tuple[str, ...] = field(repr=False)
    """What starts the rank; with mpi the one command that starts all of them, and so with torchrun those of a host."""
    environment: Mapping[str, str]
    """The rank's own variables; the job's ``Environment`` and ``SM_*`` come on top.

    MASTER_ADDR is the name of the first host with ranks here; the local engine, whose hosts share a machine, gives
    its address.
    MASTER_PORT is `LATER` where the engine chooses one for each job. So it is in TF_CONFIG.
    """
    group: str = ""
    """Its host's instance group; empty where the job has none."""


@dataclass(frozen=True)
class ProcessPlan:
    """The script on a host without ranks: once, as a plain process, without a rank's variables."""

    host: str
    group: str
    argv: tuple[str, ...] = field(repr=False)


@dataclass(frozen=True, repr=False)
class Plan:
    """A job that was not started. ``print(plan)`` shows it; secrets are hidden there, in its repr and in `to_dict`."""

    request: JobRequest
    """What `fit` would submit, with nothing hidden."""
    ranks: tuple[RankPlan, ...]
    engine: str
    launch: LaunchSpec
    notes: tuple[str, ...] = ()
    others: tuple[ProcessPlan, ...] = ()
    """What runs on hosts of instance groups that the distribution doesn't name."""

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain JSON values, secrets hidden."""
        return {
            "engine": self.engine,
            "launcher": self.launch.kind,
            "training_job": redact(self.request.training_job),
            "engine_options": redact(self.request.engine_options),
            "ranks": [_rank_dict(r) for r in self.ranks],
            "others": [{**asdict(p), "argv": redact_argv(p.argv)} for p in self.others],
            "notes": [redact_text(note) for note in self.notes],
        }

    def __repr__(self) -> str:
        return f"<Plan of {self.request.name}: {self.engine}, {len(self.ranks)} ranks; print() shows it>"

    def __str__(self) -> str:
        from hdp.estimator.plan_view import as_text

        return as_text(self)

    def _repr_html_(self) -> str:
        from hdp.estimator.plan_view import as_html

        return as_html(self)


@dataclass(frozen=True)
class Host:
    """One host of a job, as far as its processes depend on it."""

    name: str
    gpus: int
    group: str = ""


@dataclass(frozen=True)
class Cluster:
    """Hosts of a job, algo-1 to algo-N, as SageMaker names them."""

    hosts: tuple[Host, ...]
    master_port: str = env.MASTER_PORT.default
    """MASTER_PORT of the job, or `LATER`."""
    ours: bool = True
    """Whether our runtime starts the ranks; else it is that of SageMaker's own images."""
    mpi: Installed | None = None
    """The hosts' MPI, where that is known."""
    interface: str = ""
    """The network interface between them, where that is known."""


@dataclass(frozen=True)
class World:
    """The hosts with ranks."""

    hosts: tuple[Host, ...]
    sizes: tuple[int, ...]
    """Ranks of each."""
    firsts: tuple[int, ...]
    """Rank of each host's first process."""
    size: int
    cluster: Cluster

    @property
    def master_port(self) -> str:
        """MASTER_PORT of the job, or `LATER`."""
        return self.cluster.master_port


def has_ranks(launch: LaunchSpec, host: Host) -> bool:
    """Whether `launch` starts ranks on `host`."""
    return launch.ranks_on(host.gpus, host.group) > 0


def world_of(launch: LaunchSpec, cluster: Cluster) -> World:
    """The hosts on which `launch` starts ranks."""
    hosts = tuple(h for h in cluster.hosts if has_ranks(launch, h))
    sizes = tuple(launch.ranks_on(h.gpus, h.group) for h in hosts)
    *firsts, size = accumulate(sizes, initial=0)
    return World(hosts, sizes, tuple(firsts), size, cluster)


def ranks_of(launch: LaunchSpec, cluster: Cluster, program: str, hyperparameters: Mapping[str, Any]) -> list[RankPlan]:
    """Every rank of the job, in order. program: empty where the image has its own entry point."""
    world = world_of(launch, cluster)
    script = [*_interpreter(program), *to_argv(hyperparameters)]
    return [
        RankPlan(
            host=host.name,
            node_rank=node,
            rank=world.firsts[node] + local,
            local_rank=local,
            device=f"cuda:{local % host.gpus}" if host.gpus else "cpu",
            argv=tuple(launcher_argv(launch, world, node, script)),
            environment=_environment(launch, world, node, local),
            group=host.group,
        )
        for node, host in enumerate(world.hosts)
        for local in range(world.sizes[node])
    ]


def others_of(
    launch: LaunchSpec, cluster: Cluster, program: str, hyperparameters: Mapping[str, Any]
) -> list[ProcessPlan]:
    """What runs on the hosts without ranks."""
    script = (*_interpreter(program), *to_argv(hyperparameters))
    return [ProcessPlan(host.name, host.group, script) for host in cluster.hosts if not has_ranks(launch, host)]


def launcher_argv(launch: LaunchSpec, world: World, node: int, script: Sequence[str]) -> list[str]:
    """The command that starts `script` on the host with index `node`."""
    if launch.kind == "mpi":
        return _mpirun(launch, world, script)
    if launch.kind == "torch_distributed" and not world.cluster.ours:
        rendezvous = ["--node_rank", str(node), "--master_addr", world.hosts[0].name]
        rendezvous += ["--master_port", world.master_port]
        several = rendezvous if len(world.hosts) > 1 else []
        head = ["torchrun", "--nnodes", str(len(world.hosts)), "--nproc_per_node", str(world.sizes[node])]
        return [*head, *several, *_without_python(script)]
    return list(script)


def _mpirun(launch: LaunchSpec, world: World, script: Sequence[str]) -> list[str]:
    """The one command, on the first host. Its hosts have names here; the job's has their addresses."""
    places = [mpi.Place(host.name, size) for host, size in zip(world.hosts, world.sizes, strict=True)]
    if not world.cluster.ours:
        hosts = ",".join(f"{p.address}:{p.ranks}" for p in places)
        return ["mpirun", "--host", hosts, "-np", str(world.size), *shlex.split(launch.custom_mpi_options), *script]
    installed = world.cluster.mpi or Installed(Path("mpirun"), "openmpi", "5")
    return mpi.command(
        installed.flavour, str(installed.mpirun), places, AGENT, launch.custom_mpi_options, script,
        interface=world.cluster.interface, major=installed.major,
    )  # fmt: skip


def _interpreter(program: str) -> list[str]:
    if not program:
        return []
    return ["/bin/sh", program] if program.endswith(".sh") else ["python", program]


def _without_python(script: Sequence[str]) -> Sequence[str]:
    return script[1:] if script[:1] == ["python"] else script


def _environment(launch: LaunchSpec, world: World, node: int, local: int) -> dict[str, str]:
    values = {
        "RANK": world.firsts[node] + local,
        "LOCAL_RANK": local,
        "WORLD_SIZE": world.size,
        "LOCAL_WORLD_SIZE": world.sizes[node],
        "GROUP_RANK": node,
        "GROUP_WORLD_SIZE": len(world.hosts),
    }
    rendezvous = {"MASTER_ADDR": world.hosts[0].name, "MASTER_PORT": world.master_port}
    if launch.kind == "multi_worker_mirrored_strategy":
        port = LATER if world.master_port == LATER else env.TENSORFLOW_PORTS.default
        rendezvous["TF_CONFIG"] = tf_config([f"{host.name}:{port}" for host in world.hosts], node)
    if launch.kind == "apart":
        values |= {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1, "GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1}
        rendezvous = {"MASTER_ADDR": world.hosts[node].name, "MASTER_PORT": LATER}
    if launch.kind == "mpi" and world.cluster.ours:
        flavour = world.cluster.mpi.flavour if world.cluster.mpi else "openmpi"
        rendezvous |= mpi.variables(mpi.parse(launch.custom_mpi_options, flavour))
    return {env.LAUNCHER.name: launch.kind, **{k: str(v) for k, v in values.items()}, **rendezvous}


def _rank_dict(rank: RankPlan) -> dict[str, Any]:
    return {**asdict(rank), "argv": redact_argv(rank.argv), "environment": redact(rank.environment)}
