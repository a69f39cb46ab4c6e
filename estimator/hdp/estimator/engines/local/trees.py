"""The ``/opt/ml``-shaped tree of each host, with the contract files in it, and what its agent gets to know.

Values first (`resource_config` and so on are pure), writing last (`lay`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hdp.contract import env
from hdp.contract.files import Layout, write_json
from hdp.contract.uris import local_path, scheme
from hdp.estimator.engines.local import kinds
from hdp.estimator.engines.local.addresses import Block, tensorflow_ports
from hdp.estimator.engines.local.home import JobDir

#: The mount point of a tree in a host's own mount namespace.
OPT_ML = Path("/opt/ml")
#: Left over from whatever started the client; a rank that saw them would believe that it belongs to another job.
NOT_INHERITED = frozenset(
    {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"}
    | {"NODE_RANK", "ROLE_RANK", "TF_CONFIG", "JPY_PARENT_PID", "MPLBACKEND", "NOTIFY_SOCKET"}
    | {v.name for v in env.ALL if {"engine", "agent"} & set(v.set_by.split(", ")) and "user" not in v.set_by}
)
#: Below TMPDIR multiprocessing makes sockets, ``/pymp-xxxxxxxx/listener-xxxxxxxx``; a socket's path has 107 bytes.
_TMPDIR_MAX_BYTES = 107 - 32
_NOT_INHERITED_PREFIXES = ("SM_", "TORCHELASTIC_", "OMPI_", "PMIX_", "PMI_")


def resource_config(training_job: Mapping[str, Any], host: str, interface: str = "lo") -> dict[str, Any]:
    """``resourceconfig.json`` of `host`. interface: on which hosts reach each other."""
    own = kinds.group_of(training_job, host)
    return {
        "current_host": host,
        "current_instance_type": own.kind,
        "current_group_name": own.name,
        "hosts": list(kinds.hosts_of(training_job)),
        "instance_groups": [
            {"instance_group_name": group.name, "instance_type": group.kind, "hosts": list(group.hosts)}
            for group in kinds.groups_of(training_job)
        ],
        "network_interface_name": interface,
    }


def input_data_config(training_job: Mapping[str, Any], host: str) -> dict[str, Any]:
    """``inputdataconfig.json`` of `host`: the channels that it gets."""
    default = training_job.get("AlgorithmSpecification", {}).get("TrainingInputMode", "File")
    group = kinds.group_of(training_job, host).name
    channels = training_job.get("InputDataConfig") or ()
    return {c["ChannelName"]: _channel(c, default) for c in channels if _gets(c, group)}


def _gets(channel: Mapping[str, Any], group: str) -> bool:
    names = channel.get("DataSource", {}).get("S3DataSource", {}).get("InstanceGroupNames")
    return not names or group in names


def _channel(channel: Mapping[str, Any], default_mode: str) -> dict[str, Any]:
    source = channel.get("DataSource", {}).get("S3DataSource", {})
    described = {
        "TrainingInputMode": channel.get("InputMode", default_mode),
        "S3DistributionType": source.get("S3DataDistributionType", "FullyReplicated"),
        "RecordWrapperType": channel.get("RecordWrapperType", "None"),
    }
    if channel.get("ContentType"):
        described["ContentType"] = channel["ContentType"]
    return described


def lay(job: JobDir, training_job: Mapping[str, Any], interface: str = "lo") -> None:
    """Make the trees of all hosts of the job. interface: on which they reach each other."""
    for host in kinds.hosts_of(training_job):
        layout = job.tree(host)
        for folder in (layout.config, layout.data, layout.code, layout.model, layout.output_data):
            folder.mkdir(mode=0o700, parents=True)
        _lay_checkpoints(layout, training_job, job.checkpoints)
        write_json(layout.hyperparameters, training_job.get("HyperParameters", {}))
        write_json(layout.resourceconfig, resource_config(training_job, host, interface))
        write_json(layout.inputdataconfig, input_data_config(training_job, host))
        write_json(layout.channel_sources, {"channels": list(training_job.get("InputDataConfig") or ())})


def _lay_checkpoints(layout: Layout, training_job: Mapping[str, Any], of_s3: Path) -> None:
    """An own folder, or a link to the folder that CheckpointConfig names: every host sees the same one, at once.

    of_s3: that folder, where CheckpointConfig names a place in S3.
    """
    uri = training_job.get("CheckpointConfig", {}).get("S3Uri")
    if uri is None:
        layout.checkpoints.mkdir(mode=0o700)
        return
    kept = of_s3 if scheme(uri) == "s3" else local_path(uri)
    kept.mkdir(mode=0o700, parents=True, exist_ok=True)
    layout.checkpoints.symlink_to(kept)


def ranks_started(job: JobDir, hosts: Iterable[str]) -> float | None:
    """Unix seconds when the last of `hosts` started its ranks; None while one of them hasn't."""
    try:
        return max(job.tree(host).started.stat().st_mtime for host in hosts)
    except (OSError, ValueError):
        return None


