"""What people see of a job's metrics while it runs: a line a second, instead of a line a call.

::

    algo-1:0 | step 120 of 500  loss 0.1234  1,024 samples/s  0:42 left

The rank with the lowest number speaks; samples a second are those of all ranks whose lines are shown. How far the job
is, and the time left, are known where the script says ``steps=``. Where there is a bar (`hdp.estimator.bar`), it takes
the place of these lines.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hdp.contract.metrics import Record, as_text
from hdp.estimator.engines.base import LogLine
from hdp.estimator.metrics import Said, split

if TYPE_CHECKING:
    from hdp.estimator.bar import Bar

_SECONDS = 1.0


@dataclass(frozen=True)
class Mark:
    """How far a job is."""

    done: int
    """Steps."""
    steps: int
    seconds_left: float | None
    """By the mean of the steps so far; None: too few to tell."""

    def __str__(self) -> str:
        return "" if self.seconds_left is None else f"{duration(self.seconds_left)} left"


@dataclass(frozen=True)
class Standing:
    """How a job stands."""

    step: int | None
    values: Mapping[str, float]
    """What the rank that speaks said, by name."""
    rate: float | None
    """Samples a second."""
    mark: Mark | None
    """None: the script didn't say ``steps=``."""

    def __str__(self) -> str:
        parts = [as_text(self.step, self.values, self.mark.steps if self.mark else None)]
        if self.rate is not None:
            parts.append(f"{self.rate:,.0f} samples/s")
        return "  ".join(filter(None, [*parts, str(self.mark or "")]))


def duration(seconds: float) -> str:
    """``42`` seconds as ``0:42``, more than an hour as ``1:02:03``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@dataclass
class Progress:
    """Makes of a job's lines the lines that people see. Fed in order; by the lines' own times."""

    bar: Bar | None = None
    """Shows progress instead of lines."""
    _rates: dict[tuple[str, int | None], float] = field(default_factory=dict)
    """Samples a second of each rank."""
    _last: dict[tuple[str, int | None], Record] = field(default_factory=dict)
    """The latest step of each rank."""
    _first: Record | None = None
    """The first step of the rank that speaks."""
    mark: Mark | None = None
    """How far the job is, where the script said ``steps=``."""
    _pending: LogLine | None = None
    _step: int | None = None
    _values: dict[str, float] = field(default_factory=dict)
    """What the speaker said since it was shown last."""
    _shown_at: float = -math.inf

    def lines_for(self, line: LogLine) -> Sequence[LogLine]:
        """What is to be shown once `line` has come: itself, or progress, or nothing (yet)."""
        found = split(line)
        if found is None:
            return [line]
        head, said = found
        self._take(line, said)
        shown = [LogLine(line.time, line.host, line.rank, head.rstrip())] if head.strip() else []
        return [*shown, *self.due(line.time)]

    def due(self, now: float) -> Sequence[LogLine]:
        """Progress that waits, where the last was shown long enough before `now`, Unix seconds."""
        return self.flush() if now - self._shown_at >= _SECONDS else []

    def flush(self) -> Sequence[LogLine]:
        """Progress that waits, if any. None where a bar shows it."""
        if self._pending is None:
            return []
        rate = sum(self._rates.values()) if self._rates else None
        line, standing = self._pending, Standing(self._step, dict(self._values), rate, self.mark)
        self._pending, self._step, self._shown_at = None, None, line.time
        self._values.clear()
        if self.bar is not None:
            self.bar.show(standing)
            return []
        return [LogLine(line.time, line.host, line.rank, str(standing))]

    def _take(self, line: LogLine, said: Said) -> None:
        who, record = (said.host, said.rank), said.record
        self._rate(who, record)
        self._last.setdefault(who, record)
        if who != min(self._last, key=_order):
            return
        self._pending = LogLine(line.time, said.host, said.rank, "")
        self._step = self._step if record.step is None else record.step
        self._measure(record)
        self._values |= {name: value for name, value in record.values.items() if name not in ("samples", "seconds")}

    def _measure(self, record: Record) -> None:
        if record.step is None or record.steps is None:
            return
        if self._first is None or self._first.step is None or record.step <= self._first.step:
            self._first = record
        first = self._first.step or 0
        from_one = first == 1 or record.step == record.steps  # most scripts count from 0
        done = record.step + (not from_one)
        pace = (record.clock - self._first.clock) / (record.step - first) if record.step > first else None
        self.mark = Mark(done, record.steps, None if pace is None else pace * (record.steps - done))

    def _rate(self, who: tuple[str, int | None], record: Record) -> None:
        if record.step is None:
            return
        before = self._last.get(who)
        seconds = record.values.get("seconds") or (seconds_a_step(before, record) if before else None)
        if seconds and "samples" in record.values:
            self._rates[who] = record.values["samples"] / seconds
        self._last[who] = record


def seconds_a_step(before: Record, now: Record) -> float | None:
    """Time of a step between two records of a rank; None where the later one isn't of a later step."""
    if before.step is None or now.step is None or now.step <= before.step:
        return None
    return (now.clock - before.clock) / (now.step - before.step)


def _order(who: tuple[str, int | None]) -> tuple[float, str]:
    host, rank = who
    return (math.inf if rank is None else rank, host)
