"""Figures of a comparison and whether a difference is one: pure.

**When a difference is named.** Two variants differ in the time of a step where both hold: the middle halves of all
their steps (from the first quartile to the third, all repeats together) don't overlap; and the 95% interval of the
ratio, with the *job* as the unit, doesn't include 1. That interval is Student's, of the logarithms of the jobs'
medians, their variance taken to be the same for both: steps of one job have their luck in common, so 1,000 steps of
one job say less than three jobs. Everything else is "within the spread". One repeat has no spread between jobs, so it
names nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from hdp.estimator.comparison.model import Run, Variant

#: Student's t for a two-sided 95% interval, by degrees of freedom from 1 on; more of them count as the last.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
#: Of what has one, as a float.
_LARGEST_LOG = 709.0
#: Without a number given: a fifth of a job's steps is warm-up, and at most so many.
_WARMUP_SHARE, _WARMUP_MOST = 5, 10


@dataclass(frozen=True)
class Spread:
    """Median and quartiles."""

    median: float
    first: float
    third: float

    def overlaps(self, other: Spread) -> bool:
        """Whether the middle halves have a value in common."""
        return self.first <= other.third and other.first <= self.third


@dataclass(frozen=True)
class Exposed:
    """Time of a step that communication takes and compute doesn't hide."""

    seconds: float
    """Below 0 where the noise is larger than it."""
    estimate: str = ""
    """Why it is one; empty: both processed as many samples a process and step."""


@dataclass(frozen=True)
class Figures:
    """What is known of one variant; None: it isn't."""

    label: str
    step: Spread | None = None
    """Seconds a step, of all repeats, without the warm-up."""
    steps: int = 0
    """How many that were."""
    repeat_medians: tuple[float, ...] = ()
    """Seconds a step of each job by itself."""
    samples_per_step: float | None = None
    samples_per_second: float | None = None
    exposed: Exposed | None = None
    sent_bytes: float | None = None
    """By the host that sent most, in a whole job; the median of the repeats."""
    sent_bytes_per_step: float | None = None
    scaling_efficiency: float | None = None
    """Samples a second, as a share of what as many lone processes would do, each with the machine for itself."""
    losses: tuple[float, ...] = ()
    """The last one of each job."""
    cost: float | None = None
    """Of one job, in the currency of price_per_hour."""
    failures: tuple[str, ...] = ()