def etc_hosts(original: str, names: Sequence[str], block: Block) -> str:
    """Text of ``/etc/hosts`` for the job's hosts: theirs first, then the machine's own."""
    own = [f"{address}\t{name}" for name, address in zip(names, block.addresses, strict=True)]
    return "\n".join([*own, original])


@dataclass(frozen=True)
class AgentSettings:
    """What the engine tells one host's agent through its environment."""

    job_name: str
    host: str
    secret: Path
    base_dir: Path
    """Root of the tree as the agent sees it."""
    run_dir: Path
    """Where the agent makes its folder of sockets: a short path."""
    hosts: tuple[str, ...]
    block: Block
    interface: str
    """The network interface between the hosts."""
    devices: tuple[str, ...]
    """GPUs of this host."""
    stop_timeout_seconds: int
    start_timeout_seconds: int
    encrypt: bool
    """Whether what goes from host to host is encrypted."""


def agent_environment(settings: AgentSettings, user: Mapping[str, str], inherited: Mapping[str, str]) -> dict[str, str]:
    """The agent's whole environment: the client's, the user's for this job over it, ours over both."""
    base = {k: v for k, v in inherited.items() if k not in NOT_INHERITED and not k.startswith(_NOT_INHERITED_PREFIXES)}
    addresses = dict(zip(settings.hosts, settings.block.addresses, strict=True))
    defaults = {
        env.START_TIMEOUT.name: str(settings.start_timeout_seconds),
        "CUDA_VISIBLE_DEVICES": ",".join(settings.devices),
        **for_mpi(settings.interface),
        **_temporary_folder(settings.run_dir, base.get("TMPDIR", "/tmp")),
    }
    ours = {
        env.BASE_DIR.name: str(settings.base_dir),
        env.SECRET_FILE.name: str(settings.secret),
        env.RUN_DIR.name: str(settings.run_dir),
        env.ADDRESSES.name: json.dumps(addresses),
        env.CONTROL_PORT.name: str(settings.block.ports.control),
        env.SERVER_PORT.name: str(settings.block.ports.server),
        env.MASTER_PORT.name: str(settings.block.ports.master),
        env.HOROVOD_PORT.name: str(settings.block.ports.horovod),
        env.TENSORFLOW_PORTS.name: ",".join(map(str, tensorflow_ports(settings.block))),
        env.STOP_TIMEOUT.name: str(settings.stop_timeout_seconds),
        **({env.ENCRYPT.name: "1"} if settings.encrypt else {}),
        env.TIMESTAMPS.name: "1",
        env.DIE_WITH_PARENT.name: "1",
        "TRAINING_JOB_NAME": settings.job_name,
    }
    return {**base, **defaults, **user, **ours}


def for_mpi(interface: str) -> dict[str, str]:
    """What MPI must be told of hosts that share a machine.

    It takes each for a machine of its own, whose processors its ranks may keep busy while they wait. In a trial on two
    processors, 2 x 2 ranks, a step of Horovod over Open MPI took 88 ms instead of 11, and an allreduce of 64 KiB by
    MPICH 57 instead of 0.4. And MPICH's UCX looks through: past a network, it would go through shared memory.
    """
    waiting = {"OMPI_MCA_mpi_yield_when_idle": "1", "MPIR_CVAR_ALLREDUCE_DEVICE_COLLECTIVE": "0"}
    return waiting if interface == "lo" else {**waiting, "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": interface}


def _temporary_folder(run_dir: Path, usual: str) -> dict[str, str]:
    """TMPDIR of a host: in its run folder, which the agent makes and which is removed whoever is killed.

    Not where the run folder had to be made elsewhere, or sockets would not fit: temporary files may be large, and
    the user has chosen a disk for them.
    """
    own = run_dir / "tmp"
    fits = len(os.fsencode(own)) <= _TMPDIR_MAX_BYTES and run_dir.is_relative_to(usual)
    return {"TMPDIR": str(own)} if fits else {}
