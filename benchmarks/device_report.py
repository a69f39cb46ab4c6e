"""What `device` found, as tables. The numbers are those of its JSON file."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from device_plan import NOMINAL, Step
from report import text_size
from rich.console import Console
from rich.table import Table


def say(text: str) -> None:
    """One line about what happens, beside the results."""
    print(text, file=sys.stderr, flush=True)


def line_of(step: Step) -> str:
    """How a step went."""
    if not step.faults:
        return f"{step.name}: fine, {step.seconds:.1f} s"
    return "\n".join([f"{step.name}: FAILED after {step.seconds:.1f} s", *(f"  {fault}" for fault in step.faults)])


def show(everything: Mapping[str, Any]) -> None:
    """Print a table of every step that found something, and how each went."""
    console = Console(width=None if Console().is_terminal else 140)
    where = everything["machine"]
    gpus = ", ".join(where.get("gpus", [])) or "no GPU: these numbers say nothing about one"
    console.print(f"{gpus}; {where['cpu']}, {where['processors']} processors; torch {where['torch']}", markup=False)
    steps = everything["steps"]
    for name, make in (("copies", copies), ("checks", checks), ("allreduce", allreduce), ("train", train)):
        if steps.get(name, {}).get("found"):
            console.print(make(steps[name]["found"]))
    for name, step in steps.items():
        console.print(f"{name}: {'FAILED' if step['faults'] else 'fine'}, {step['seconds']:.1f} s")


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left")
    return table


def copies(found: Mapping[str, Any]) -> Table:
    """GB/s between host and device."""
    table = _table("copies, GB/s", "memory", "off the device", "on it", "each way at once")
    rates = found["copies"]
    both = f"{rates['both_pinned']:.1f} (the bounds: {NOMINAL:.0f})"
    table.add_row("pinned", f"{rates['off_pinned']:.1f}", f"{rates['on_pinned']:.1f}", both)
    table.add_row("pageable", f"{rates['off_pageable']:.1f}", f"{rates['on_pageable']:.1f}", "-")
    return table


def checks(found: Mapping[str, Any]) -> Table:
    """Which checks passed, on which shape."""
    table = _table("checks", "program", "fine", "failed", "seconds")
    for name, one in found.items():
        passed = ", ".join(one["checks"])
        table.add_row(name, passed, ", ".join(one["failed"]) or "-", f"{sum(one['checks'].values()):.1f}")
    return table


def allreduce_rows(found: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """hdp beside gloo, for each shape and size; seconds. bound: at `NOMINAL` GB/s, and at what was measured."""
    for name, one in found.items():
        world = one["options"]["hosts"] * one["options"]["ranks"]
        rows = {(row["peer"], row["size"]): row for row in one["rows"]}
        for size in one["options"]["sizes"]:
            ours, theirs = rows.get(("hdp", size)), rows.get(("gloo", size))
            yield {
                "shape": name.removeprefix("allreduce-"),
                "size": size,
                "hdp": ours,
                "gloo": theirs,
                "over_hdp": theirs["median"] / ours["median"] if ours and theirs else None,
                "bound": world * size / NOMINAL / 1e9,
                "measured_bound": one["bound_seconds"].get(str(size)),
            }


def allreduce(found: Mapping[str, Any]) -> Table:
    """Times, ratios to gloo and to both bounds."""
    table = _table(
        f"allreduce of float32; bound: the bytes of all ranks at {NOMINAL:.0f} GB/s each way, and at the measured rate",
        *("shape", "size", "hdp ms", "quartiles", "gloo ms", "gloo/hdp", "bound ms", "hdp/bound", "measured", "hdp/it"),
    )
    for row in allreduce_rows(found):
        ours, theirs, measured = row["hdp"], row["gloo"], row["measured_bound"]
        table.add_row(
            row["shape"],
            text_size(row["size"]),
            _ms(ours and ours["median"]),
            "-" if not ours else f"{_ms(ours['lower'])} .. {_ms(ours['upper'])}",
            _ms(theirs and theirs["median"]),
            _times(row["over_hdp"]),
            _ms(row["bound"]),
            _times(ours and ours["median"] / row["bound"]),
            _ms(measured),
            _times(ours and measured and ours["median"] / measured),
        )
    return table


def train(found: Mapping[str, Any]) -> Table:
    """Images a second, and what communication costs."""
    columns = ("network, ranks", "library", "images/s", "alone", "kept", "exposed ms", "over gloo", "losses apart")
    table = _table("EfficientNet under DDP; alone: the same ranks with nothing between them", *columns)
    for name, one in found.items():
        if name == "trace":
            table.caption = (
                f"timeline of {one['model']}, {one['ranks']} ranks, hosts that wait: a step of "
                f"{_ms(one['step'])} ms had {_ms(one['in_flight'])} ms in which operations were in flight, and "
                f"{_ms(one['waited'])} ms of waiting for them"
            )
            continue
        gloo = next((row["images"] for row in one["rows"] if row["backend"] == "gloo"), None)
        curves = {k: v for results in one["measured"].values() for k, v in results["curves"].items()}
        for row in one["rows"]:
            backend = row["backend"]
            table.add_row(
                name.removeprefix("train-"),
                backend,
                f"{row['images']:.1f}",
                "-" if row["alone"] is None else f"{row['alone']:.1f}",
                "-" if row["kept"] is None else f"{row['kept']:.0%}",
                _ms(row["exposed"]),
                _times(row["images"] / gloo if gloo and row["alone"] else None),
                f"{curves[backend]:.1e}" if curves.get(backend) is not None else "-",
            )
    return table


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.3g}"


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"
