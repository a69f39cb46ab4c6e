"""The plots of a report, as SVG that takes its colours from the page: light and dark alike."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Sequence
from typing import Any

from hdp.contract.errors import HdpError
from hdp.estimator.report.breakdown import Lateness, Step
from hdp.estimator.report.facts import JobReport, Series

#: Stand for the page's colours while matplotlib draws: its text, its grid, and the palette of `page`.
_TEXT, _GRID = "#010203", "#020304"
_PALETTE = ("#030401", "#030402", "#030403", "#030404")
_VARIABLES = {
    _TEXT: "currentColor",
    _GRID: "var(--grid)",
    **{stand_in: f"var(--c{i})" for i, stand_in in enumerate(_PALETTE)},
}
_DASHES = ("-", "--", ":", "-.")
#: More of them would be too small to see; those of scripts that say many come after the loss, as they came.
_MOST_SERIES = 4
#: More steps than this are drawn as means of neighbours.
_MOST_BARS = 160


def metrics(report: JobReport) -> str:
    """Loss and other metrics over steps, then samples a second. Empty: the script said none."""
    ordered = sorted(report.series, key=lambda s: s.name != "loss")[:_MOST_SERIES]
    shown = [*ordered, *([report.rate] if report.rate else [])]
    if not shown:
        return ""

    def draw(figure: Any) -> None:
        rows = figure.subplots(len(shown), 1, squeeze=False)[:, 0]
        for i, (axes, series) in enumerate(zip(rows, shown, strict=True)):
            _line(axes, series, i)
        rows[-1].set_xlabel("step")

    names = ", ".join(series.name for series in shown)
    return _svg(draw, 1.7 * len(shown) + 0.5, f"{names} over the steps")


def breakdown(steps: Sequence[Step]) -> str:
    """Milliseconds of each step by what they were spent on, as a stack."""
    shown = _thinned(steps)

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        numbers = [step.number for step in shown]
        parts = {
            "compute alone": [step.compute - step.hidden for step in shown],
            "compute with communication hidden behind it": [step.hidden for step in shown],
            "exposed communication": [step.exposed for step in shown],
            "waiting for input": [step.input for step in shown],
        }
        kept = {label: values for label, values in parts.items() if any(values)}
        colours = [_PALETTE[list(parts).index(label)] for label in kept]
        axes.stackplot(
            numbers,
            *([1e3 * v for v in values] for values in kept.values()),
            labels=list(kept),
            colors=colours,
            step="mid",
        )
        axes.set(xlabel="step", ylabel="ms", xlim=(numbers[0], max(numbers[-1], numbers[0] + 1)), ylim=(0, None))
        _whole_steps(axes)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, fontsize=9, frameon=False, labelcolor=_TEXT)
        axes.grid(color=_GRID)

    return _svg(draw, 3.4, "time of each step: compute, hidden and exposed communication, input")


def lateness(ranks: Sequence[Lateness]) -> str:
    """How late each rank comes to operations, in the middle, as bars."""

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        ms = [1e3 * one.median_seconds for one in ranks]
        axes.barh([f"rank {one.rank}" for one in ranks], ms, color=_PALETTE[0], height=0.6)
        axes.invert_yaxis()
        axes.set(xlabel="after the first rank, ms, median over operations", xlim=(0, max([*ms, 0.1]) * 1.1))
        axes.grid(axis="x", color=_GRID)

    return _svg(draw, 0.9 + 0.28 * len(ranks), "how late each rank calls operations")


def _line(axes: Any, series: Series, number: int) -> None:
    style = {"color": _PALETTE[number % len(_PALETTE)], "linestyle": _DASHES[number % len(_DASHES)]}
    marker = "o" if len(series.steps) < 3 else None
    axes.plot(series.steps, series.values, linewidth=1.4, marker=marker, **style)
    axes.set_ylabel(series.name)
    axes.grid(color=_GRID)
    _whole_steps(axes)


def _whole_steps(axes: Any) -> None:
    """No tick between two steps."""
    axes.xaxis.get_major_locator().set_params(integer=True)


def _thinned(steps: Sequence[Step]) -> Sequence[Step]:
    """At most `_MOST_BARS`: each the mean of as many neighbours."""
    size = -(-len(steps) // _MOST_BARS)
    groups = [steps[i : i + size] for i in range(0, len(steps), size)]

    def mean(values: Sequence[float]) -> float:
        return sum(values) / len(values)

    return [
        Step(
            group[0].number,
            *(mean([getattr(s, name) for s in group]) for name in ("seconds", "compute", "hidden", "exposed", "input")),
        )
        for group in groups
    ]


def _svg(draw: Callable[[Any], None], height: float, label: str) -> str:
    """What `draw` puts on a figure of `height` inches. Raises HdpError: there is no matplotlib."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as exc:
        message = "a report needs matplotlib, which isn't installed: pip install 'hdp-train[notebook]'"
        raise HdpError(message) from exc
    colours: Any = dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), _TEXT
    )
    plain: Any = {"svg.fonttype": "none", "svg.hashsalt": label, "font.family": "sans-serif", "font.size": 10}
    with matplotlib.rc_context({**colours, **plain, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(9, height), layout="constrained")
        draw(figure)
        figure.patch.set_alpha(0)
        for axes in figure.axes:
            axes.patch.set_alpha(0)
            axes.set_axisbelow(True)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return _styled(out.getvalue(), label)


def _styled(svg: str, label: str) -> str:
    """The element alone, as wide as its place, named for who can't see it, with the page's colours.

    On a narrow page it stays large enough to read, in a box that scrolls.
    """
    body = svg[svg.index("<svg") :]
    for stand_in, variable in _VARIABLES.items():
        body = body.replace(stand_in, variable)
    body = re.sub(r'<svg ([^>]*?)width="[^"]*"', r"<svg \1", body, count=1)
    body = re.sub(r'<svg ([^>]*?)height="[^"]*"', r"<svg \1", body, count=1)
    body = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", body)
    named = body.replace("<svg ", f'<svg role="img" aria-label="{html.escape(label)}" ', 1)
    return f'<div class="plot">{named}</div>'
