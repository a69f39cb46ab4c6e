"""Which images are compared with v2's: framework, version, py_version, instance type and region, one a line."""

from __future__ import annotations

_VERSIONS = (
    "tensorflow 2.4.1 py37", "tensorflow 2.9 py39", "tensorflow 2.9.2 py39", "tensorflow 2.12.0 py310",
    "tensorflow 2.19 py312", "pytorch 1.7.1 py36", "pytorch 1.12 py38", "pytorch 1.13.1 py39", "pytorch 2.1 py310",
    "pytorch 2.5.1 py311", "pytorch 2.8.0 py312",
)  # fmt: skip
_TYPES = ("ml.p4d.24xlarge", "ml.g5.xlarge", "ml.m5.xlarge", "ml.c5n.18xlarge", "ml.p5.48xlarge", "ml.t3.medium")
_REGIONS = (
    "us-east-1", "eu-central-1", "af-south-1", "il-central-1", "ap-southeast-5", "cn-northwest-1", "us-gov-east-1",
)  # fmt: skip

#: Each version with each type and each region somewhere, not all of all.
GRID = (
    *(f"{v} {_TYPES[i % len(_TYPES)]} {_REGIONS[i % len(_REGIONS)]}" for i, v in enumerate(_VERSIONS)),
    *(f"{v} {_TYPES[(i + 2) % len(_TYPES)]} {_REGIONS[(i + 3) % len(_REGIONS)]}" for i, v in enumerate(_VERSIONS)),
    *(f"pytorch 2.2.0 py310 {kind} us-west-2" for kind in _TYPES),
    *(f"tensorflow 2.11.0 py39 ml.p3.16xlarge {region}" for region in _REGIONS),
    "pytorch 2.3 py311 ml.p4d.24xlarge us-isof-east-1",
    "tensorflow 2.11 py39 ml.p3.2xlarge us-iso-east-1",
)
