"""From what the user wants compared to estimators that can start: every fault of all variants in one SpecError."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hdp.contract.errors import HdpError, SpecError
from hdp.contract.redact import redact
from hdp.estimator import naming
from hdp.estimator.comparison.model import Kind, Variant
from hdp.estimator.estimator import Estimator
from hdp.estimator.faults import seen, shown
from hdp.estimator.groups import InstanceGroup
from hdp.estimator.spelling import did_you_mean

#: What a variant may have of its own. These are put on top of the estimator's; the others replace them.
_MERGED = ("hyperparameters", "environment", "engine_options")
CHANGES = ("distribution", *_MERGED, "instance_count", "instance_groups", "entry_point", "source_dir", "dependencies")
#: What a baseline may: the rest is what makes it one.
_OF_BASELINES = (*_MERGED, "entry_point", "source_dir", "dependencies")
_LONGEST_LABEL = 30
ONE_PROCESS, APART = "one process", "apart"
_PLAIN: Mapping[str, Any] = {"distribution": {}, "instance_groups": None}


@dataclass(frozen=True)
class Entry:
    """A variant, and the estimator that runs it."""

    variant: Variant
    estimator: Estimator
    engine: str
    """Its name."""
    without_ranks: frozenset[str] = frozenset()
    """Hosts of instance groups that the distribution doesn't name."""


def entries_of(
    estimator: Estimator, variants: object, inputs: object, baselines: object, faults: Sequence[str]
) -> list[Entry]:
    """Everything that is to run: the user's variants in their order, then the baselines.

    variants, baselines: what `compare` was given. faults: what is wrong with the call otherwise.
    Raises SpecError with `faults` and every fault of every variant, behind its label.
    """
    wanted, wrong_baselines = baselines_of(baselines)
    found = [*faults, *wrong_baselines]
    if not isinstance(estimator, Estimator):
        expected = "expected an Estimator, or one of its kinds, e.g. Estimator(entry_point='train.py')"
        raise SpecError([f"estimator is {seen(estimator)}; {expected}", *found], "compare()")
    if not isinstance(variants, Mapping) or not variants:
        what = seen(variants) if variants else "empty"
        expected = 'expected {label: distribution}, e.g. {"hdp": {"hdp": {"enabled": True}}}'
        raise SpecError([*found, f"variants is {what}; {expected}"], "compare()")
    entries: list[Entry] = []
    for label, given in variants.items():
        wrong = _label_faults(label, bool(wanted))
        changes, wrong_keys = changes_of(given)
        found += [f"{shown(label)}: {fault}" for fault in [*wrong, *wrong_keys]]
        if not wrong and not wrong_keys:
            entries += _tried(estimator, str(label), "variant", changes, inputs, found)
    if wanted and not found:
        entries = _with_baselines(estimator, entries, inputs, wanted, found)
    if found:
        raise SpecError(found, "compare()")
    return entries


def changes_of(given: object) -> tuple[Mapping[str, Any], list[str]]:
    """Arguments that a variant changes, and what is wrong with them. A dictionary of none of them is a distribution."""
    if not isinstance(given, Mapping):
        return {}, [f"it is {seen(given)}; expected a distribution, or a dictionary of {', '.join(CHANGES)}"]
    telling = set(CHANGES) - {"instance_groups"}  # a distribution may have that key too
    if not set(given) & telling and set(given) != {"instance_groups"}:
        return {"distribution": given}, []
    unknown = [key for key in given if key not in CHANGES]
    known = f" (known: {', '.join(CHANGES)})"
    faults = [f"{shown(key)} can't differ between variants{did_you_mean(key, CHANGES)}{known}" for key in unknown]
    faults += [
        f"{key} is {seen(given[key])}; expected a dictionary"
        for key in _MERGED
        if key in given and not isinstance(given[key], Mapping)
    ]
    return given, faults


def baselines_of(given: object) -> tuple[Mapping[str, Mapping[str, Any]], list[str]]:
    """The baselines that are wanted, with what each changes, and what is wrong with that."""
    if isinstance(given, bool):
        return {name: {} for name in (ONE_PROCESS, APART) if given}, []
    if not isinstance(given, Mapping):
        return {}, [f"baselines is {seen(given)}; expected True, False, or {{'{APART}': what it changes}}"]
    wanted: dict[str, Mapping[str, Any]] = {ONE_PROCESS: {}, APART: {}}
    faults = []
    for name, changes in given.items():
        where = f"baselines[{shown(name)}]"
        if name not in wanted:
            faults.append(f"{where} is unknown{did_you_mean(name, wanted)} (known: {', '.join(wanted)})")
        elif not isinstance(changes, Mapping):
            faults.append(f"{where} is {seen(changes)}; expected a dictionary of {', '.join(_OF_BASELINES)}")
        else:
            faults += [
                f"{where}: {shown(key)} can't differ{did_you_mean(key, _OF_BASELINES)} "
                f"(known: {', '.join(_OF_BASELINES)})"
                for key in changes
                if key not in _OF_BASELINES
            ]
            wanted[name] = changes
    return wanted, faults


def _label_faults(label: object, baselines: bool) -> list[str]:
    if not isinstance(label, str) or not 0 < len(label) <= _LONGEST_LABEL or not label.isprintable():
        return [f"a label is 1 to {_LONGEST_LABEL} printable characters"]
    if baselines and label.startswith((ONE_PROCESS, APART)):
        return ["a baseline has that name; take another label, or leave the baselines out: baselines=False"]
    return []


