"""The machine's GPUs and which host of a job gets which."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hdp.estimator.engines.local import kinds

VISIBLE = "CUDA_VISIBLE_DEVICES"


def count_gpus(dev: Path = Path("/dev")) -> int:
    """Number of NVIDIA devices of this machine."""
    return sum(1 for node in dev.glob("nvidia*") if re.fullmatch(r"nvidia[0-9]+", node.name))


def usable_gpus(environ: Mapping[str, str], dev: Path = Path("/dev")) -> tuple[str, ...]:
    """Names of the devices that the user lets us use: CUDA_VISIBLE_DEVICES, else all of them."""
    count = count_gpus(dev)
    if VISIBLE not in environ:
        return tuple(map(str, range(count)))
    return tuple(name.strip() for name in environ[VISIBLE].split(",") if name.strip())[:count]


def gpus_per_host(training_job: Mapping[str, Any], usable: int) -> int:
    """GPUs of each host that has some: the usable ones are divided among the ``local_gpu`` hosts."""
    hosts = kinds.hosts_with_gpus(training_job)
    return usable // len(hosts) if hosts else 0


def gpus_by_group(training_job: Mapping[str, Any], usable: int) -> dict[str, int]:
    """GPUs of each host of a group: none for ``local``."""
    share = gpus_per_host(training_job, usable)
    return {group.name: share * (group.kind == kinds.LOCAL_GPU) for group in kinds.groups_of(training_job)}


def devices_of(training_job: Mapping[str, Any], host: str, usable: Sequence[str]) -> tuple[str, ...]:
    """Devices of `host`."""
    hosts, share = kinds.hosts_with_gpus(training_job), gpus_per_host(training_job, len(usable))
    place = hosts.index(host) if host in hosts else len(usable)
    return tuple(usable[place * share : (place + 1) * share])
