"""A comparison as a table, for terminals and notebooks: pure."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hdp.contract.units import format_size
from hdp.estimator.comparison.figures import Figures
from hdp.estimator.comparison.model import Setting, Variant

if TYPE_CHECKING:
    from hdp.estimator.comparison.report import Comparison

_WIDTH = 80
_NONE = "-"


@dataclass(frozen=True)
class Cells:
    """The table before it is text: two lines of head, and a line a variant; columns that nobody fills are left out."""

    head: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, ...], ...]


def as_text(comparison: Comparison) -> str:
    """See `Comparison.__str__`. Eighty columns wide, where labels are short; no colours."""
    cells = cells_of(comparison)
    if len(cells.head) == 1:
        return "\n".join([*heading(comparison), "", "no job has completed", *_failures(comparison)])
    lines = [tuple(a for a, _ in cells.head), tuple(b for _, b in cells.head), *cells.rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    gap = "  " if sum(widths) + 2 * (len(widths) - 1) <= _WIDTH else " "
    table = [gap.join(_aligned(line, widths)).rstrip() for line in lines]
    return "\n".join([*heading(comparison), "", *table, "", *remarks(comparison)])


def as_html(comparison: Comparison) -> str:
    """See `Comparison._repr_html_`."""
    cells = cells_of(comparison)
    head = "".join(f"<th>{html.escape(f'{a} {b}'.strip())}</th>" for a, b in cells.head)
    body = "".join(
        "<tr><th>" + "</th><td>".join((html.escape(row[0]), "</td><td>".join(map(html.escape, row[1:])))) + "</td></tr>"
        for row in cells.rows
    )
    caption = "<br>".join(map(html.escape, heading(comparison)))
    notes = "".join(f"<li>{html.escape(line)}</li>" for line in remarks(comparison))
    return (
        f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        f"<ul>{notes}</ul>"
    )


def cells_of(comparison: Comparison) -> Cells:
    """Every cell, as text."""
    unit, scale = _unit(comparison)
    first = comparison.variants[0].label
    head = (
        ("", ""), ("hosts x", "ranks"), ("step", unit), ("quartiles", unit), ("samples", "/s"), ("exposed", unit),
        ("a host", "sends"), ("scal-", "ing"), ("final", "loss"), ("cost", ""), ("to", first),
    )  # fmt: skip
    rows = [_row(comparison, v, comparison.figures[v.label], scale) for v in comparison.variants]
    told = {1} if len(_shapes(comparison.variants)) == 1 else set()  # the heading says it
    filled = [i for i in range(len(head)) if i == 0 or (i not in told and any(row[i] != _NONE for row in rows))]
    return Cells(tuple(head[i] for i in filled), tuple(tuple(row[i] for i in filled) for row in rows))


def heading(comparison: Comparison) -> list[str]:
    """What was compared, where, with what."""
    setting, repeats = comparison.setting, comparison.repeats
    times = f"{repeats} repeats" if repeats != 1 else "1 repeat"
    network = "" if setting.network is None else f", network {_network(setting.network)}"
    return [
        f"{setting.script} on {setting.engine}, {_shapes_text(comparison.variants)}{network}, {times}, {setting.date}",
        _machine(setting.machine),
        ", ".join(f"{name} {number}" for name, number in setting.versions.items()),
    ]


def remarks(comparison: Comparison) -> list[str]:
    """What the columns mean here, and what may be said."""
    return [*_meanings(comparison), *_failures(comparison), *_verdicts(comparison)]


def _row(comparison: Comparison, variant: Variant, f: Figures, scale: float) -> tuple[str, ...]:
    step, exposed = f.step, f.exposed
    return (
        variant.label,
        variant.shape,
        _or_none(step.median if step else None, lambda v: digits(v * scale)),
        _NONE if step is None else f"{digits(step.first * scale)}-{digits(step.third * scale)}",
        _or_none(f.samples_per_second, digits),
        _NONE if exposed is None else ("~" if exposed.estimate else "") + digits(exposed.seconds * scale),
        _or_none(f.sent_bytes_per_step, format_size),
        _or_none(f.scaling_efficiency, lambda v: f"{v:.0%}"),
        _or_none(sum(f.losses) / len(f.losses) if f.losses else None, lambda v: f"{v:.4g}"),
        _or_none(f.cost, lambda v: f"{v:,.4g}"),
        _difference(comparison, variant),
    )


def _difference(comparison: Comparison, variant: Variant) -> str:
    first = comparison.variants[0]
    if variant.kind != "variant" or variant == first:
        return _NONE
    found = comparison.verdict(first.label, variant.label)
    return f"{found.ratio:.2f} x" if found.apart else "in spread" if found.ratio is not None else _NONE


def _meanings(comparison: Comparison) -> Iterator[str]:
    figures = comparison.figures.values()
    left_out = "a fifth of each job's, at most 10" if comparison.warmup is None else f"{comparison.warmup} of each job"
    yield f"step: median of all jobs' steps, and their quartiles; left out as warm-up: {left_out}"
    if any(f.sent_bytes_per_step is not None for f in figures):
        yield "a host sends: in a step, the host that sends most; start and end of the job are in it"
    if any(f.exposed for f in figures):
        yield "exposed: the step less that of as many processes that don't communicate, under the same load"
    for f in figures:
        if f.exposed and f.exposed.estimate:
            yield f"~ of {f.label}: an estimate: {f.exposed.estimate}"
    for v in comparison.variants:
        if v.changes:
            yield f"{v.label} has its own {_changes(v.changes)}"
        if v.others:
            yield f"{v.label} has {v.others} more host{'s' * (v.others > 1)}, without ranks, which only its cost counts"
    if any(f.scaling_efficiency is not None for f in figures):
        yield "scaling: samples a second of R ranks, of R times those of one process with the machine for itself"
    if comparison.losses is not None:
        yield str(comparison.losses)
    if comparison.price_per_hour is not None:
        yield f"cost: of one job, at {comparison.price_per_hour:g} a host and hour"


def _failures(comparison: Comparison) -> Iterator[str]:
    for label, f in comparison.figures.items():
        if f.failures:
            total = len(comparison.runs_of(label))
            yield f"{label}: {len(f.failures)} of {total} jobs failed: {f.failures[0].splitlines()[0]}"


def _verdicts(comparison: Comparison) -> Iterator[str]:
    first, *others = [v.label for v in comparison.variants if v.kind == "variant"]
    found = [comparison.verdict(first, label) for label in others]
    return (str(verdict) for verdict in found if verdict.ratio is not None)


def digits(value: float) -> str:
    """Three digits, or all before the point."""
    size = abs(value)
    decimals = 0 if size >= 99.95 else 1 if size >= 9.995 else 2 if size >= 0.9995 else 3
    return f"{value:,.{decimals}f}"


def _unit(comparison: Comparison) -> tuple[str, float]:
    medians = [f.step.median for f in comparison.figures.values() if f.step]
    return ("s", 1.0) if medians and min(medians) >= 10 else ("ms", 1e3)


def _or_none(value: float | None, render: Any) -> str:
    return _NONE if value is None else str(render(value))


def _aligned(line: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    for i, (cell, width) in enumerate(zip(line, widths, strict=True)):
        yield cell.rjust(width) if i else cell.ljust(width)


def _network(network: Any) -> str:
    return str(network) if isinstance(network, str) else str(dict(network)) if isinstance(network, Mapping) else "yes"


def _machine(machine: Mapping[str, Any]) -> str:
    memory = machine.get("memory_bytes")
    size = f", {format_size(memory)} memory" if memory else ""
    return f"{machine.get('cpu')}, {machine.get('cores')} cores{size}, {machine.get('kernel')}"


def shape_of(setting: Setting, variants: Sequence[Variant]) -> str:
    """One line for a plot's title."""
    network = "" if setting.network is None else f", {_network(setting.network)}"
    return f"{setting.script}: {_shapes_text(variants)}{network}"


def _shapes_text(variants: Sequence[Variant]) -> str:
    return " and ".join(shape if "ranks" in shape else f"{shape} ranks" for shape in _shapes(variants))


def _shapes(variants: Sequence[Variant]) -> list[str]:
    return sorted({v.shape for v in variants if v.kind == "variant"})


def _changes(changes: Mapping[str, Any]) -> str:
    text = ", ".join(f"{name} {value!r}" for name, value in changes.items())
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 3]}..."
