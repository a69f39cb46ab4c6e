"""From what a job's ranks said to times of its steps: pure.

A rank's step takes what the script said it did (``seconds=``); without that, the time since the call for the step
before, shared among the steps since then. A job's step takes the mean of what it took the ranks that said it. Samples
of a step are added over the ranks that said any. Where lines of ranks are known, other processes' lines don't count.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

from hdp.contract.metrics import Record, is_amount
from hdp.estimator.engines.base import LogLine
from hdp.estimator.metrics import Metric, Said, metrics_of, split
from hdp.estimator.progress import seconds_a_step

#: Metrics that `metric_definitions` may stand in for, where the script doesn't use hdp.metrics.
SECONDS, SAMPLES, LOSS = "seconds", "samples", "loss"

Who = tuple[str, int | None]
"""Host and rank."""

_Spoken = TypeVar("_Spoken", Said, Metric)


@dataclass(frozen=True)
class Steps:
    """The steps of one job."""

    numbers: tuple[int, ...] = ()
    """Which step each time is of, in order."""
    seconds: tuple[float, ...] = ()
    samples: float | None = None
    """Of one step, all ranks together (the median); None: no rank said any."""
    loss: float | None = None
    """The last that was said: the mean over the ranks that said one."""
    count: int = 0
    """How many steps the job took, also those that have no time of their own, such as the first."""


def steps_of(
    lines: Iterable[LogLine], definitions: Sequence[Mapping[str, str]] = (), without: Collection[str] = ()
) -> Steps:
    """The steps in a job's log: from `hdp.metrics`, else from metrics called seconds, samples and loss.

    without: hosts that don't count, because they have no ranks.
    """
    kept = [line for line in lines if line.host not in without]
    said = _of_ranks([found[1] for line in kept if (found := split(line)) is not None])
    if any(one.record.step is not None for one in said):
        return _of_records(said)
    return _of_metrics(_of_ranks(list(metrics_of(kept, definitions))))


def _of_ranks(said: Sequence[_Spoken]) -> Sequence[_Spoken]:
    """Without what was said by no rank; all, where no rank is known."""
    return [one for one in said if one.rank is not None] or said


def _of_records(said: Iterable[Said]) -> Steps:
    by_rank: dict[Who, list[Record]] = defaultdict(list)
    losses: dict[Who, float] = {}
    for one in said:
        who = (one.host, one.rank)
        if LOSS in one.record.values:
            losses[who] = one.record.values[LOSS]
        if one.record.step is not None:
            _join(by_rank[who], one.record)
    times: dict[tuple[int, int], list[float]] = defaultdict(list)
    for records in by_rank.values():
        for key, seconds in _timed(records):
            times[key].append(seconds)
    samples = [[r.values[SAMPLES] for r in records if SAMPLES in r.values] for records in by_rank.values()]
    return Steps(
        numbers=tuple(step for step, _ in times),
        seconds=tuple(_average(of_ranks) for of_ranks in times.values()),
        samples=_total(samples),
        loss=_mean(losses.values()),
        count=max(map(_count, by_rank.values())),
    )


def _join(records: list[Record], record: Record) -> None:
    """Add `record`; what is said again of the same step belongs to that step, which ended when it was said first."""
    if records and records[-1].step == record.step:
        last = records[-1]
        record = replace(last, values={**last.values, **record.values})
        records.pop()
    records.append(record)


def _timed(records: Sequence[Record]) -> Iterable[tuple[tuple[int, int], float]]:
    """Times of a rank's steps, by the step's number and how often that came before (scripts count anew in epochs)."""
    met: Counter[int] = Counter()
    for before, record in zip([None, *records[:-1]], records, strict=True):
        step = record.step if record.step is not None else 0
        seconds = record.values.get(SECONDS)
        if seconds is None and before is not None:
            seconds = seconds_a_step(before, record)
        if seconds is not None:
            yield (step, met[step]), seconds
        met[step] += 1


def _count(records: Sequence[Record]) -> int:
    """Steps of a rank, with those between two calls."""
    numbers = [record.step or 0 for record in records]
    return 1 + sum(max(1, now - before) for before, now in pairwise(numbers))


def _of_metrics(metrics: Sequence[Metric]) -> Steps:
    by_rank: dict[str, dict[Who, list[float]]] = {SECONDS: {}, SAMPLES: {}, LOSS: {}}
    for metric in metrics:
        if metric.metric_name == LOSS or (metric.metric_name in by_rank and is_amount(metric.value)):
            by_rank[metric.metric_name].setdefault((metric.host, metric.rank), []).append(metric.value)
    columns = list(by_rank[SECONDS].values())
    longest = max(map(len, columns), default=0)
    seconds = [_average([column[i] for column in columns if i < len(column)]) for i in range(longest)]
    last = [values[-1] for values in by_rank[LOSS].values()]
    return Steps(tuple(range(longest)), tuple(seconds), _total(by_rank[SAMPLES].values()), _mean(last), longest)


def _total(samples: Iterable[Sequence[float]]) -> float | None:
    """Samples of a step: the sum of what is usual for each rank."""
    usual = [statistics.median(of_rank) for of_rank in samples if of_rank]
    return sum(usual) if usual else None


def _mean(values: Iterable[float]) -> float | None:
    kept = list(values)
    return _average(kept) if kept else None


def _average(values: Sequence[float]) -> float:
    try:
        return statistics.fmean(values)
    except (OverflowError, ValueError):  # their sum is too large, or inf and -inf are among them
        return sum(value / len(values) for value in values)
