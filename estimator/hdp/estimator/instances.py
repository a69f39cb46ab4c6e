"""What a plan knows about Amazon's instance types: GPUs, and whether the network has EFA.

Nobody has checked this table against Amazon's own list, so a plan's count is a hint: hosts count their GPUs themselves
when the job runs. A type that isn't here counts as one without GPUs, and the plan says so.
"""

from __future__ import annotations

import re

_GPUS_BY_SIZE = {
    "p3": {"2xlarge": 1, "8xlarge": 4, "16xlarge": 8},
    "p3dn": {"24xlarge": 8},
    "p4d": {"24xlarge": 8},
    "p4de": {"24xlarge": 8},
    "p5": {"4xlarge": 1, "48xlarge": 8},
    "p5e": {"48xlarge": 8},
    "p5en": {"48xlarge": 8},
    "p6-b200": {"48xlarge": 8},
    "g4dn": {"12xlarge": 4},
    "g5": {"12xlarge": 4, "24xlarge": 4, "48xlarge": 8},
    "g6": {"12xlarge": 4, "24xlarge": 4, "48xlarge": 8},
    "g6e": {"12xlarge": 4, "24xlarge": 4, "48xlarge": 8},
}
_ONE_GPU = {f: {"xlarge", "2xlarge", "4xlarge", "8xlarge", "16xlarge"} for f in ("g4dn", "g5", "g6", "g6e")}
_EFA_FAMILIES = {"p3dn", "p4d", "p4de", "p5", "p5e", "p5en", "p6-b200", "c5n", "trn1", "trn1n", "trn2"}
_EFA_SIZES = {
    "g4dn": {"8xlarge", "12xlarge", "16xlarge"},
    "g5": {"8xlarge", "12xlarge", "16xlarge", "24xlarge", "48xlarge"},
    "g6": {"8xlarge", "12xlarge", "16xlarge", "24xlarge", "48xlarge"},
    "g6e": {"8xlarge", "12xlarge", "16xlarge", "24xlarge", "48xlarge"},
}
_CPU_FAMILY = re.compile(r"[cmrt][0-9][a-z]*")


def gpus(instance_type: str) -> int | None:
    """GPUs of one host of this type (``ml.<family>.<size>``); None where the type isn't known."""
    family, size = _split(instance_type)
    if _CPU_FAMILY.fullmatch(family):
        return 0
    if size in _ONE_GPU.get(family, ()):
        return 1
    return _GPUS_BY_SIZE.get(family, {}).get(size)


def has_efa(instance_type: str) -> bool:
    """Whether hosts of this type have an Elastic Fabric Adapter."""
    family, size = _split(instance_type)
    return family in _EFA_FAMILIES or size in _EFA_SIZES.get(family, ())


def _split(instance_type: str) -> tuple[str, str]:
    _, _, rest = instance_type.partition(".")
    family, _, size = rest.partition(".")
    return family, size
