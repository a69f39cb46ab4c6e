"""The hosts of a local job, as its request has them: their names, their kinds, their instance groups. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hdp.contract.files import ONE_GROUP, host_names

#: What a host can be: without GPUs, or with its share of the machine's.
LOCAL, LOCAL_GPU = KINDS = "local", "local_gpu"


@dataclass(frozen=True)
class Group:
    """Hosts of one kind."""

    name: str
    kind: str
    hosts: tuple[str, ...]


def groups_of(training_job: Mapping[str, Any]) -> tuple[Group, ...]:
    """The instance groups, algo-1 to algo-N over them in their order; without any in the request, one of all hosts."""
    resources = training_job.get("ResourceConfig") or {}
    wanted = resources.get("InstanceGroups") or [{**resources, "InstanceGroupName": ONE_GROUP}]
    names = iter(host_names(sum(_count(group) for group in wanted)))
    return tuple(
        Group(
            str(group.get("InstanceGroupName")),
            str(group.get("InstanceType", LOCAL)),
            tuple(next(names) for _ in range(_count(group))),
        )
        for group in wanted
    )


def hosts_of(training_job: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of all hosts, in order."""
    return tuple(host for group in groups_of(training_job) for host in group.hosts)


def group_of(training_job: Mapping[str, Any], host: str) -> Group:
    """The group of `host`."""
    return next(group for group in groups_of(training_job) if host in group.hosts)


def hosts_with_gpus(training_job: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the hosts that get GPUs."""
    return tuple(host for group in groups_of(training_job) if group.kind == LOCAL_GPU for host in group.hosts)


def _count(group: Mapping[str, Any]) -> int:
    return int(group.get("InstanceCount") or 0)
