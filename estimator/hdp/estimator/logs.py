"""Shows a job's log lines: one prefix for host and rank, a colour for each host where the output has colour.

A line is ``algo-2:3 | text`` for rank 3 on host algo-2, and ``algo-2 | text`` for what the host's agent says itself.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TextIO

from hdp.estimator.engines.base import LogLine

Sink = Callable[[str], None]
"""Takes one line without its newline."""

#: What `fit` and `wait` take as ``logs``, in v2's words and ours, and whether the log is shown then.
LOGS_SHOWN: Mapping[object, bool] = {
    "All": True,
    "Training": True,
    True: True,
    "None": False,
    None: False,
    False: False,
}
_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)


@dataclass(frozen=True)
class Filter:
    """Which lines are wanted; None: all."""

    host: str | None = None
    rank: int | None = None

    def __call__(self, line: LogLine) -> bool:
        """Whether `line` is wanted."""
        return self.host in (None, line.host) and self.rank in (None, line.rank)


def prefix(line: LogLine) -> str:
    """``algo-2:3``, or ``algo-2`` for the agent's own lines."""
    return line.host if line.rank is None else f"{line.host}:{line.rank}"


def render(line: LogLine, colour: bool) -> str:
    """One line as it is shown."""
    head = prefix(line)
    return f"\x1b[{_colour_of(line.host)}m{head}\x1b[0m | {line.text}" if colour else f"{head} | {line.text}"


def to_stdout(text: str) -> None:
    """The default sink. `sys.stdout` is looked up at each call, because notebooks and test runners replace it."""
    try:
        sys.stdout.write(text + "\n")
    except UnicodeEncodeError:  # a job's lines are no reason to stop following it
        known = sys.stdout.encoding
        sys.stdout.write(text.encode(known, "backslashreplace").decode(known) + "\n")
    sys.stdout.flush()


def has_colour(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether `stream` shows colours: a terminal, or a notebook's cell; never where NO_COLOR is set.

    A program that a notebook starts inherits its variables, but writes to a pipe.
    """
    if environ.get("NO_COLOR") or environ.get("TERM") == "dumb":
        return False
    return stream.isatty() or type(stream).__module__.startswith("ipykernel")


def show(lines: Iterable[LogLine], sink: Sink, wanted: Filter = Filter(), colour: bool = False) -> int:
    """Send the wanted lines to `sink`. Returns how many."""
    chosen = [line for line in lines if wanted(line)]
    for line in chosen:
        sink(render(line, colour))
    return len(chosen)


def _colour_of(host: str) -> int:
    """The same colour for a host in every run: by its number, else by its name."""
    number = host.rpartition("-")[2]
    return _COLOURS[(int(number) - 1 if number.isdigit() else zlib.crc32(host.encode())) % len(_COLOURS)]
