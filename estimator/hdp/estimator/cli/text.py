"""Tables and facts as text: for a terminal of any width, and for pipes.

- Into a pipe each row is one line with whole values, and nothing but text: for `grep`, `awk` and files.
- On a terminal a table has its columns beside each other while they fit. Where they don't, each row becomes a short
  paragraph that begins with the row's first cell. Words are never cut or taken apart: the terminal wraps what is longer
  than itself, so that names and paths can be copied.
- Colours only where the terminal has them and NO_COLOR isn't set. Control characters in values never get out.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO

_GAP = "  "
#: Below this, a fact's name has a line of its own.
_BESIDE_FROM_COLUMNS = 60
#: What is left for a table's last column, if it is prose, for it to stay beside the others.
_PROSE_COLUMNS = 24
_INDENT = "  "
#: Sequences that begin with ESC, then every other control character but the end of a line.
_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])|[\x00-\x09\x0b-\x1f\x7f-\x9f]"
)
_CODES = {"bold": "1", "green": "32", "red": "31", "yellow": "33", "cyan": "36"}


@dataclass(frozen=True)
class Screen:
    """Where text goes."""

    width: int | None = None
    """Columns of a terminal; None: it is none."""
    colour: bool = False


@dataclass(frozen=True)
class Cell:
    """Text with a style: a key of `_CODES`, or none."""

    text: str
    style: str = ""


Value = str | Cell


@dataclass(frozen=True)
class Table:
    """Rows below a head."""

    head: Sequence[str]
    rows: Sequence[Sequence[Value]]
    prose: bool = False
    """Whether the last column is sentences, which may be wrapped between words."""


@dataclass(frozen=True)
class Facts:
    """Names and what is to be said of each; one without a name goes with the one before."""

    rows: Sequence[tuple[str, Value]]


Block = Table | Facts | str


def screen_of(stream: TextIO, environ: Mapping[str, str] = os.environ) -> Screen:
    """What `stream` is. COLUMNS goes before what the terminal says."""
    if not stream.isatty():
        return Screen()
    colour = not environ.get("NO_COLOR") and environ.get("TERM", "dumb") != "dumb"
    return Screen(max(1, shutil.get_terminal_size().columns), colour)


def show(*blocks: Block) -> None:
    """Write to standard output, an empty line between two blocks."""
    screen = screen_of(sys.stdout)
    sys.stdout.write("\n\n".join("\n".join(lines(block, screen)) for block in blocks) + "\n")


def lines(block: Block, screen: Screen) -> Iterator[str]:
    """A block's lines as they are written to `screen`."""
    if isinstance(block, str):
        yield from _wrapped(clean(block), screen.width)
    elif isinstance(block, Facts):
        yield from _facts(block, screen)
    else:
        yield from _table(block, screen)


def clean(text: str) -> str:
    """`text` without what a terminal would obey."""
    return _ESCAPES.sub("", text.replace("\r\n", "\n").expandtabs(4))


def width_of(text: str) -> int:
    """Columns that `text` takes."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def wrap(text: str, width: int) -> Iterator[str]:
    """One line as lines of at most `width` columns, broken between words only; its indentation is kept in all."""
    indent = text[: len(text) - len(text.lstrip())]
    line = ""
    for word in text.split():
        if line and width_of(indent) + width_of(line) + 1 + width_of(word) > width:
            yield indent + line
            line = word
        else:
            line = f"{line} {word}" if line else word
    yield indent + line


def _wrapped(text: str, width: int | None) -> Iterator[str]:
    for line in text.splitlines() or [""]:
        if width is None or width_of(line) <= width:
            yield line
        else:
            yield from wrap(line, width)


# ---- facts -----------------------------------------------------------------------------------------------------------


def _facts(facts: Facts, screen: Screen) -> Iterator[str]:
    names = max((width_of(name) for name, _ in facts.rows), default=0)
    narrow = screen.width is not None and screen.width < max(_BESIDE_FROM_COLUMNS, names + _PROSE_COLUMNS)
    for name, value in facts.rows:
        if narrow and name:
            yield _styled(Cell(name, "bold"), screen)
        indent = _INDENT if narrow else " " * names + _GAP
        first = indent if narrow else _padded(Cell(name, "bold"), names, screen) + _GAP
        yield from _hanging(value, first, indent, screen)


def _hanging(value: Value, first: str, indent: str, screen: Screen) -> Iterator[str]:
    cell = _cell(value)
    room = None if screen.width is None else screen.width - width_of(indent)
    for i, line in enumerate(_wrapped(clean(cell.text), room)):
        yield ((indent if i else first) + _styled(Cell(line, cell.style), screen)).rstrip()


# ---- tables ----------------------------------------------------------------------------------------------------------


def _table(table: Table, screen: Screen) -> Iterator[str]:
    rows = [[_flat(value, keep=table.prose and screen.width is not None) for value in row] for row in table.rows]
    columns = list(zip(table.head, *([cell.text for cell in row] for row in rows), strict=True))
    widths = [max(width_of(line) for text in column for line in text.split("\n")) for column in columns]
    before = sum(widths[:-1]) + len(_GAP) * (len(widths) - 1)
    room = screen.width
    if room is None or before + widths[-1] <= room:
        yield from _beside(table.head, rows, widths, screen)
    elif table.prose and before + _PROSE_COLUMNS <= room:
        yield from _beside(table.head, rows, [*widths[:-1], room - before], screen)
    else:
        for row in rows:
            yield from _paragraph(table, row, room, screen)


def _beside(
    head: Sequence[str], rows: Sequence[Sequence[Cell]], widths: Sequence[int], screen: Screen
) -> Iterator[str]:
    indent = " " * (sum(widths[:-1]) + len(_GAP) * (len(widths) - 1))
    for row in ([Cell(name, "bold") for name in head], *rows):
        cells = [_padded(cell, width, screen) for cell, width in zip(row[:-1], widths[:-1], strict=True)]
        first = "".join(cell + _GAP for cell in cells)
        yield from _hanging(row[-1], first, indent, screen)


def _paragraph(table: Table, row: Sequence[Cell], room: int, screen: Screen) -> Iterator[str]:
    yield _styled(Cell(row[0].text, row[0].style or "bold"), screen)
    rest = list(zip(table.head[1:], row[1:], strict=True))
    prose = [rest.pop()[1]] if table.prose else []
    line: list[str] = []
    taken = 0
    for name, cell in rest:
        if not cell.text:
            continue
        columns = width_of(name) + bool(name) + width_of(cell.text)
        if line and taken + len(_GAP) + columns > room - len(_INDENT):
            yield _INDENT + _GAP.join(line)
            line, taken = [], 0
        taken += columns + (len(_GAP) if line else 0)
        line.append(f"{name} {_styled(cell, screen)}".strip())
    if line:
        yield _INDENT + _GAP.join(line)
    for cell in prose:
        yield from _hanging(cell, _INDENT, _INDENT, screen)


def _flat(value: Value, *, keep: bool) -> Cell:
    """A cell on one line, unless its lines are to be kept."""
    cell = _cell(value)
    text = clean(cell.text)
    return Cell(text if keep else " ".join(text.split("\n")), cell.style)


def _cell(value: Value) -> Cell:
    return value if isinstance(value, Cell) else Cell(value)


def _padded(cell: Cell, width: int, screen: Screen) -> str:
    return _styled(cell, screen) + " " * (width - width_of(cell.text))


def _styled(cell: Cell, screen: Screen) -> str:
    code = _CODES.get(cell.style) if screen.colour and cell.text else None
    return f"\x1b[{code}m{cell.text}\x1b[0m" if code else cell.text
