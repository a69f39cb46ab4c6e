"""From framework_version and py_version to the URI of an AWS Deep Learning Container. Pure but for two tables it reads.

The tables: `images.json`, made from those inside SageMaker's SDK v2 (it says of which version, and when), and, where
the package ``sagemaker`` is installed, the newer one of that package, v2 or v3, which is read without importing it.
A version that neither has becomes the nearest of the same minor, and the plan says so.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hdp.estimator.faults import shown
from hdp.estimator.spelling import did_you_mean

_OWN = Path(__file__).with_name("images.json")
#: AWS partitions: what regions begin with, and the domain of their hosts. botocore's endpoints have the same.
_DOMAINS = {
    "cn-": "amazonaws.com.cn",
    "us-isob-": "sc2s.sgov.gov",
    "us-isof-": "csp.hci.ic.gov",
    "us-iso-": "c2s.ic.gov",
    "eu-isoe-": "cloud.adc-e.uk",
    "eusc-": "amazonaws.eu",
}
_ARM = re.compile(r"[a-z]+\d+g|p6e-gb")
_NEURON = ("trn", "inf")
#: CUDA of the images for Amazon's model parallel library, by PyTorch's minor; it is part of their tag.
_SMP_CUDA = {
    "2.0": "cu118",
    **dict.fromkeys(("2.1", "2.2", "2.3", "2.4"), "cu121"),
    "2.5": "cu124",
}


@dataclass(frozen=True)
class Release:
    """One version of a framework's images."""

    repository: str
    py_versions: tuple[str, ...]
    accounts: Mapping[str, str]
    """By region: the account that owns the images there."""


@dataclass(frozen=True)
class Table:
    """All versions of one framework's images."""

    releases: Mapping[str, Release]
    aliases: Mapping[str, str]
    """Names such as "2.9", which images have as tags too, and the version that each stands for."""
    processors: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class Found:
    """A release, as a user asked for it."""

    tag: str
    """What the image's tag begins with: the version, or the alias as it was given."""
    py_version: str
    release: Release
    note: str = ""
    """What differs from what was asked for."""


def find(framework: str, version: str, py_version: str | None) -> Found:
    """The images of `framework` ("pytorch", ...) for these versions. Raises ValueError with the fault's line."""
    table = tables(framework)
    name, note = version, ""
    if version not in table.releases and version not in table.aliases:
        name = _nearest(framework, version, table)
        note = f"there is no {framework} image of {version}; {name}, the nearest of the same minor, stands for it"
    release = table.releases[table.aliases.get(name, name)]
    have = ", ".join(map(repr, release.py_versions))
    if py_version is None and len(release.py_versions) > 1:
        raise ValueError(f"py_version is missing; framework_version {name!r} has images with {have}: choose one")
    if py_version is not None and py_version not in release.py_versions:
        raise ValueError(
            f"py_version is {shown(py_version)}; the {framework} images of {name} have {have}: give that, or image_uri"
        )
    return Found(name, py_version or release.py_versions[0], release, note)


def uri(framework: str, found: Found, instance_type: str, region: str) -> str:
    """The image's URI in `region`, for hosts of `instance_type`. Raises ValueError with the fault's line."""
    processor = processor_of(instance_type)
    if processor not in tables(framework).processors:
        raise ValueError(f"instance_type {instance_type!r}: {framework} images are for GPUs only; choose such a type")
    account = found.release.accounts.get(region)
    if account is None:
        raise ValueError(
            f"framework_version {found.tag!r}: {framework} has no image of it in the region {region!r}"
            f"{did_you_mean(region, found.release.accounts)}; give image_uri"
        )
    tag = [found.tag, processor, found.py_version]
    if framework == "pytorch-smp":
        tag.append(smp_cuda(found.tag, instance_type))
    return f"{registry(account, region)}/{found.release.repository}:{'-'.join(tag)}"


def rule_evaluator(region: str) -> str:
    """URI of the image that evaluates Debugger's built-in rules. Raises ValueError with the fault's line."""
    release = next(iter(tables("debugger").releases.values()))
    if region not in release.accounts:
        raise ValueError(f"rules: Debugger's own rules aren't in the region {region!r}; give Rule.custom an image_uri")
    return f"{registry(release.accounts[region], region)}/{release.repository}:latest"


