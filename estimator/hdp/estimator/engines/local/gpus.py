"""The machine's GPUs and which host of a job gets which."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hdp.estimator.engines.local.trees import instance_count, instance_type

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
    """GPUs of each host: none for ``local``; for ``local_gpu`` the usable GPUs are divided among the hosts."""
    return usable // instance_count(training_job) if instance_type(training_job) == "local_gpu" else 0


def devices_of(training_job: Mapping[str, Any], host_index: int, usable: Sequence[str]) -> tuple[str, ...]:
    """Devices of the host with this index."""
    share = gpus_per_host(training_job, len(usable))
    return tuple(usable[host_index * share : (host_index + 1) * share])
