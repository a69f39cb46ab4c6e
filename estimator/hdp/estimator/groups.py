"""Instance groups: hosts of several kinds in one job, and which of the groups the ranks run on.

The hosts are algo-1 to algo-N over the groups in their order. The script runs on all of them: as the distribution's
ranks on the hosts of the groups that it names, and once, as a plain process, on every other host.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from pydantic import Field, ValidationError, field_validator

from hdp.contract.errors import SpecError
from hdp.estimator.faults import Strict, of_validation, seen, shown
from hdp.estimator.spelling import did_you_mean

#: More hosts than any job has; a larger number is a slip, and its plan would fill the memory.
MOST_HOSTS = 10_000
#: CreateTrainingJob's limit.
MOST_GROUPS = 5
_MAX_NAME_CHARS = 64
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SHAPE = "InstanceGroup('gpu', 'ml.p4d.24xlarge', 2)"


class InstanceGroup(Strict):
    """Hosts of one kind in a job with several kinds: `instance_count` of the type `instance_type`.

    instance_group_name: what channels and the distribution call it, and scripts find in SM_CURRENT_INSTANCE_GROUP.

    Raises SpecError that lists every fault.
    """

    instance_group_name: str
    instance_type: str
    instance_count: int = Field(ge=1, le=MOST_HOSTS)

    def __init__(self, instance_group_name: str, instance_type: str, instance_count: int) -> None:
        given = {"instance_group_name": instance_group_name, "instance_type": instance_type}
        try:
            super().__init__(**{**given, "instance_count": instance_count})
        except ValidationError as exc:
            raise SpecError(of_validation(exc, InstanceGroup, ""), "InstanceGroup") from exc

    @field_validator("instance_group_name")
    @classmethod
    def _name(cls, name: str) -> str:
        if not 1 <= len(name) <= _MAX_NAME_CHARS or _CONTROL.search(name):
            raise ValueError(f"{shown(name)} can't be a group's name; expected 1 to 64 characters on one line")
        return name


def declared(value: object) -> object:
    """`value`, an estimator's instance_groups. Raises ValueError where it isn't a list of groups."""
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{seen(value)} isn't a list of groups; write [{_SHAPE}, ...]")
    for item in value:
        if not isinstance(item, InstanceGroup):
            raise ValueError(f"{seen(item)} isn't an InstanceGroup; write {_SHAPE}")
    return value


def named(value: object) -> object:
    """`value`, a list of groups or of their names, as names. Anything else is left to the model."""
    if not isinstance(value, (list, tuple)):
        return value
    return [item.instance_group_name if isinstance(item, InstanceGroup) else item for item in value]


def duplicates(groups: Sequence[InstanceGroup]) -> list[str]:
    """A fault for each name that two groups share."""
    names = [g.instance_group_name for g in groups]
    twice = dict.fromkeys(n for n in names if names.count(n) > 1)
    return [f"instance_groups: {shown(n)} is the name of {names.count(n)} groups; give each its own" for n in twice]


def unknown(name: object, groups: Sequence[InstanceGroup], where: str) -> str | None:
    """The fault of a name that no group has; None where one has it."""
    names = [g.instance_group_name for g in groups]
    if name in names:
        return None
    if not names:
        return (
            f"{where}: there is no group {shown(name)}: the estimator has no instance_groups; give it [{_SHAPE}, ...]"
        )
    have = ", ".join(map(repr, names))
    return f"{where}: {shown(name)} isn't one of the estimator's instance_groups ({have}){did_you_mean(name, names)}"


def of_channels(named: Mapping[str, Sequence[str]], groups: Sequence[InstanceGroup]) -> list[str]:
    """The faults of what channels name. named: each channel's groups; none: all hosts get it."""
    faults = [
        fault
        for channel, names in named.items()
        for name in names
        if (fault := unknown(name, groups, f"inputs[{channel!r}].instance_groups"))
    ]
    choosy = next((channel for channel, names in named.items() if names), None)
    every = ", ".join(repr(g.instance_group_name) for g in groups)
    missing = [channel for channel, names in named.items() if choosy is not None and not names]
    return faults + [
        f"inputs[{channel!r}].instance_groups is missing, and channel {choosy!r} has it: if one channel names groups, "
        f"all must; for every host write instance_groups=[{every}]"
        for channel in missing
    ]