def registry(account: str, region: str) -> str:
    """The host of an account's images in `region`."""
    domain = next((d for prefix, d in _DOMAINS.items() if region.startswith(prefix)), "amazonaws.com")
    return f"{account}.dkr.ecr.{region}.{domain}"


def processor_of(instance_type: str) -> str:
    """ "gpu" or "cpu". Raises ValueError with the fault's line for hosts that these images don't run on."""
    family = family_of(instance_type)
    if family.startswith(_NEURON):
        raise ValueError(
            f"instance_type is {instance_type!r}, with Neuron chips, which need images of their own: give image_uri"
        )
    if _ARM.match(family):
        raise ValueError(
            f"instance_type is {instance_type!r}, with ARM processors; AWS's training images are for x86: choose "
            "another type, or give the image_uri of one for ARM"
        )
    return "gpu" if family[:1] in ("g", "p") else "cpu"


def family_of(instance_type: str) -> str:
    """The ``p4d`` of ``ml.p4d.24xlarge``; empty for what isn't Amazon's."""
    return instance_type.split(".")[1] if instance_type.count(".") == 2 else ""


def smp_cuda(version: str, instance_type: str) -> str:
    """What ends the tag of an image with Amazon's model parallel library. Raises ValueError with the fault's line."""
    minor = ".".join(version.split(".")[:2])
    if minor not in _SMP_CUDA:
        known = ", ".join(_SMP_CUDA)
        raise ValueError(f"framework_version is {version!r}; modelparallel has images for {known}: give image_uri")
    return "cu121" if "p5" in instance_type and minor == "2.0" else _SMP_CUDA[minor]


@functools.cache
def tables(framework: str) -> Table:
    """What is known of a framework's images, from our table and the installed SDK's."""
    everything = json.loads(_OWN.read_text(encoding="utf-8"))
    own = from_own(everything, framework)
    newer = next(_installed(framework), None)
    if newer is None:
        return own
    return Table({**own.releases, **newer.releases}, {**own.aliases, **newer.aliases}, newer.processors, newer.source)


def from_own(everything: Mapping[str, Any], framework: str) -> Table:
    """One framework of `images.json`."""
    row = everything["images"][framework]
    accounts = everything["accounts"][row["accounts"]]
    releases = {
        version: Release(row["repository"], tuple(py), {r: a for r, a in accounts.items() if r not in missing})
        for version, (py, missing) in row["versions"].items()
    }
    source = f"hdp's table of {everything['date']}"
    return Table(releases, row["aliases"], tuple(row["processors"]), source)


def from_sdk(config: Mapping[str, Any], source: str) -> Table:
    """One framework of the SDK's own tables (``image_uri_config``)."""
    scope = config.get("training", config)
    releases = {
        version: Release(row["repository"], tuple(row.get("py_versions", ())), row["registries"])
        for version, row in scope["versions"].items()
        if "repository" in row
    }
    return Table(releases, scope.get("version_aliases", {}), tuple(scope.get("processors", ())), source)


def _installed(framework: str) -> Iterator[Table]:
    """The table of the SDK that is installed here, if any. Its package isn't imported: that takes seconds."""
    spec = importlib.util.find_spec("sagemaker")
    for folder in spec.submodule_search_locations or () if spec else ():
        for inside in ("image_uri_config", "core/image_uri_config"):
            path = Path(folder) / inside / f"{framework}.json"
            if path.is_file():
                yield from_sdk(json.loads(path.read_text(encoding="utf-8")), "the installed SDK's table")


def _nearest(framework: str, version: str, table: Table) -> str:
    """The known version of the same minor whose patch is nearest, of two the newer."""
    numbers = _numbers(version)
    same = [v for v in table.releases if numbers and _numbers(v)[:2] == numbers[:2]]
    if numbers and same:
        patch = (*numbers, 0)[2]
        return min(same, key=lambda v: (abs((*_numbers(v), 0)[2] - patch), [-n for n in _numbers(v)]))
    minors = dict.fromkeys(".".join(v.split(".")[:2]) for v in sorted(table.releases, key=_numbers, reverse=True))
    raise ValueError(
        f"framework_version is {shown(version)}; {framework} images are known for {', '.join(minors)} "
        f"({table.source}): choose one of them, or give image_uri"
    )


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split(".")
    return tuple(map(int, parts)) if all(p.isdecimal() for p in parts) and 2 <= len(parts) <= 3 else ()