def _tried(
    estimator: Estimator, label: str, kind: Kind, changes: Mapping[str, Any], inputs: object, faults: list[str]
) -> list[Entry]:
    """The entry, if nothing is wrong with it; what is wrong is added to `faults`."""
    hint = "" if kind == "variant" else " (a baseline; baselines=False leaves it out)"
    try:
        own = estimator._varied({**merged(estimator, changes), "base_job_name": _base_name(estimator, label)})
        plan = own._startable(inputs)
    except SpecError as exc:
        faults += [f"{label}: {fault}{hint}" for fault in exc.faults]
        return []
    except HdpError as exc:
        faults.append(f"{label}: {exc}{hint}")
        return []
    ranks = Counter(rank.host for rank in plan.ranks)
    others = frozenset(process.host for process in plan.others)
    kept = CHANGES[1:] if kind == "variant" else _OF_BASELINES
    differs = {k: v for k, v in changes.items() if k in kept and _differs(k, own, estimator)}
    distribution = redact(plain(own.settings.distribution or {}))
    unequal = len(set(ranks.values())) > 1
    own_changes = redact(plain(differs))
    variant = Variant(label, kind, distribution, own_changes, len(ranks), len(plan.ranks), unequal, len(others))
    return [Entry(variant, own, plan.engine, others)]


def plain(value: Any) -> Any:
    """`value` as it is after JSON; paths and the like are text."""
    return json.loads(json.dumps(value, default=_text))


def _text(value: object) -> str:
    if isinstance(value, InstanceGroup):
        return f"{value.instance_group_name}: {value.instance_type} x {value.instance_count}"
    return str(value)


def _differs(name: str, own: Estimator, estimator: Estimator) -> bool:
    return bool((getattr(own.settings, name) or None) != (getattr(estimator.settings, name) or None))


def _base_name(estimator: Estimator, label: str) -> str:
    """What names of the jobs begin with."""
    s = estimator.settings
    return f"{naming.base_name(s.base_job_name, s.image_uri, s.entry_point)}-{naming.sanitised(label)}".rstrip("-")


def merged(estimator: Estimator, changes: Mapping[str, Any]) -> dict[str, Any]:
    """`changes`, with the estimator's own hyperparameters, environment and engine options below the variant's.

    Instance groups and a number of hosts exclude each other, so either takes the estimator's other one away.
    """
    own = {name: getattr(estimator.settings, name) or {} for name in _MERGED}
    changed = {key: {**own[key], **value} if key in _MERGED else value for key, value in changes.items()}
    if changed.get("instance_groups"):
        return {"instance_count": None, **changed, "instance_type": None}
    if changed.get("instance_count") is None or not estimator.settings.instance_groups:
        return changed
    types = {group.instance_type for group in estimator.settings.instance_groups}
    return {**changed, "instance_groups": None, **({"instance_type": types.pop()} if len(types) == 1 else {})}


# ---- baselines -------------------------------------------------------------------------------------------------------


def _with_baselines(
    estimator: Estimator,
    entries: list[Entry],
    inputs: object,
    wanted: Mapping[str, Mapping[str, Any]],
    faults: list[str],
) -> list[Entry]:
    """`entries` that name their baselines, and the baselines: one process, and the processes of each shape apart."""
    changes = {**wanted[ONE_PROCESS], **_PLAIN, "instance_count": 1}
    alone = _tried(estimator, ONE_PROCESS, "one process", changes, inputs, faults)
    shapes = {key: entry for entry in entries if (key := _shape_key(entry)) is not None}
    labels = dict(zip(shapes, _apart_labels([entry.variant for entry in shapes.values()]), strict=True))
    apart = [
        found
        for key, entry in shapes.items()
        for found in _tried(estimator, labels[key], "apart", _apart_changes(entry, wanted[APART]), inputs, faults)
    ]
    named = [replace(e, variant=replace(e.variant, apart=labels.get(_shape_key(e) or ""))) for e in entries]
    return [*named, *alone, *apart]


def _apart_changes(entry: Entry, changes: Mapping[str, Any]) -> dict[str, Any]:
    v = entry.variant
    distribution = {"apart": {"enabled": True, "processes_per_host": v.ranks // v.hosts}}
    options = {**_options(entry), **changes.get("engine_options", {})}
    return {**changes, **_PLAIN, "distribution": distribution, "instance_count": v.hosts, "engine_options": options}


def _options(entry: Entry) -> dict[str, Any]:
    """Those of the engine that may change how long compute takes. Not the interpreter: one of a variant's own is there
    because of its library, and a baseline uses none."""
    return {k: v for k, v in (entry.estimator.settings.engine_options or {}).items() if k != "python"}


def _shape_key(entry: Entry) -> str | None:
    """The same for entries that one baseline serves; None for one that needs none, or that can't have one.

    A lone process doesn't communicate, and ranks whose number differs by host can't be told to stay apart.
    """
    v = entry.variant
    if (
        v.ranks == 1
        or v.ranks % v.hosts
        or v.unequal
        or entry.estimator.settings.instance_groups
        or "apart" in v.distribution
    ):
        return None
    return json.dumps([v.hosts, v.ranks, _options(entry)], sort_keys=True, default=str)


def _apart_labels(variants: Sequence[Variant]) -> Iterable[str]:
    """``apart``; with several shapes, ``apart 2 x 4``, numbered where that is the same again."""
    if len(variants) == 1:
        return [APART]
    met: Counter[str] = Counter()
    labels = []
    for v in variants:
        met[v.shape] += 1
        labels.append(f"{APART} {v.shape}" + (f" #{met[v.shape]}" if met[v.shape] > 1 else ""))
    return labels