def warmup_of(run: Run, warmup: int | None) -> int:
    """Steps at the begin of `run` that don't count."""
    return min(len(run.steps.seconds) // _WARMUP_SHARE, _WARMUP_MOST) if warmup is None else warmup


def counted(run: Run, warmup: int | None) -> tuple[float, ...]:
    """Seconds of the steps that count."""
    return run.steps.seconds[warmup_of(run, warmup) :]


def spread(values: Sequence[float]) -> Spread:
    """Of one value or more."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    first, median, third = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, first, third)


def figures_of(label: str, runs: Sequence[Run], warmup: int | None) -> Figures:
    """What the runs of `label` say by themselves."""
    good = [run for run in runs if run.failure is None]
    times = [counted(run, warmup) for run in good]
    every = [seconds for of_run in times for seconds in of_run]
    step = spread(every) if every else None
    samples = _median([run.steps.samples for run in good])
    sent = [(run.sent_bytes, run.steps.count) for run in good if run.sent_bytes is not None]
    return Figures(
        label=label,
        step=step,
        steps=len(every),
        repeat_medians=tuple(statistics.median(of_run) for of_run in times if of_run),
        samples_per_step=samples,
        samples_per_second=samples / step.median if samples is not None and step and step.median else None,
        sent_bytes=_median([total for total, _ in sent]),
        sent_bytes_per_step=_median([total / steps for total, steps in sent if steps]),
        losses=tuple(run.steps.loss for run in good if run.steps.loss is not None),
        failures=tuple(run.failure for run in runs if run.failure is not None),
    )


def exposed(own: Figures, ranks: int, apart: Figures, apart_ranks: int) -> Exposed | None:
    """A step's time less that of the same processes without communication; scaled where they had other work to do."""
    if own.step is None or apart.step is None:
        return None
    if own.samples_per_step is None or not apart.samples_per_step:
        return Exposed(own.step.median - apart.step.median, "the script said no samples, so the work may differ")
    mine, theirs = own.samples_per_step / ranks, apart.samples_per_step / apart_ranks
    if math.isclose(mine, theirs, rel_tol=1e-3):
        return Exposed(own.step.median - apart.step.median)
    # What a step takes whatever its samples are, e.g. the optimizer, is scaled with the rest.
    too = "rather too much" if mine < theirs else "rather too little"
    why = f"{too}: {mine:,g} samples a process and step, apart {theirs:,g}; all of the time apart is scaled by that"
    return Exposed(own.step.median - apart.step.median * mine / theirs, why)


def efficiency(own: Figures, variant: Variant, one: Figures) -> float | None:
    """Samples a second of R ranks, as a share of R times those of one process."""
    if own.samples_per_second is None or not one.samples_per_second:
        return None
    return own.samples_per_second / (variant.ranks * one.samples_per_second)


@dataclass(frozen=True)
class Verdict:
    """Whether the steps of `b` take another time than those of `a`."""

    a: str
    b: str
    ratio: float | None
    """Median step of b to that of a; None: one of them has no steps."""
    low: float | None
    """The 95% interval of the ratio, with the job as the unit; None: fewer than two repeats of each."""
    high: float | None
    apart: bool
    """Whether a difference is named."""
    reason: str
    """Why not; empty where one is."""

    def __str__(self) -> str:
        if self.ratio is None:
            return f"{self.b} and {self.a}: {self.reason}"
        interval = "" if self.low is None else f" (95% interval {self.low:.2f} to {self.high:.2f})"
        if self.apart:
            return f"{self.b}: {self.ratio:.2f} times {self.a}'s step time{interval}"
        return f"{self.b} and {self.a}: within the spread, no difference is named: {self.reason}"


def verdict(a: Figures, b: Figures) -> Verdict:
    """The rule at the top of this file."""
    if a.step is None or b.step is None or not a.step.median:
        return Verdict(a.label, b.label, None, None, None, False, "one of them has no steps")
    ratio = b.step.median / a.step.median
    interval = _interval(a.repeat_medians, b.repeat_medians)
    if interval is None:
        why = "one repeat has no spread between jobs; repeat it"
        return Verdict(a.label, b.label, ratio, None, None, False, why)
    low, high = interval
    if a.step.overlaps(b.step):
        why = "the quartiles of their steps overlap"
    else:
        why = f"the 95% interval of the ratio, {low:.2f} to {high:.2f}, has 1 in it" if low <= 1 <= high else ""
    return Verdict(a.label, b.label, ratio, low, high, not why, why)


def _interval(a: Sequence[float], b: Sequence[float]) -> tuple[float, float] | None:
    """Student's 95% interval of the ratio b to a, on a logarithmic scale; None for fewer than two values of each."""
    if min(len(a), len(b)) < 2 or not all(0 < value < math.inf for value in (*a, *b)):
        return None
    logs = [[math.log(value) for value in values] for values in (a, b)]
    freedom = len(a) + len(b) - 2
    variance = sum(statistics.variance(values) * (len(values) - 1) for values in logs) / freedom
    middle = statistics.fmean(logs[1]) - statistics.fmean(logs[0])
    half = _T95[min(freedom, len(_T95)) - 1] * math.sqrt(variance * (1 / len(a) + 1 / len(b)))
    return _exp(middle - half), _exp(middle + half)


def _exp(value: float) -> float:
    return math.inf if value > _LARGEST_LOG else math.exp(value)


@dataclass(frozen=True)
class Losses:
    """Whether the variants' final losses agree."""

    low: float
    high: float
    tolerance: float
    """Relative to the larger one."""

    @property
    def agree(self) -> bool:
        """Whether they are as near to each other as the tolerance; nan agrees with nothing."""
        return self.high - self.low <= self.tolerance * max(abs(self.low), abs(self.high))

    def __str__(self) -> str:
        says = "agree" if self.agree else "DO NOT agree"
        return f"final losses {says} within {self.tolerance:.2g} of each other: {self.low:.4g} to {self.high:.4g}"


def losses(of_variants: Sequence[Figures], tolerance: float) -> Losses | None:
    """Over all jobs of all variants; None where fewer than two said a loss."""
    values = [value for figures in of_variants for value in figures.losses]
    if len(values) < 2:
        return None
    if any(math.isnan(value) for value in values):
        return Losses(math.nan, math.nan, tolerance)
    return Losses(min(values), max(values), tolerance)


def _median(values: Sequence[float | None]) -> float | None:
    kept = [value for value in values if value is not None]
    return statistics.median(kept) if kept else None
