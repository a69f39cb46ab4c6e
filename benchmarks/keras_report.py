"""What the samples of Keras's training steps say: how much of the communication shows. Table and plot."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import training_report
from report import least_bytes
from rich.console import Console
from rich.table import Table
from training import Results, Sample

LOSS_TOLERANCE = 1e-3
"""How far two libraries' losses may be apart, of their size, after a few steps: each step amplifies rounding."""


@dataclass(frozen=True)
class Row:
    """One library; medians over rounds, seconds. What wasn't measured is None."""

    library: str
    rounds: int
    step: float
    lower: float
    upper: float
    compute: float | None
    """The bare model's step on all ranks at once: the least of the libraries' medians, the same for all of them."""
    total: float | None
    """A step's gradients, reduced without the step."""
    exposed: float | None
    """What communication adds to a step: step less compute."""
    exposed_over_total: float | None
    bound: float
    sent_over_least: float
    cpu: float
    over_hdp: float | None
    """This step over hdp's."""
    exposed_over_hdp: float | None


def rows(results: Results, hosts: int, rate: float) -> list[Row]:
    """A row for each library that was measured. rate: bytes a second of each host's link."""
    measured = {name: samples for name, samples in results.samples.items() if samples}
    halves = [[s.compute for s in samples if s.compute is not None] for samples in measured.values()]
    compute = min((statistics.median(half) for half in halves if half), default=None)
    least = least_bytes("allreduce", 4 * results.parameters, hosts)
    hdp = _step(measured["hdp"]) if "hdp" in measured else None
    return [_row(name, samples, compute, hdp, least, rate) for name, samples in measured.items()]


def _row(
    name: str, samples: Sequence[Sample], compute: float | None, hdp: float | None, least: float, rate: float
) -> Row:
    medians, step = [statistics.median(sample.steps) for sample in samples], _step(samples)
    lower, _, upper = statistics.quantiles(medians, n=4, method="inclusive") if len(medians) > 1 else [step] * 3
    totals = [s.exchange for s in samples if s.exchange is not None]
    total = statistics.median(totals) if totals else None
    exposed = step - compute if compute is not None else None
    return Row(
        library=name,
        rounds=len(samples),
        step=step,
        lower=lower,
        upper=upper,
        compute=compute,
        total=total,
        exposed=exposed,
        exposed_over_total=exposed / total if exposed is not None and total else None,
        bound=least / rate,
        sent_over_least=statistics.median(max(s.sent) for s in samples) / least,
        cpu=statistics.median(s.cpu for s in samples),
        over_hdp=step / hdp if hdp else None,
        exposed_over_hdp=exposed / (hdp - compute) if exposed is not None and hdp and compute is not None else None,
    )


def _step(samples: Sequence[Sample]) -> float:
    return statistics.median(statistics.median(sample.steps) for sample in samples)


def apart(losses: dict[str, list[list[float]]]) -> float:
    """How far the libraries' losses are from the first one's, of its size, at most."""
    reference, *others = losses.values()
    pairs = [  # a loss may be 0 where there is no model
        (mine, its)
        for other in others
        for one, two in zip(reference, other, strict=True)
        for mine, its in zip(one, two, strict=True)
    ]
    return max((abs(mine - its) / (abs(mine) or 1) for mine, its in pairs), default=0.0)


_COLUMNS = (
    "library",
    "ms/step",
    "quartiles of rounds",
    "compute",
    "communication",
    "exposed",
    "of it",
    "hidden",
    "bound",
    "sent/least",
    "CPU s/step",
    "step over hdp's",
    "exposed over hdp's",
)


def show(table: Sequence[Row], results: Results, title: str) -> None:
    """Print the table, and what was checked."""
    console = Console(width=None if Console().is_terminal else 170)
    shown = Table(title=title, title_justify="left")
    for name in _COLUMNS:
        shown.add_column(name, justify="left" if name == "library" else "right")
    for row in table:
        share = row.exposed_over_total
        shown.add_row(
            row.library,
            _ms(row.step),
            f"{_ms(row.lower)} .. {_ms(row.upper)}",
            _ms(row.compute),
            _ms(row.total),
            _ms(row.exposed),
            _ratio(share),
            _ratio(None if share is None else 1 - share),
            _ms(row.bound),
            _ratio(row.sent_over_least),
            f"{row.cpu:.3f}",
            _ratio(row.over_hdp),
            _ratio(row.exposed_over_hdp),
        )
    console.print(shown)
    if len(steps := {name: losses[0] for name, losses in results.losses.items() if any(losses[0])}) > 1:
        console.print(f"losses of {len(next(iter(steps.values())))} steps agree within {apart(results.losses):.1e}:")
        for name, losses in steps.items():
            console.print(f"  {name}, rank 0: {' '.join(f'{loss:.6f}' for loss in losses)}")
    training_report.show_checks(console, results)


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.1f}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def plot(table: Sequence[Row], title: str, path: Path) -> None:
    """Draw each library's step: compute, and the communication that shows on top; beside it, all communication."""
    figure, axes = training_report.figure_of(2.6 + 1.7 * len(table), 4.4)
    width, places = 0.36, list(range(len(table)))
    left, right = [p - width / 2 for p in places], [p + width / 2 for p in places]
    errors = [[(r.step - r.lower) * 1e3 for r in table], [(r.upper - r.step) * 1e3 for r in table]]
    base = [(r.compute or 0.0) * 1e3 for r in table]
    rest = [r.step * 1e3 - low for r, low in zip(table, base, strict=True)]
    if any(base):
        axes.bar(left, base, width * 0.92, label="compute alone")
    bars = axes.bar(left, rest, width * 0.92, bottom=base, yerr=errors, capsize=3, label="the rest of the step")
    axes.bar_label(bars, [f"{r.step * 1e3:.0f}" for r in table], fontsize=7, padding=2)
    if totals := [r.total * 1e3 for r in table if r.total is not None]:
        bars = axes.bar(right, totals, width * 0.92, label="communication alone")
        axes.bar_label(bars, [f"{total:.0f}" for total in totals], fontsize=7, padding=2)
    axes.axhline(table[0].bound * 1e3, color="black", linewidth=0.8, linestyle="--", label="bound on communication")
    axes.set_xticks(places, [r.library for r in table])
    axes.set_ylabel("milliseconds")
    training_report.finish(figure, axes, title, path)
