"""What FastFile's benchmark found: rows, a table, JSON and a plot; and what the processors allow."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

#: Okabe and Ito's palette, which the colour-blind can tell apart.
_COLOURS = {
    "client": "#999999", "FastFile": "#0072B2", "FastFile, from memory": "#56B4E9",
    "FastFile, O_DIRECT": "#0072B2", "rclone": "#E69F00",
    "s3fs": "#D55E00", "bound": "#000000", "nginx": "#009E73", "mount": "#0072B2", "reader": "#CC79A7",
}  # fmt: skip
_PANELS = (
    "1 GiB in order, loopback", "1 GiB in order, S3-like", "small files, S3-like", "processor time, loopback"
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """What one of them did in one case."""

    case: str
    who: str
    unit: str
    values: tuple[float, ...]
    """One a repeat."""
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def median(self) -> float:
        """Of the repeats."""
        return statistics.median(self.values)


def bound(cores: int, *costs: Mapping[str, float]) -> float:
    """MiB/s that the processors allow. costs: processor seconds a GiB, by process, of all that takes part."""
    return cores * 1024 / sum(sum(cost.values()) for cost in costs)


def line(row: Row) -> str:
    """For the screen, while it runs."""
    return f"{row.case:30} {row.who:22} {row.median:10.1f} {row.unit}  {_text(row.more)}"


def show(rows: Sequence[Row]) -> None:
    """Print a table."""
    table = Table("case", "who", "median", "unit", "spread", "more")
    for row in rows:
        spread = f"{min(row.values):.0f} to {max(row.values):.0f}"
        table.add_row(row.case, row.who, f"{row.median:.1f}", row.unit, spread, _text(row.more))
    Console(width=None if Console().is_terminal else 160).print(table)


def write_json(rows: Sequence[Row], path: Path) -> None:
    """Every value, and on what machine."""
    machine = {"cores": os.cpu_count(), "kernel": platform.release(), "load": os.getloadavg()}
    found = [{**asdict(row), "median": row.median} for row in rows]
    path.write_text(json.dumps({"machine": machine, "rows": found}, indent=1))


def plot(rows: Sequence[Row], path: Path) -> None:
    """Draw a panel for each kind of case that was run."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    kinds = [kind for kind in _PANELS if _of_panel(rows, kind)]
    across = min(2, max(1, len(kinds)))
    down = max(1, -(-len(kinds) // across))
    figure, fields = pyplot.subplots(
        down, across, figsize=(6 * across, 3.4 * down), layout="constrained", squeeze=False
    )
    for axes in fields.flat[len(kinds) :]:
        axes.set_axis_off()
    for kind, axes in zip(kinds, fields.flat[: len(kinds)], strict=True):
        axes.set_title(kind, fontsize=10)
        (_draw_costs if kind.startswith("processor") else _draw_rates)(axes, kind, _of_panel(rows, kind))
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _of_panel(rows: Sequence[Row], kind: str) -> list[Row]:
    if kind.startswith("processor"):
        return [row for row in rows if row.case == _PANELS[0] and "cpu_s_per_gib" in row.more]
    return [row for row in rows if row.case.startswith(kind)]


def _draw_rates(axes: Any, kind: str, rows: Sequence[Row]) -> None:
    """Bars from the left, the repeats as dots; the bound as a line."""
    bars = [row for row in rows if row.who != "bound"]
    for place, row in enumerate(bars):
        axes.barh(place, row.median, color=_COLOURS.get(row.who, "#F0E442"), height=0.7)
        axes.plot(row.values, [place] * len(row.values), ".", color="black", markersize=3)
        axes.annotate(f" {row.median:,.0f}", (max(row.values), place), va="center", fontsize=8)
    for row in (row for row in rows if row.who == "bound"):
        axes.axvline(row.median, color="black", linestyle="--", linewidth=1, label=f"{row.who}: {row.median:,.0f}")
        axes.legend(fontsize=8, loc="lower right")
    names = [row.who + row.case.removeprefix(kind).replace(", ", "\n", 1) for row in bars]
    axes.set_yticks(range(len(bars)), names, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.16)
    axes.set_xlabel(rows[0].unit)


def _draw_costs(axes: Any, _kind: str, rows: Sequence[Row]) -> None:
    """A bar for each of them, in pieces by process."""
    parts = list(dict.fromkeys(part for row in rows for part in row.more["cpu_s_per_gib"]))
    left = [0.0] * len(rows)
    for part in parts:
        widths = [row.more["cpu_s_per_gib"].get(part, 0.0) for row in rows]
        axes.barh(range(len(rows)), widths, left=left, color=_COLOURS[part], label=part, height=0.7)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    for place, total in enumerate(left):
        axes.annotate(f" {total:.2f}", (total, place), va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), [row.who for row in rows], fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.16)
    axes.set_xlabel("processor seconds a GiB")
    axes.legend(fontsize=8, loc="upper right")


def _text(more: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} {_text(v) if isinstance(v, Mapping) else v}" for k, v in more.items())
