"""A job's metrics, read from the lines of its log: what `hdp.metrics.log` said, and what `metric_definitions` find.

A definition is applied as SageMaker does it: the regular expression is searched for in each line, and what its first
group found is the value, where that is a number. Lines of `hdp.metrics` have metrics of their own, and aren't searched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hdp.contract.errors import HdpError
from hdp.contract.metrics import Record, decode
from hdp.estimator.engines.base import Engine, LogLine

#: Named as in the table of SageMaker's TrainingJobAnalytics, and then who said it, and of which step.
COLUMNS = ("timestamp", "metric_name", "value", "host", "rank", "step")


@dataclass(frozen=True)
class Metric:
    """One number that a job said."""

    timestamp: float
    """Unix seconds. (SageMaker's TrainingJobAnalytics counts from the first value on.)"""
    metric_name: str
    value: float
    host: str
    rank: int | None
    """None: nobody knows, e.g. of a line of the host's agent."""
    step: int | None
    """None: of no step; so is every one that a definition found."""


@dataclass(frozen=True)
class Said:
    """One call of `hdp.metrics.log`, and whose it was."""

    host: str
    rank: int | None
    record: Record


def log_lines(engine: Engine, name: str) -> Iterator[LogLine]:
    """Every line of the job's log so far, page by page. Raises JobNotFound."""
    page = engine.logs(name, {})
    while page.lines:
        yield from page.lines
        page = engine.logs(name, page.cursor)


def split(line: LogLine) -> tuple[str, Said] | None:
    """The text before a metric's mark, and what was said. None: an ordinary line."""
    found = decode(line.text)
    if found is None:
        return None
    head, record = found
    return head, Said(line.host, record.rank if line.rank is None else line.rank, record)


def metrics_of(lines: Iterable[LogLine], definitions: Sequence[Mapping[str, str]] = ()) -> Iterator[Metric]:
    """Every metric in `lines`, in their order. definitions: [{"Name": ..., "Regex": ...}], checked."""
    compiled = [(entry["Name"], re.compile(entry["Regex"])) for entry in definitions]
    for line in lines:
        found = split(line)
        if found is None:
            yield from _defined(line, line.text, compiled)
        else:
            yield from _defined(line, found[0], compiled)
            yield from _said(found[1])


def _said(said: Said) -> Iterator[Metric]:
    record = said.record
    for name, value in record.values.items():
        yield Metric(record.time, name, value, said.host, said.rank, record.step)


def _defined(line: LogLine, text: str, definitions: Iterable[tuple[str, re.Pattern[str]]]) -> Iterator[Metric]:
    for name, pattern in definitions:
        match = pattern.search(text)
        value = _number(match[1]) if match else None
        if value is not None:
            yield Metric(line.time, name, value, line.host, line.rank, None)


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def as_frame(metrics: Iterable[Metric]) -> Any:
    """A pandas DataFrame, one row a value, with the columns `COLUMNS`. Raises HdpError: there is no pandas."""
    try:
        import pandas
    except ImportError as exc:
        raise HdpError(
            "a table of metrics is a pandas DataFrame, and pandas isn't installed: pip install 'hdp-train[notebook]'; "
            "job.metric_values() gives the same without it"
        ) from exc
    # Int64 has a value for "unknown". Said from the begin: pandas would make fractions of whole numbers meanwhile.
    types = {"timestamp": "float64", "value": "float64", "rank": "Int64", "step": "Int64"}
    kept = list(metrics)
    columns = {name: [getattr(metric, name) for metric in kept] for name in COLUMNS}
    return pandas.DataFrame({name: pandas.Series(of, dtype=types.get(name, "object")) for name, of in columns.items()})


def definition_faults(definitions: Sequence[tuple[str, str]]) -> list[str]:
    """One line for each definition, of a name and a regular expression, that would find nothing or the wrong thing."""
    faults, names = [], [name for name, _ in definitions]
    for index, (name, regex) in enumerate(definitions):
        where = f"metric_definitions[{index}]"
        if name in names[:index]:
            first = names.index(name)
            faults.append(f"{where}.Name: {name!r} is the name of metric_definitions[{first}] too; give it another")
        try:
            groups = re.compile(regex).groups
        except (re.error, OverflowError, RecursionError) as exc:
            faults.append(f"{where}.Regex: {regex!r} is no regular expression: {exc}")
            continue
        if not groups:
            faults.append(f"{where}.Regex: {regex!r} has no group; put the number in one, e.g. 'loss: ([0-9.]+)'")
    return faults
