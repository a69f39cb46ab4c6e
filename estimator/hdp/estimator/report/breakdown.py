"""Where the time of a job's steps went, and which rank the others waited for: from metrics and traces. Pure.

A step ends when the script says so (`hdp.metrics.log(step=...)`, the first rank that says it). Of a rank's step,

- *exposed* communication is what the program waited for operations that ended in it,
- *hidden* communication is the time in which an operation was in flight, less that,
- *input* is what the script says that it waited for data (the metric ``input_seconds``),
- *compute* is the rest.

All are means over the ranks that have a trace.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hdp.estimator.metrics import Metric, Said
from hdp.estimator.traces import Operation

#: What a script calls the seconds that it waited for data in a step.
INPUT = "input_seconds"
#: A receiver comes when it likes.
_MESSAGES = ("send", "recv")
#: A rank that comes later than this in the middle, and later than all others by half, is named.
_LATE_SECONDS = 1e-3


@dataclass(frozen=True)
class Step:
    """One step: seconds, as means over the ranks."""

    number: int
    seconds: float
    compute: float
    hidden: float
    exposed: float
    input: float


@dataclass(frozen=True)
class Lateness:
    """How one rank comes to the operations that it has with others."""

    rank: int
    median_seconds: float
    """After the first rank that called the same operation."""
    last_share: float
    """Of the operations, those to which it came last."""


def steps_of(said: Iterable[Said], metrics: Iterable[Metric], operations: Iterable[Operation]) -> list[Step]:
    """Every step but the first, whose begin nobody knows. Empty: no steps were said, or nothing was traced."""
    ends = _ends(said)
    by_rank: dict[int, list[Operation]] = defaultdict(list)
    for operation in operations:
        by_rank[operation.rank].append(operation)
    if not by_rank or len(ends) < 2:
        return []
    waited = _input_of(metrics)
    traced = [_of_rank(ends, of_rank) for of_rank in by_rank.values()]
    steps = []
    for i, ((_, begin), (number, end)) in enumerate(pairwise(ends)):
        seconds = end - begin
        flying = min(seconds, statistics.fmean(rank[i][0] for rank in traced))
        exposed = min(flying, statistics.fmean(rank[i][1] for rank in traced))
        loading = min(waited.get(number, 0.0), seconds - exposed)
        compute = seconds - exposed - loading
        steps.append(Step(number, seconds, compute, flying - exposed, exposed, loading))
    return steps


def _ends(said: Iterable[Said]) -> list[tuple[int, float]]:
    """Number and end, in Unix seconds, of each step, by the rank with the lowest number that says any."""
    by_rank: dict[float, dict[int, float]] = defaultdict(dict)
    for one in said:
        if one.record.step is not None:
            rank = float("inf") if one.rank is None else one.rank
            by_rank[rank].setdefault(one.record.step, one.record.time)
    return sorted(by_rank[min(by_rank)].items(), key=lambda step: step[1]) if by_rank else []


def _input_of(metrics: Iterable[Metric]) -> Mapping[int, float]:
    found: dict[int, list[float]] = defaultdict(list)
    for metric in metrics:
        if metric.metric_name == INPUT and metric.step is not None:
            found[metric.step].append(max(0.0, metric.value))
    return {step: statistics.fmean(values) for step, values in found.items()}


def _of_rank(ends: Sequence[tuple[int, float]], operations: Sequence[Operation]) -> list[tuple[float, float]]:
    """Seconds in which something was in flight, and seconds waited, in each step of one rank."""
    times = [end for _, end in ends]
    spans: list[list[tuple[float, float]]] = [[] for _ in times[1:]]
    waited = [0.0] * len(spans)
    for operation in operations:
        first = max(0, bisect_left(times, operation.begin) - 1)
        last = bisect_left(times, operation.end) - 1
        for i in range(first, min(last + 1, len(spans))):
            spans[i].append((max(operation.begin, times[i]), min(operation.end, times[i + 1])))
        if 0 <= last < len(spans):
            waited[last] += operation.waited
    return [(_covered(of_step), wait) for of_step, wait in zip(spans, waited, strict=True)]


def _covered(spans: list[tuple[float, float]]) -> float:
    """Length of the union."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def lateness_of(said: Iterable[Said], operations: Iterable[Operation]) -> list[Lateness]:
    """How late each rank comes, by rank, once the first step has ended; where no step was said, from the start.

    Clocks of different machines agree only so far; within one machine they are one.
    """
    ends = _ends(said)
    together: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for operation in operations:
        if operation.kind not in _MESSAGES and not (ends and operation.begin < ends[0][1]):
            together[operation.name, operation.group][operation.rank] = operation.begin
    late: dict[int, list[float]] = defaultdict(list)
    last: dict[int, int] = defaultdict(int)
    for begins in together.values():
        if len(begins) > 1:
            first = min(begins.values())
            for rank, begin in begins.items():
                late[rank].append(begin - first)
            last[max(begins, key=lambda rank: begins[rank])] += 1
    return [
        Lateness(rank, statistics.median(of_rank), last[rank] / len(of_rank)) for rank, of_rank in sorted(late.items())
    ]


def slowest(lateness: Sequence[Lateness]) -> Lateness | None:
    """The rank that the others wait for; None: none stands out."""
    if len(lateness) < 2:
        return None
    *_, second, most = sorted(lateness, key=lambda one: one.median_seconds)
    stands_out = most.median_seconds > _LATE_SECONDS and most.median_seconds > 1.5 * second.median_seconds
    return most if stands_out else None


def only_asynchronous(operations: Sequence[Operation]) -> bool:
    """Whether no program ever waited for an operation, as under TensorFlow: then nothing says what was exposed."""
    return bool(operations) and not any(operation.waited for operation in operations)
