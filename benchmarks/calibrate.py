"""The cost model against measurements: constants are fitted, and each cluster is predicted without itself.

The constants (`Machine`: what a byte, a message, a wake-up cost the processors here) can't be had from a clock alone,
so they are fitted to the table that is checked, by the smallest mean squared logarithm of predicted over measured. That
alone would prove little. So each cluster (a JSON file of `allreduce.py`) is also *held out*: predicted with constants
fitted to all others.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hdp.collectives import cost, peers
from hdp.collectives.library import Kind
from hdp.collectives.machine import Cluster, Link, Machine
from hdp.contract.errors import HdpError
from hdp.contract.units import parse_rate

CONSTANTS = ("move", "move_alone", "wire", "message", "wake", "call", "cold")
_BURST_BYTES = 128 << 10
_STEPS = (2.0, 1.4, 1.15, 1.05)
_COLD = 1e-4
_PRIOR = 1e-3
_SWEEPS = 8  # at most so many with a step
Model = Callable[["Case", Machine], float]


@dataclass(frozen=True)
class Case:
    """One size on one cluster: what was measured, and where. seconds: the median."""

    name: str
    """Of the cluster."""
    peer: str
    kind: str
    size: int
    hosts: int
    ranks: int
    rate: float
    """Bytes a second of a link; infinite on a single host."""
    processors: int
    paused: bool
    """Whether a token bucket had time to fill before each operation."""
    wire_ratio: float
    seconds: float

    def cluster(self, machine: Machine) -> Cluster:
        """Where it ran, with the constants of `machine`."""
        here = replace(machine, cores=self.processors, hosts=self.hosts)
        return Cluster((self.ranks,) * self.hosts, Link(self.rate, 0.0, _BURST_BYTES), here)


def ours(case: Case, machine: Machine) -> float:
    """Seconds that the model gives hdp."""
    kind = Kind[case.kind.upper()]
    cluster = case.cluster(machine)
    return cost.plan(kind, case.size, cluster, wire_ratio=case.wire_ratio, pause=case.paused).seconds


def ring(case: Case, machine: Machine) -> float:
    """Seconds that the model gives a flat ring."""
    return peers.flat_ring(case.size, case.cluster(machine)).seconds


MODELS: dict[str, Model] = {"hdp": ours, "gloo": ring}


def cases(paths: Sequence[Path]) -> list[Case]:
    """What is in the JSON files of `allreduce.py`, of the peers that there is a model for. Raises ValueError."""
    found = []
    for path in paths:
        try:
            found += _cases(path.stem, json.loads(path.read_text()))
        except (KeyError, TypeError, ValueError, HdpError) as exc:
            raise ValueError(f"{path} isn't what allreduce.py --json writes: {exc!r}") from exc
    return found


def _cases(name: str, value: Mapping[str, Any]) -> list[Case]:
    options = value["options"]
    rate = parse_rate(options["rate"]) / 8 if options["hosts"] > 1 else math.inf
    found = []
    for row in value["rows"]:
        if row["peer"] not in MODELS or (row["peer"] != "hdp" and options["collective"] != "allreduce"):
            continue
        gap = options["gap"] if options["gap"] is not None else (1.5 if row["size"] < 1 << 20 else 0.0)
        found.append(
            Case(
                name=name,
                peer=row["peer"],
                kind=options["collective"],
                size=row["size"],
                hosts=options["hosts"],
                ranks=options["ranks"],
                rate=rate,
                processors=value["machine"]["processors"],
                paused=gap > 0,
                wire_ratio=0.5 if options["wire"] and row["peer"] == "hdp" else 1.0,
                seconds=row["median"],
            )
        )
    return found


def fit(cases: Sequence[Case], model: Model, start: Machine | None = None) -> Machine:
    """The constants with which `model` comes closest, from `start` (None: the defaults) by steps in one at a time."""
    machine = start or Machine(cores=1, cold=_COLD)
    best = _error(cases, model, machine)
    for step in _STEPS if start is None else _STEPS[1:]:
        for _ in range(_SWEEPS):
            before = best
            for name in CONSTANTS:
                for factor in (step, 1 / step):
                    tried = replace(machine, **{name: getattr(machine, name) * factor})
                    error = _error(cases, model, tried)
                    if error < best - 1e-7:
                        machine, best = tried, error
            if best == before:
                break
    return machine


def _error(cases: Sequence[Case], model: Model, machine: Machine) -> float:
    """Mean squared logarithm; what the cases don't tell stays near the defaults."""
    usual = Machine(cores=1, cold=_COLD)
    distance = sum(math.log(getattr(machine, name) / getattr(usual, name)) ** 2 for name in CONSTANTS)
    return sum(math.log(model(case, machine) / case.seconds) ** 2 for case in cases) / len(cases) + _PRIOR * distance


@dataclass(frozen=True)
class Deviation:
    """Predicted over measured, less one: with constants fitted to everything, and to all other clusters."""

    case: Case
    fitted: float
    held_out: float | None


def deviations(found: Sequence[Case]) -> tuple[dict[str, Machine], list[Deviation]]:
    """The constants by peer, and how far off the model is, case by case."""
    machines: dict[str, Machine] = {}
    out = []
    for peer, model in MODELS.items():
        own = [case for case in found if case.peer == peer]
        if not own:
            continue
        machines[peer] = fit(own, model)
        for name in dict.fromkeys(case.name for case in own):
            others = [case for case in own if case.name != name]
            without = fit(others, model, machines[peer]) if others else None
            for case in (case for case in own if case.name == name):
                held = None if without is None else model(case, without) / case.seconds - 1
                out.append(Deviation(case, model(case, machines[peer]) / case.seconds - 1, held))
    return machines, out
