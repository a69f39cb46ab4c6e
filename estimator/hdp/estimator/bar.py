"""A job's progress as a bar while a client follows it: one display in a notebook, the last line of a terminal.

::

    digits-2026  Training  ━━━━━━━━━━━━━━━╸      step 120 of 500  loss 0.1234  1,024 samples/s  0:42 left

Lines of the log go above it. Where output is neither a notebook's nor a terminal's there is no bar, and progress is a
line a second.
"""

from __future__ import annotations

import dataclasses
import html
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from hdp.estimator.progress import Standing

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

#: Of a script's metrics, so many are shown: the bar is one line.
_MOST_VALUES = 4
#: Narrower terminals show no bar, and no name of the job: the step and the time left are what is looked for.
_BAR_FROM_COLUMNS, _NAME_FROM_COLUMNS = 70, 110


class Bar(Protocol):
    """Where a job's progress is shown, and what comes above it."""

    def show(self, standing: Standing) -> None:
        """Show how far the job is."""

    def status(self, status: str) -> None:
        """Show what happens to the job: Starting, Training, Uploading ..."""

    def line(self, text: str) -> None:
        """Show a line of the log, with the next `flush` at the latest."""

    def flush(self) -> None:
        """Show the lines that wait."""

    def close(self) -> None:
        """Leave things as they should stay. Called once, also when the following was interrupted."""


def bar_for(name: str, environ: Mapping[str, str] = os.environ) -> Bar | None:
    """The bar of the job `name` for whatever `sys.stdout` is now; None where a bar can't be."""
    if type(sys.stdout).__module__.startswith("ipykernel"):  # so not where a cell's output is redirected
        # By name: what checks the types here has no IPython.
        return NotebookBar(name, importlib.import_module("IPython.display").display)
    if sys.stdout.isatty() and environ.get("TERM", "dumb") != "dumb":
        return TerminalBar(name)
    return None


def merged(before: Standing | None, now: Standing) -> Standing:
    """`now`, with what was said earlier where it says nothing new."""
    if before is None:
        return now
    values = {**before.values, **now.values}
    step = before.step if now.step is None else now.step
    return dataclasses.replace(now, step=step, values=dict(list(values.items())[:_MOST_VALUES]))


@dataclass(frozen=True)
class Face:
    """What a notebook shows of a job's progress."""

    name: str
    status: str
    standing: Standing | None
    ended: bool = False

    def __repr__(self) -> str:
        return "  ".join(filter(None, [self.name, self.status, str(self.standing or "")]))

    def _repr_html_(self) -> str:
        said = "  ".join(filter(None, [self.status, str(self.standing or "")]))
        text = html.escape(said).replace("  ", " &middot; ")
        style = "display:flex;flex-wrap:wrap;gap:.25rem .75rem;align-items:center;font-variant-numeric:tabular-nums"
        return f'<div style="{style}"><b>{html.escape(self.name)}</b>{self._bar()}<span>{text}</span></div>'

    def _bar(self) -> str:
        mark = self.standing.mark if self.standing else None
        style = f'style="width:16rem;max-width:100%" aria-label="progress of {html.escape(self.name)}"'
        if mark is not None:
            return f'<progress {style} value="{mark.done}" max="{mark.steps}"></progress>'
        return "" if self.ended else f"<progress {style}></progress>"


class NotebookBar:
    """One display that is updated in place, and that stays with the notebook."""

    def __init__(self, name: str, display: Callable[..., Any]) -> None:
        """display: IPython's."""
        self._face = Face(name, "", None)
        self._handle = display(self._face, display_id=True)

    def show(self, standing: Standing) -> None:
        """Show how far the job is."""
        self._update(standing=merged(self._face.standing, standing))

    def status(self, status: str) -> None:
        """Show what happens to the job."""
        self._update(status=status)

    def line(self, text: str) -> None:
        """Show a line of the log, below: a notebook's output only grows."""
        sys.stdout.write(text + "\n")

    def flush(self) -> None:
        """Show the lines that wait."""
        sys.stdout.flush()

    def close(self) -> None:
        """Leave it at the last state, not in motion."""
        self._update(ended=True)

    def _update(self, **changes: Any) -> None:
        self._face = dataclasses.replace(self._face, **changes)
        self._handle.update(self._face)


class TerminalBar:
    """The terminal's last line, until it is closed; then the last progress stays as a line of the log."""

    def __init__(self, name: str) -> None:
        """Takes the terminal that `sys.stdout` is now."""
        self._last: Standing | None = None
        self._lines: list[str] = []
        self._bar, self._task = _rich_bar(name)
        self._bar.start()

    def show(self, standing: Standing) -> None:
        """Show how far the job is."""
        self._last = merged(self._last, standing)
        mark = self._last.mark
        done, steps = (mark.done, mark.steps) if mark else (0, None)
        self._update(completed=done, total=steps, said=str(self._last))

    def status(self, status: str) -> None:
        """Show what happens to the job."""
        self._update(status=status)

    def line(self, text: str) -> None:
        """Show a line of the log above the bar, with the next `flush`: the bar is drawn anew for each."""
        self._lines.append(text)

    def flush(self) -> None:
        """Show the lines that wait, as they are: the terminal wraps them, so that they can be copied whole."""
        from rich.text import Text

        if self._lines:
            self._bar.console.print(Text.from_ansi("\n".join(self._lines)), soft_wrap=True, highlight=False)
            self._lines.clear()

    def close(self) -> None:
        """Take the bar away."""
        self.flush()
        self._bar.stop()
        if self._last is not None:
            self._bar.console.print(str(self._last), soft_wrap=True, highlight=False, markup=False)

    def _update(self, **changes: Any) -> None:
        self.flush()
        self._bar.update(self._task, refresh=True, **changes)


def _rich_bar(name: str) -> tuple[RichProgress, TaskID]:
    from rich.console import Console, OverflowMethod
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    console = Console(file=sys.stdout)
    cut: OverflowMethod = "ellipsis" if console.encoding.startswith("utf") else "crop"
    one_line = Column(no_wrap=True, overflow=cut)
    name_column = TextColumn("{task.description}", table_column=one_line, markup=False)
    parts = (
        *([name_column] if console.width >= _NAME_FROM_COLUMNS else []),
        TextColumn("{task.fields[status]}", table_column=Column(no_wrap=True), markup=False),
        *([BarColumn(None, table_column=Column(ratio=1))] if console.width >= _BAR_FROM_COLUMNS else []),
        TextColumn("{task.fields[said]}", table_column=Column(no_wrap=True, overflow=cut, ratio=3), markup=False),
    )
    # Its own thread would tick twelve times a second; news come about once.
    bar = Progress(*parts, console=console, transient=True, auto_refresh=False, expand=True, redirect_stdout=False)
    return bar, bar.add_task(name, total=None, status="", said="")
