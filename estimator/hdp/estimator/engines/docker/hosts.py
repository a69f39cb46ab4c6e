"""Makes what a job's hosts are in the daemon: one network, and a container for each host."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hdp.contract.errors import EngineError
from hdp.estimator.engines.docker import daemon, mounts
from hdp.estimator.engines.docker.container import ContainerAgent
from hdp.estimator.engines.docker.dockerjob import HOST_LABEL, DockerJob, labels_of
from hdp.estimator.engines.docker.environment import agent_environment, ca_bundle, credentials_of
from hdp.estimator.engines.docker.gpus import devices_of
from hdp.estimator.engines.docker.options import size_bytes
from hdp.estimator.engines.local.watch import AGENT_MARGIN_SECONDS

if TYPE_CHECKING:
    from docker import APIClient

TRAIN = "train"
#: Of the daemon's own copy of a host's output, which `docker logs` shows; ours is whole.
_LOG = {"max-size": "10m", "max-file": "2"}


def start_hosts(job: DockerJob, client: APIClient, where: str) -> dict[str, ContainerAgent]:
    """Make network and containers, then start all. Raises EngineError that names the host; `removal` undoes it."""
    make_network(job, client)
    info = daemon.facts(client)
    credentials = credentials_of(job.training_job, os.environ)
    agents = {}
    for host in job.hosts:
        devices = devices_of(job, host, info)
        environment = agent_environment(job, os.environ, credentials, devices)
        container = make_container(job, client, host, environment, devices, user_of(job, info))
        agents[host] = ContainerAgent(where, container, job.folder.log(host))
    for host, agent in agents.items():
        try:
            agent.start()
        except EngineError as exc:
            raise EngineError(f"the container of {host}: {_startable(job, str(exc))}") from exc
    return agents


def make_network(job: DockerJob, client: APIClient) -> None:
    """A bridge that only this job's hosts are on. Raises EngineError."""
    with daemon.explained(f"the network {job.network} can't be made"):
        client.create_network(
            job.network,
            driver="bridge",
            check_duplicate=True,
            internal=bool(job.training_job.get("EnableNetworkIsolation")),
            labels=dict(labels_of(job.folder)),
        )


def make_container(
    job: DockerJob, client: APIClient, host: str, environment: Mapping[str, str], devices: tuple[str, ...], user: str
) -> str:
    """The container of `host`, not yet started. Returns its ID. Raises EngineError."""
    algorithm = job.training_job.get("AlgorithmSpecification", {})
    arguments = algorithm.get("ContainerArguments")
    with daemon.explained(f"the container of {host} can't be made"):
        endpoint = client.create_endpoint_config(aliases=[host])
        made = client.create_container(
            job.image,
            command=list(arguments) if arguments else [TRAIN],
            entrypoint=list(algorithm["ContainerEntrypoint"]) if algorithm.get("ContainerEntrypoint") else None,
            name=job.container(host),
            hostname=host,
            user=user,
            environment=dict(environment),
            labels={**labels_of(job.folder), HOST_LABEL: host},
            stop_signal="SIGTERM",
            stop_timeout=int(job.options.stop_timeout_seconds + AGENT_MARGIN_SECONDS),
            networking_config=client.create_networking_config({job.network: endpoint}),
            host_config=client.create_host_config(**_host_config(job, host, devices)),
        )
    return str(made["Id"])


def user_of(job: DockerJob, info: Mapping[str, Any]) -> str:
    """Whom a container runs as: what it leaves belongs to whoever called, unless it must be root to mount."""
    if job.options.user is not None:
        return job.options.user
    if job.options.fuse or daemon.is_rootless(info):
        return "0:0"
    return f"{os.getuid()}:{os.getgid()}"


def _host_config(job: DockerJob, host: str, devices: tuple[str, ...]) -> dict[str, Any]:
    from docker.types import DeviceRequest, LogConfig, Mount

    memory = None if job.options.memory is None else size_bytes(job.options.memory)
    found = mounts.of_host(job.folder, job.training_job, host, ca_bundle(os.environ))
    return {
        "mounts": [Mount(m.target, str(m.source), type="bind", read_only=m.read_only) for m in found],
        "network_mode": job.network,
        "log_config": LogConfig(type="json-file", config=_LOG),
        "device_requests": [DeviceRequest(device_ids=list(devices), capabilities=[["gpu"]])] if devices else None,
        **({"mem_limit": memory, "memswap_limit": memory} if memory else {}),
        **(_FUSE if job.options.fuse else _NO_RIGHTS),
    }


_FUSE: Mapping[str, Any] = {
    "devices": ["/dev/fuse:/dev/fuse:rwm"],
    "cap_add": ["SYS_ADMIN"],
    "security_opt": ["apparmor=unconfined"],
}
_NO_RIGHTS: Mapping[str, Any] = {"cap_drop": ["ALL"], "security_opt": ["no-new-privileges"]}


def _startable(job: DockerJob, said: str) -> str:
    """`said`, with the usual cause: an image that doesn't have what it is started with."""
    if "executable file not found" not in said and "no such file or directory" not in said:
        return said
    return (
        f"{said}. The image {job.image} can't run a host of a job: its ENTRYPOINT and `{TRAIN}` start nothing of "
        "hdp's. Make it FROM an image of `hdp build`, or install hdp-train in it and say what starts the agent: "
        'container_entry_point=["python", "-m", "hdp.runtime.launch.entrypoint"]'
    )
