"""``hdp timeline``: the timelines that a job's ranks and servers wrote (HDP_TIMELINE=1) as one file for a viewer.

A file has an event a line, so that one is merged without being read as a whole, and that of a killed process, which
may end within a line, as far as it goes.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from hdp.contract.errors import EngineError
from hdp.estimator import outputs, traces
from hdp.estimator.cli import completing


@dataclass
class Merged:
    """What went into the merged file."""

    operations: int = 0
    rows: set[tuple[int, str]] = field(default_factory=set)
    """Host and name of each thread."""
    first: float = float("inf")
    last: float = 0.0
    cut: list[str] = field(default_factory=list)
    """Files that end within an event."""

    @property
    def who(self) -> str:
        """Whose files they are."""
        ranks = sum(row.startswith("rank ") and "," not in row for _, row in self.rows)
        hosts = len({host for host, _ in self.rows})
        return f"{ranks} rank{'s' * (ranks != 1)} on {hosts} host{'s' * (hosts != 1)}"

    @property
    def seconds(self) -> float:
        """From the first event to the end of the last."""
        return max(0.0, self.last - self.first) / 1e6

    def count(self, event: dict[str, Any]) -> None:
        """Take note of an event."""
        if event["ph"] == "M":
            if event["name"] == "thread_name":
                self.rows.add((event["pid"], event["args"]["name"]))
            return
        self.first = min(self.first, event["ts"])
        self.last = max(self.last, event["ts"] + event.get("dur", 0))
        self.operations += event["ph"] == "X" and "rank" in event.get("args", {})


def timeline(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of a job that ran with HDP_TIMELINE=1.", show_default=False, autocompletion=completing.job_names
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write: by default NAME-timeline.json, here.")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--folder", help="Where ranks without a job have left theirs.", show_default=False),
    ] = None,
) -> None:
    """Merge a job's timelines into one file for Perfetto.

    Or for chrome://tracing.

    A job writes them where its environment has HDP_TIMELINE=1. They show each operation: waiting, transfer, outcome.
    """
    if (name is None) == (folder is None):
        raise typer.BadParameter("give either a job's name, or --folder", param_hint="NAME")
    target = output or Path(f"{name or 'hdp'}-timeline.json")
    with contextlib.ExitStack() as opened:
        files = _in_folder(folder, opened) if folder is not None else _of_job(str(name), opened)
        merged = merge(files, target)
    for cut in merged.cut:
        typer.echo(f"{cut} ends within an event: its process was killed; it is merged up to there", err=True)
    typer.echo(
        f"{target}: {merged.operations} operations, of {merged.who}, in {merged.seconds:.1f} s\n"
        "open it at https://ui.perfetto.dev (Open trace file; it stays on this machine) or in chrome://tracing"
    )


def merge(files: Iterable[tuple[str, Iterable[bytes]]], target: Path) -> Merged:
    """Write the events of all files, by name with their lines, to `target`. Raises EngineError: it can't be written."""
    merged = Merged()
    part = target.with_name(f".{target.name}.part")
    try:
        with part.open("w", encoding="utf-8") as out:
            out.write('{"displayTimeUnit":"ms","traceEvents":[')
            for number, event in enumerate(_all_events(files, merged)):
                out.write((",\n" if number else "\n") + json.dumps(event, separators=(",", ":")))
            out.write("\n]}\n")
        part.replace(target)
    except OSError as exc:
        raise EngineError(f"{target} can't be written: {exc.strerror}") from exc
    finally:
        part.unlink(missing_ok=True)
    return merged


def _all_events(files: Iterable[tuple[str, Iterable[bytes]]], merged: Merged) -> Iterator[dict[str, Any]]:
    for name, lines in files:
        try:
            for event in traces.events_of(lines):
                merged.count(event)
                yield event
        except (traces.Cut, KeyError, TypeError):
            merged.cut.append(name)


# ---- where the files are ---------------------------------------------------------------------------------------------


def _in_folder(folder: Path, opened: contextlib.ExitStack) -> outputs.Opened:
    files = sorted(folder.glob(outputs.TIMELINES))
    if not files:
        raise EngineError(
            f"there is no {outputs.TIMELINES} in {folder}; ranks write them where they run with HDP_TIMELINE=1"
        )
    return [(path.name, opened.enter_context(path.open("rb"))) for path in files]


def _of_job(name: str, opened: contextlib.ExitStack) -> outputs.Opened:
    """Those of a job. Raises JobNotFound; EngineError where there is none, with the reason."""
    from hdp.estimator.engines.registry import get_engine

    answer = get_engine("local").describe(name)
    found = outputs.opened(answer, outputs.TIMELINES, opened)
    if found:
        return found
    running = answer["TrainingJobStatus"] in ("InProgress", "Stopping")
    raise EngineError(
        f"job {name} has no timeline{' yet' if running else ''}; a job writes one where it runs with "
        'environment={"HDP_TIMELINE": "1"} and its ranks use backend hdp'
    )
