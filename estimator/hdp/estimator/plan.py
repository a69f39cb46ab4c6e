"""What a job would be: the request, which rank runs where, and what to know before it starts. A value; pure.

`hdp.estimator.plan_view` renders it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hdp.contract import env
from hdp.contract.files import host_names
from hdp.contract.hyperparameters import to_argv
from hdp.contract.launch import LaunchSpec, tf_config
from hdp.contract.redact import redact, redact_argv, redact_text
from hdp.estimator.engines.base import JobRequest

#: Stands for a port that the engine chooses when the job starts.
LATER = "<chosen at start>"


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
    """What starts the rank; with mpi and torch_distributed, the one command that starts its host's ranks."""
    environment: Mapping[str, str]
    """The rank's own variables; the job's ``Environment`` and ``SM_*`` come on top.

    MASTER_ADDR is the first host's name here; the local engine, whose hosts share a machine, gives its address.
    MASTER_PORT is `LATER` where the engine chooses one for each job. So it is in TF_CONFIG.
    """


@dataclass(frozen=True, repr=False)
class Plan:
    """A job that was not started. ``print(plan)`` shows it; secrets are hidden there, in its repr and in `to_dict`."""

    request: JobRequest
    """What `fit` would submit, with nothing hidden."""
    ranks: tuple[RankPlan, ...]
    engine: str
    launch: LaunchSpec
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain JSON values, secrets hidden."""
        return {
            "engine": self.engine,
            "launcher": self.launch.kind,
            "training_job": redact(self.request.training_job),
            "engine_options": redact(self.request.engine_options),
            "ranks": [_rank_dict(r) for r in self.ranks],
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
class Cluster:
    """Hosts of a job, as far as ranks depend on them. All hosts are alike."""

    num_hosts: int
    gpus_per_host: int
    master_port: str = env.MASTER_PORT.default
    """MASTER_PORT of the job, or `LATER`."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """algo-1 to algo-N, as SageMaker names them."""
        return host_names(self.num_hosts)


def ranks_of(launch: LaunchSpec, cluster: Cluster, program: str, hyperparameters: Mapping[str, Any]) -> list[RankPlan]:
    """Every rank of the job, in order. program: empty where the image has its own entry point."""
    local_size = launch.ranks_on(cluster.gpus_per_host)
    script = [*_interpreter(program), *to_argv(hyperparameters)]
    return [
        RankPlan(
            host=host,
            node_rank=node,
            rank=node * local_size + local,
            local_rank=local,
            device=f"cuda:{local % cluster.gpus_per_host}" if cluster.gpus_per_host else "cpu",
            argv=tuple(launcher_argv(launch, cluster, node, script)),
            environment=_environment(launch, cluster, node, local),
        )
        for node, host in enumerate(cluster.hosts)
        for local in range(local_size)
    ]


def launcher_argv(launch: LaunchSpec, cluster: Cluster, node: int, script: Sequence[str]) -> list[str]:
    """The command that starts `script` on the host with index `node`."""
    local_size = launch.ranks_on(cluster.gpus_per_host)
    if launch.kind == "mpi":
        hosts = ",".join(f"{h}:{local_size}" for h in cluster.hosts)
        total = str(local_size * cluster.num_hosts)
        return ["mpirun", "--host", hosts, "-np", total, *shlex.split(launch.custom_mpi_options), *script]
    if launch.kind == "torch_distributed":
        rendezvous = ["--node_rank", str(node), "--master_addr", cluster.hosts[0]]
        rendezvous += ["--master_port", cluster.master_port]
        several = rendezvous if cluster.num_hosts > 1 else []
        head = ["torchrun", "--nnodes", str(cluster.num_hosts), "--nproc_per_node", str(local_size)]
        return [*head, *several, *_without_python(script)]
    return list(script)


def _interpreter(program: str) -> list[str]:
    if not program:
        return []
    return ["/bin/sh", program] if program.endswith(".sh") else ["python", program]


def _without_python(script: Sequence[str]) -> Sequence[str]:
    return script[1:] if script[:1] == ["python"] else script


def _environment(launch: LaunchSpec, cluster: Cluster, node: int, local: int) -> dict[str, str]:
    local_size = launch.ranks_on(cluster.gpus_per_host)
    values = {
        "RANK": node * local_size + local,
        "LOCAL_RANK": local,
        "WORLD_SIZE": local_size * cluster.num_hosts,
        "LOCAL_WORLD_SIZE": local_size,
        "GROUP_RANK": node,
        "GROUP_WORLD_SIZE": cluster.num_hosts,
    }
    rendezvous = {"MASTER_ADDR": cluster.hosts[0], "MASTER_PORT": cluster.master_port}
    if launch.kind == "multi_worker_mirrored_strategy":
        port = LATER if cluster.master_port == LATER else env.TENSORFLOW_PORTS.default
        rendezvous["TF_CONFIG"] = tf_config([f"{host}:{port}" for host in cluster.hosts], node)
    return {**{k: str(v) for k, v in values.items()}, **rendezvous}


def _rank_dict(rank: RankPlan) -> dict[str, Any]:
    return {**asdict(rank), "argv": redact_argv(rank.argv), "environment": dict(rank.environment)}
