"""`JobReport`: all that is known of one job, gathered once, to look at."""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any

from hdp.contract.errors import EngineError, HdpError
from hdp.estimator import outputs, traces
from hdp.estimator.engines.base import Engine, LogLine
from hdp.estimator.metrics import Metric, Said, log_lines, metrics_of, split
from hdp.estimator.report import breakdown

#: Lines of the log's end that are shown of a job that failed.
_TAIL = 40


@dataclass(frozen=True)
class Series:
    """One metric over steps; where it has none, over the order in which it came."""

    name: str
    steps: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class JobReport:
    """What `TrainingJob.report` gives: a page to `save`, and to look at in a notebook."""

    name: str
    answer: Mapping[str, Any] = field(repr=False)
    """The job's description."""
    series: tuple[Series, ...] = field(default=(), repr=False)
    rate: Series | None = field(default=None, repr=False)
    """Samples a second, all ranks together."""
    steps: tuple[breakdown.Step, ...] = field(default=(), repr=False)
    lateness: tuple[breakdown.Lateness, ...] = field(default=(), repr=False)
    asynchronous: bool = False
    """See `breakdown.only_asynchronous`."""
    topology: Mapping[str, Any] | None = field(default=None, repr=False)
    channels: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Host and line: what agents said of their channels."""
    tail: tuple[LogLine, ...] = field(default=(), repr=False)
    gaps: tuple[str, ...] = ()
    """What could not be had, and why."""

    def to_html(self) -> str:
        """One page that needs nothing else: pictures, styles and all. Secrets are hidden. Raises HdpError: no
        matplotlib."""
        from hdp.estimator.report.page import page

        return page(self)

    def save(self, path: str | PathLike[str]) -> Path:
        """Write `to_html` to a file. Returns its path. Raises HdpError: it can't be written; no matplotlib."""
        target = Path(path)
        text = self.to_html()
        try:
            target.write_text(text, encoding="utf-8")
        except OSError as exc:
            raise HdpError(f"{target} can't be written: {exc.strerror}") from exc
        return target

    def _repr_html_(self) -> str:
        from hdp.estimator.report.page import fragment

        return fragment(self)


def gather(engine: Engine, name: str) -> JobReport:
    """All that `engine` knows of the job. Raises JobNotFound."""
    answer = engine.describe(name)
    lines = list(log_lines(engine, name))
    said = [found[1] for line in lines if (found := split(line)) is not None]
    definitions = answer.get("AlgorithmSpecification", {}).get("MetricDefinitions", ())
    metrics = list(metrics_of(lines, definitions))
    gaps: list[str] = []
    operations = _operations(answer, gaps)
    return JobReport(
        name=name,
        answer=answer,
        series=series_of(metrics),
        rate=_rate(said),
        steps=tuple(breakdown.steps_of(said, metrics, operations)),
        lateness=tuple(breakdown.lateness_of(said, operations)),
        asynchronous=breakdown.only_asynchronous(operations),
        topology=_topology(answer, gaps),
        channels=tuple(_channels(lines)),
        tail=tuple(line for line in lines if split(line) is None)[-_TAIL:],
        gaps=tuple(gaps),
    )


def _operations(answer: Mapping[str, Any], gaps: list[str]) -> list[traces.Operation]:
    with contextlib.ExitStack() as stack:
        try:
            files = outputs.opened(answer, outputs.TIMELINES, stack)
        except EngineError as exc:
            gaps.append(str(exc))
            return []
        if not files:
            gaps.append(
                'no timeline: run the job with environment={"HDP_TIMELINE": "1"} and backend hdp to see what its steps '
                "spend their time on, and which rank is late"
            )
        return [operation for _, file in files for operation in traces.operations_of(file)]


def _topology(answer: Mapping[str, Any], gaps: list[str]) -> Mapping[str, Any] | None:
    try:
        found = outputs.topology(answer)
    except EngineError as exc:
        gaps.append(str(exc))
        return None
    if found is None:
        gaps.append('links weren\'t measured: run the job with environment={"HDP_TOPOLOGY": "1"} and backend hdp')
    return found


def series_of(metrics: Sequence[Metric]) -> tuple[Series, ...]:
    """Every metric but amounts: the mean over the ranks where several say the same step."""
    found: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for metric in metrics:
        of_name = found[metric.metric_name]
        if math.isfinite(metric.value):
            of_name[len(of_name) if metric.step is None else metric.step].append(metric.value)
    return tuple(
        Series(name, tuple(sorted(values)), tuple(sum(values[s]) / len(values[s]) for s in sorted(values)))
        for name, values in found.items()
        if values and name not in ("samples", "seconds", breakdown.INPUT)
    )


def _rate(said: Sequence[Said]) -> Series | None:
    """Samples of a step over its time, by the ranks that say both, added up."""
    by_rank: dict[Any, list[Said]] = defaultdict(list)
    for one in said:
        if one.record.step is not None and "samples" in one.record.values:
            by_rank[one.host, one.rank].append(one)
    rates: dict[int, float] = defaultdict(float)
    for of_rank in by_rank.values():
        for before, now in pairwise(of_rank):
            step, earlier = now.record.step, before.record.step
            if step is None or earlier is None or step <= earlier:
                continue
            seconds = now.record.values.get("seconds") or (now.record.clock - before.record.clock) / (step - earlier)
            if seconds > 0:
                rates[step] += now.record.values["samples"] / seconds
    return Series("samples/s", tuple(sorted(rates)), tuple(rates[s] for s in sorted(rates))) if rates else None


def _channels(lines: Sequence[LogLine]) -> list[tuple[str, str]]:
    return [(line.host, line.text) for line in lines if line.rank is None and line.text.startswith("channel ")]