def too_many(names: Sequence[str], cloud: bool) -> list[str]:
    """SageMaker's own rule for the groups of a distribution."""
    if not cloud or len(names) < 2:
        return []
    listed = ", ".join(map(repr, names))
    return [f"distribution.instance_groups names {listed}; on SageMaker a distribution has one group: choose one"]


def of_distribution(
    value: object, groups: Sequence[InstanceGroup], launches: bool, where: str = "distribution.instance_groups"
) -> tuple[tuple[str, ...], list[str]]:
    """The names of the groups that ranks run on, in the hosts' order, and the faults.

    value: what the distribution says: groups or their names; None: nothing. launches: whether it enables a strategy.
    A lone group needn't be named, as in v2.
    """
    if value is None or value == []:
        return _unsaid(groups, launches, where)
    if not isinstance(value, (list, tuple)):
        return (), [f"{where} is {seen(value)}; expected a list of groups or of their names"]
    faults = [fault for item in value for fault in _item_faults(item, groups, where)]
    names = [item.instance_group_name if isinstance(item, InstanceGroup) else item for item in value]
    faults += [f"{where} has {shown(n)} twice; once is enough" for n in dict.fromkeys(names) if names.count(n) > 1]
    if not launches and not faults:
        faults = [f"{where} is for a strategy, and none is enabled; leave it out, or enable one"]
    return tuple(g.instance_group_name for g in groups if g.instance_group_name in names), faults


def numbers(value: object, most: int, where: str) -> tuple[dict[str, int], list[str]]:
    """`value`, a number of ranks for each group, and its faults. Anything but a dictionary is left to the model."""
    if not isinstance(value, Mapping):
        return {}, []
    if not value:
        return {}, [f"{where} is {{}}; expected a number, or a number for each group"]
    good = {str(k): v for k, v in value.items() if isinstance(v, int) and not isinstance(v, bool) and 1 <= v <= most}
    return good, [
        f"{where}[{shown(k)}] is {seen(v)}; expected a whole number from 1 to {most}"
        for k, v in value.items()
        if str(k) not in good
    ]


def unlike(by_group: Mapping[str, int], chosen: Sequence[str], where: str) -> list[str]:
    """The fault of numbers for other groups than those with ranks."""
    if not by_group or (len(chosen) > 1 and set(by_group) == set(chosen)):
        return []
    names = ", ".join(map(repr, chosen))
    several = "one number: several are for a distribution that names several instance_groups"
    wanted = f"a number for each of {names}" if len(chosen) > 1 else several
    return [f"{where}.processes_per_host is {shown(dict(by_group))}; expected {wanted}"]


def _unsaid(groups: Sequence[InstanceGroup], launches: bool, where: str) -> tuple[tuple[str, ...], list[str]]:
    names = tuple(g.instance_group_name for g in groups)
    if not launches or not groups:
        return (), []
    if len(groups) == 1:
        return names, []
    example = f"[{names[0]!r}]"
    return (), [
        f"{where} is missing: say on which of the groups {', '.join(map(repr, names))} ranks run, e.g. {example}"
    ]


def _item_faults(item: object, groups: Sequence[InstanceGroup], where: str) -> list[str]:
    if isinstance(item, str):
        fault = unknown(item, groups, where)
        return [fault] if fault else []
    if not isinstance(item, InstanceGroup):
        return [f"{where} has {seen(item)}; expected an InstanceGroup or the name of one"]
    fault = unknown(item.instance_group_name, groups, where)
    if fault:
        return [fault]
    same = item in groups
    return [] if same else [f"{where}: {item!r} differs from the estimator's group of that name; give the same one"]
