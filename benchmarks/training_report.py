"""What the samples of training steps say: table and plot."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from report import least_bytes
from rich.console import Console
from rich.table import Table
from training import Results, Sample

_COLUMNS = (
    "library",
    "s/step",
    "quartiles of rounds",
    "over bound",
    "sent/least",
    "compute s",
    "exchange s",
    "exch./bound",
    "hidden",
    "CPU s/step",
    "over hdp",
)


@dataclass(frozen=True)
class Row:
    """One library; medians over rounds, seconds."""

    library: str
    rounds: int
    step: float
    lower: float
    upper: float
    compute: float
    exchange: float
    bound: float
    """The least time in which a host can send what it must: 2(N-1)/N of the gradients, at the link's rate."""
    sent_over_least: float
    """Bytes a step of the busiest host's interface over that least."""
    hidden: float
    """Of the shorter half, the part that the other hides: see `training`."""
    cpu: float
    over_hdp: float | None


def rows(results: Results, hosts: int, rate: float) -> list[Row]:
    """A row for each library that was measured. rate: bytes a second of each host's link."""
    least = least_bytes("allreduce", 4 * results.parameters, hosts)
    ours = results.samples.get("hdp")
    reference = _step(ours) if ours else None
    return [_row(name, samples, least, least / rate, reference) for name, samples in results.samples.items() if samples]


def _row(name: str, samples: Sequence[Sample], least: float, bound: float, reference: float | None) -> Row:
    medians = [statistics.median(sample.steps) for sample in samples]
    step = _step(samples)
    lower, _, upper = statistics.quantiles(medians, n=4, method="inclusive") if len(medians) > 1 else [step] * 3
    compute = statistics.median(s.compute for s in samples if s.compute is not None)
    exchange = statistics.median(s.exchange for s in samples if s.exchange is not None)
    return Row(
        library=name,
        rounds=len(samples),
        step=step,
        lower=lower,
        upper=upper,
        compute=compute,
        exchange=exchange,
        bound=bound,
        sent_over_least=statistics.median(max(s.sent) for s in samples) / least,
        hidden=(compute + exchange - step) / min(compute, exchange),
        cpu=statistics.median(s.cpu for s in samples),
        over_hdp=step / reference if reference else None,
    )


def _step(samples: Sequence[Sample]) -> float:
    return statistics.median(statistics.median(sample.steps) for sample in samples)


def show(table: Sequence[Row], results: Results, title: str) -> None:
    """Print the table, and what was checked."""
    console = Console(width=None if Console().is_terminal else 150)
    bound = f"bound on communication {table[0].bound:.3f} s" if table else "nothing was measured"
    shown = Table(title=f"{title}; {bound}", title_justify="left")
    for name in _COLUMNS:
        shown.add_column(name, justify="left" if name == "library" else "right")
    for row in table:
        shown.add_row(
            row.library,
            f"{row.step:.3f}",
            f"{row.lower:.3f} .. {row.upper:.3f}",
            f"{row.step / row.bound:.3f}",
            f"{row.sent_over_least:.3f}",
            f"{row.compute:.3f}",
            f"{row.exchange:.3f}",
            f"{row.exchange / row.bound:.3f}",
            f"{row.hidden:.2f}",
            f"{row.cpu:.2f}",
            "-" if row.over_hdp is None else f"{row.over_hdp:.2f}",
        )
    console.print(shown)
    show_checks(console, results)


def show_checks(console: Console, results: Results) -> None:
    """Print what was checked, and what failed."""
    for name, error in results.errors.items():
        console.print(f"{name}: gradients within {error:.1e} of the ranks' mean{_compared(name, results)}")
    if agreed := [name for name in results.samples if name not in results.failed]:
        console.print(f"parameters were equal on all ranks, to the bit, before and after: {', '.join(agreed)}")
    for name, difference in results.curves.items():
        if name != results.reference:
            console.print(f"{name}: mean losses within {difference:.1e} of {results.reference}'s")
    for name, sizes in results.buckets.items():
        if sizes:
            console.print(f"{name}: {len(sizes)} messages a step, {min(sizes):,} to {max(sizes):,} bytes")
    for name, why in results.failed.items():
        console.print(f"{name} FAILED: {why}", markup=False)


def _compared(name: str, results: Results) -> str:
    if name == results.reference or name not in results.differences:
        return ""
    return f", first step within {results.differences[name]:.1e} of {results.reference}'s"


def plot(table: Sequence[Row], title: str, path: Path) -> None:
    """Draw each library's step beside its two halves, with the bound across."""
    figure, axes = figure_of(2.2 + 1.5 * len(table), 4.4)
    places = range(len(table))
    width = 0.27
    halves = (("compute alone", [r.compute for r in table]), ("exchange alone", [r.exchange for r in table]))
    for number, (label, values) in enumerate(halves):
        bars = axes.bar([p + (number - 1) * width for p in places], values, width * 0.92, label=label)
        axes.bar_label(bars, [f"{v:.2f}" for v in values], fontsize=7, padding=2)
    errors = [[r.step - r.lower for r in table], [r.upper - r.step for r in table]]
    bars = axes.bar(
        [p + width for p in places], [r.step for r in table], width * 0.92, yerr=errors, capsize=3, label="step"
    )
    axes.bar_label(bars, [f"{r.step:.2f}" for r in table], fontsize=7, padding=2)
    axes.axhline(table[0].bound, color="black", linewidth=0.8, linestyle="--", label="bound on communication")
    axes.set_xticks(list(places), [f"{r.library}\n{r.hidden:.0%} hidden" for r in table])
    axes.set_ylabel("seconds")
    finish(figure, axes, title, path)


def figure_of(width: float, height: float) -> tuple[Any, Any]:
    """A figure that needs no display, and its axes."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(width, height), layout="constrained")


def finish(figure: Any, axes: Any, title: str, path: Path) -> None:
    """Title and legend outside the bars; write the file."""
    from matplotlib import pyplot

    axes.set_title(title.replace("; ", "\n"), fontsize=8)
    axes.margins(y=0.12)
    figure.legend(loc="outside lower center", fontsize=7, ncols=4)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def folder_faults(*paths: Path | None) -> list[str]:
    """A line for each file whose folder isn't there, and for each plot that can't be drawn."""
    faults = [f"{path}: its folder is not there" for path in paths if path and not path.resolve().parent.is_dir()]
    plots = [path for path in paths if path and path.suffix not in ("", ".json")]
    try:
        import matplotlib as mpl  # noqa: F401
    except ImportError:
        faults += [f"{path}: matplotlib is not installed" for path in plots]
    return faults
