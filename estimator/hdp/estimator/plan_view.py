"""A `Plan` as text for terminals and as HTML for notebooks. Secrets are hidden in both."""

from __future__ import annotations

import html
import io
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from hdp.contract.redact import redact, redact_argv, redact_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hdp.estimator.plan import Plan, ProcessPlan, RankPlan

#: More rows than this are cut in the middle: nobody reads a thousand.
MAX_ROWS = 64
_WIDTH = 120
_COLUMNS = ("host", "node", "rank", "local", "device", "world", "master")


def as_text(plan: Plan) -> str:
    """The plan as text without colours, at most 120 columns wide."""
    from rich.console import Console

    buffer = io.StringIO()
    console = Console(file=buffer, width=_WIDTH, color_system=None, force_terminal=False, legacy_windows=False)
    for part in _renderables(plan):
        console.print(part)
        console.print()
    return "\n".join(line.rstrip() for line in buffer.getvalue().rstrip().splitlines())


def as_html(plan: Plan) -> str:
    """The plan as HTML, everything escaped."""
    request = _html_table(("request", ""), request_rows(plan))
    ranks = _html_table(columns(plan), rank_rows(plan))
    commands = _html_table(("hosts", "command"), command_rows(plan))
    notes = "".join(f"<li>{html.escape(redact_text(n))}</li>" for n in plan.notes)
    return f"<p>{html.escape(_title(plan))}</p>{request}{ranks}{commands}" + (f"<ul>{notes}</ul>" if notes else "")


def request_rows(plan: Plan) -> list[tuple[str, str]]:
    """Path and value of every leaf of the request, secrets hidden."""
    rows = list(_leaves(redact(plan.request.training_job), ""))
    return rows + list(_leaves(redact(plan.request.engine_options), "engine_options"))


def columns(plan: Plan) -> tuple[str, ...]:
    """The heads of `rank_rows`; with the hosts' groups where the job has some."""
    return ("group", *_COLUMNS) if _has_groups(plan) else _COLUMNS


def rank_rows(plan: Plan) -> list[tuple[str, ...]]:
    """A row for each process, the hosts in order; beyond `MAX_ROWS`, the first and last with the gap marked."""
    rows = [_row(p) if _has_groups(plan) else _row(p)[1:] for p in _processes(plan)]
    if len(rows) <= MAX_ROWS:
        return rows
    half = MAX_ROWS // 2
    gap = (f"... {len(rows) - MAX_ROWS} more", *[""] * (len(rows[0]) - 1))
    return [*rows[:half], gap, *rows[-half:]]


def command_rows(plan: Plan) -> list[tuple[str, str]]:
    """Hosts and the command that starts their processes; neighbours with the same command share a row."""
    rows = []
    for argv, group in groupby(_processes(plan), key=lambda p: p.argv):
        hosts = list(dict.fromkeys(r.host for r in group))
        name = hosts[0] if len(hosts) == 1 else f"{hosts[0]} to {hosts[-1]}"
        rows.append((name, shlex.join(redact_argv(argv)) or "the image's own entry point"))
    return rows


def _renderables(plan: Plan) -> Iterator[RenderableType]:
    from rich.text import Text

    yield Text(_title(plan))
    yield _rich_table(("request", "value"), request_rows(plan))
    yield _rich_table(columns(plan), rank_rows(plan))
    yield _rich_table(("hosts", "command"), command_rows(plan))
    if plan.notes:
        yield Text("\n".join(f"note: {redact_text(note)}" for note in plan.notes))


def _rich_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> RenderableType:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=i == 0)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _html_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(c)}</th>" for c in columns)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _title(plan: Plan) -> str:
    hosts = len({p.host for p in _processes(plan)})
    size = f"{hosts} host{'s' * (hosts != 1)}, {len(plan.ranks)} rank{'s' * (len(plan.ranks) != 1)}"
    if plan.others:
        size += f" on {hosts - len(plan.others)} of them"
    return (
        f"plan of {plan.request.name}: engine {plan.engine}, launcher {plan.launch.kind}, {size}; nothing was started"
    )


def _has_groups(plan: Plan) -> bool:
    return any(p.group for p in _processes(plan))


def _processes(plan: Plan) -> list[RankPlan | ProcessPlan]:
    """Every process, the hosts in order; a host has ranks or one other."""
    return sorted([*plan.ranks, *plan.others], key=lambda p: (len(p.host), p.host))


def _row(process: RankPlan | ProcessPlan) -> tuple[str, ...]:
    from hdp.estimator.plan import ProcessPlan

    head = (process.group, process.host)
    if isinstance(process, ProcessPlan):
        return (*head, *["-"] * (len(_COLUMNS) - 1))
    env = process.environment
    numbers = (str(process.node_rank), str(process.rank), str(process.local_rank))
    return (*head, *numbers, process.device, env["WORLD_SIZE"], f"{env['MASTER_ADDR']}:{env['MASTER_PORT']}")


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)) and value and not all(isinstance(v, str) for v in value):
        for i, item in enumerate(value):
            yield from _leaves(item, f"{path}[{i}]")
    elif value != {}:
        yield path, ", ".join(value) if isinstance(value, (list, tuple)) else str(value)
