"""Which host of a job gets which of the machine's GPUs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from hdp.estimator.engines.docker import daemon
from hdp.estimator.engines.docker.dockerjob import DockerJob
from hdp.estimator.engines.local.gpus import usable_gpus


def per_host(wanted: int | None, hosts: int, usable: int, info: Mapping[str, Any]) -> int:
    """GPUs of each host. wanted: `DockerOptions.gpus`. usable: of this machine. info: the daemon's."""
    if wanted is not None:
        return wanted
    return usable // hosts if daemon.has_gpus(info) and hosts else 0


def faults(wanted: int | None, hosts: int, usable: int, info: Mapping[str, Any]) -> list[str]:
    """Why the hosts can't have the GPUs that were asked for, if so."""
    if not wanted:
        return []
    if not daemon.has_gpus(info):
        return [
            f"engine_options.gpus={wanted}: this Docker daemon has no NVIDIA runtime; install NVIDIA's container "
            "toolkit, or leave gpus out to train on the CPU"
        ]
    if wanted * hosts > usable:
        return [f"engine_options.gpus={wanted}: {hosts} host(s) would need {wanted * hosts}, and {usable} can be used"]
    return []


def devices_of(job: DockerJob, host: str, info: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the GPUs of `host`."""
    usable = usable_gpus(os.environ)
    count = per_host(job.options.gpus, len(job.hosts), len(usable), info)
    first = job.hosts.index(host) * count
    return usable[first : first + count]
