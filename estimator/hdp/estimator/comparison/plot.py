"""A comparison as a picture: the time of each step as lines, and each variant's median with its quartiles as bars."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hdp.contract.errors import HdpError
from hdp.estimator.comparison.figures import warmup_of
from hdp.estimator.comparison.table import digits, shape_of

if TYPE_CHECKING:
    from hdp.estimator.comparison.model import Variant
    from hdp.estimator.comparison.report import Comparison

#: Okabe and Ito's palette, which the colour-blind can tell apart; baselines are grey.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#F0E442")
_GREYS = ("#777777", "#AAAAAA", "#CCCCCC")
#: Colour isn't all that tells lines apart.
_DASHES = ("-", "--", ":", "-.")


def plot(comparison: Comparison, path: Path | None) -> Any:
    """See `Comparison.plot`. No window, no global state: the figure is the caller's."""
    try:
        from matplotlib.figure import Figure
    except ImportError as exc:
        message = "plot() needs matplotlib, which isn't installed: pip install 'hdp-train[notebook]'"
        raise HdpError(message) from exc

    class Shown(Figure):
        """Shows itself in a notebook, where other figures do once pyplot was used."""

        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png", dpi=100)
            return buffer.getvalue()

    figure = Shown(figsize=(9, 6.5), layout="constrained")
    lines, bars = figure.subplots(2, 1, height_ratios=(3, 2))
    styles = _styles(comparison.variants)
    _lines(lines, comparison, styles)
    _bars(bars, comparison, styles)
    figure.suptitle(shape_of(comparison.setting, comparison.variants), fontsize=12)
    if path is not None:
        try:
            figure.savefig(path, dpi=130)
        except (OSError, ValueError) as exc:
            raise HdpError(f"the plot can't be written to {path}: {exc}") from exc
    return figure


def _styles(variants: Sequence[Variant]) -> Mapping[str, Mapping[str, Any]]:
    """Colour and dash of each label."""
    own = [v.label for v in variants if v.kind == "variant"]
    base = [v.label for v in variants if v.kind != "variant"]
    coloured = {
        label: {"color": _COLOURS[i % len(_COLOURS)], "linestyle": _DASHES[i % len(_DASHES)]}
        for i, label in enumerate(own)
    }
    grey = {label: {"color": _GREYS[i % len(_GREYS)], "linestyle": ":"} for i, label in enumerate(base)}
    return {**coloured, **grey}


def _lines(axes: Any, comparison: Comparison, styles: Mapping[str, Mapping[str, Any]]) -> None:
    """Every job is a line. What was left out as warm-up is pale."""
    for variant in comparison.variants:
        good = [run for run in comparison.runs_of(variant.label) if run.steps.seconds]
        for i, run in enumerate(good):
            ms = [1e3 * seconds for seconds in run.steps.seconds]
            cut, style = warmup_of(run, comparison.warmup), styles[variant.label]
            axes.plot(range(cut + 1), ms[: cut + 1], linewidth=0.8, alpha=0.25, **style)
            label = variant.label if i == 0 else None
            axes.plot(range(cut, len(ms)), ms[cut:], linewidth=0.9, alpha=0.8, label=label, **style)
    axes.set(xlabel="step", ylabel="step time, ms")
    axes.xaxis.get_major_locator().set_params(integer=True)
    if _far_apart(comparison):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
    else:
        axes.set_ylim(bottom=0)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=6, fontsize=9, frameon=False)
    axes.grid(alpha=0.3)


def _bars(axes: Any, comparison: Comparison, styles: Mapping[str, Mapping[str, Any]]) -> None:
    shown = [(v.label, v.kind, f.step) for v in comparison.variants if (f := comparison.figures[v.label]).step]
    for row, (label, kind, step) in enumerate(shown):
        middle, low, high = (1e3 * value for value in (step.median, step.first, step.third))
        hatch = None if kind == "variant" else "//"
        axes.barh(row, middle, color=styles[label]["color"], hatch=hatch, edgecolor="white", height=0.65)
        axes.errorbar(middle, row, xerr=[[middle - low], [high - middle]], color="black", capsize=4)
        axes.annotate(f"{digits(middle)} ms", (high, row), xytext=(6, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(shown)), [label for label, _, _ in shown])
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set(xlabel="step time, ms: median and quartiles of all repeats", xlim=(0, None))
    axes.grid(axis="x", alpha=0.3)


def _far_apart(comparison: Comparison) -> bool:
    """Whether one variant would press the others flat on a linear scale."""
    medians = [f.step.median for f in comparison.figures.values() if f.step and f.step.median > 0]
    return bool(medians) and math.log10(max(medians) / min(medians)) > 1.5
