"""What came of the suite: results.json, and RESULTS.md made of it."""

from __future__ import annotations

import importlib.metadata
import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

FILE = Path(__file__).with_name("results.json")
Status = Literal["passed", "skipped", "failed"]
_COLUMNS = ("hdp", "gloo")


@dataclass(frozen=True)
class Outcome:
    """Of one test on one backend."""

    status: Status
    seconds: float
    reason: str


@dataclass
class Table:
    """All outcomes: backend -> test -> outcome."""

    torch: str
    ranks: dict[str, int] = field(default_factory=dict)
    of: dict[str, dict[str, Outcome]] = field(default_factory=dict)

    def outcomes(self, backend: str) -> dict[str, Outcome]:
        """Of one backend, by test."""
        return self.of.get(backend, {})

    def add(self, backend: str, ranks: int, test: str, outcome: Outcome) -> None:
        """One more. Raises ValueError where the backend's other tests ran with another number of ranks."""
        if self.ranks.setdefault(backend, ranks) != ranks:
            raise ValueError(f"{backend}'s outcomes are of {self.ranks[backend]} ranks, this one of {ranks}")
        self.of.setdefault(backend, {})[test] = outcome


def read(file: Path = FILE) -> Table:
    """The table in a file."""
    raw = json.loads(file.read_text())
    of = {backend: {t: Outcome(**o) for t, o in tests.items()} for backend, tests in raw["of"].items()}
    return Table(raw["torch"], raw["ranks"], of)


def of_this_torch(file: Path) -> Table:
    """The table to go on with: an empty one where there is no file, or it is of another torch."""
    version = importlib.metadata.version("torch")
    table = read(file) if file.exists() else Table(version)
    return table if table.torch == version else Table(version)


def write(table: Table, file: Path = FILE) -> None:
    """Replace the file, and the page beside it."""
    raw = {
        "torch": table.torch,
        "ranks": dict(sorted(table.ranks.items())),
        "of": {b: {t: asdict(o) for t, o in sorted(tests.items())} for b, tests in sorted(table.of.items())},
    }
    part = file.with_suffix(".part")
    part.write_text(json.dumps(raw, indent=1) + "\n")
    part.replace(file)
    file.with_name("RESULTS.md").write_text(page(table))


def page(table: Table) -> str:
    """The table as Markdown."""
    lines = [
        "# PyTorch's suite for backends",
        "",
        f"torch {table.torch}, CPU, {_ranks(table)}. Made by",
        "`tests/torch/suite/run.py`, whose `cases.py` says what is run; the times are of a machine with other work.",
        "",
        "| | " + " | ".join(_COLUMNS) + " |",
        "|---|" + "---:|" * len(_COLUMNS),
    ]
    counts = {b: Counter(o.status for o in table.outcomes(b).values()) for b in _COLUMNS}
    lines += [
        f"| {s} | " + " | ".join(str(counts[b][s]) for b in _COLUMNS) + " |" for s in ("passed", "failed", "skipped")
    ]
    tests = sorted({t for b in _COLUMNS for t in table.outcomes(b)})
    rows = {t: [table.outcomes(b).get(t) for b in _COLUMNS] for t in tests}
    for title, wanted in (("Not the same", _differ), ("Failed on both", _fail), ("Passed on both", _pass)):
        chosen = {t: row for t, row in rows.items() if wanted(row)}
        lines += ["", f"## {title}", "", *_rows(chosen)] if chosen else []
    skips = Counter(o.reason for o in table.outcomes(_COLUMNS[0]).values() if o.status == "skipped")
    lines += ["", f"## Skipped on {_COLUMNS[0]}, by reason", "", "| tests | reason |", "|---:|---|"]
    lines += [f"| {n} | {_cell(reason)} |" for reason, n in sorted(skips.items(), key=lambda kv: (-kv[1], kv[0]))]
    return "\n".join(lines) + "\n"


def _ranks(table: Table) -> str:
    return " and ".join(f"{n} ranks on {backend}" for backend, n in sorted(table.ranks.items()))


def _differ(row: list[Outcome | None]) -> bool:
    return len({o and o.status for o in row}) > 1


def _fail(row: list[Outcome | None]) -> bool:
    return not _differ(row) and row[0] is not None and row[0].status == "failed"


def _pass(row: list[Outcome | None]) -> bool:
    return not _differ(row) and row[0] is not None and row[0].status == "passed"


def _rows(chosen: dict[str, list[Outcome | None]]) -> list[str]:
    head = ["| test | " + " | ".join(_COLUMNS) + " |", "|---|" + "---|" * len(_COLUMNS)]
    return [*head, *(f"| {t} | " + " | ".join(_told(o) for o in row) + " |" for t, row in chosen.items())]


def _told(outcome: Outcome | None) -> str:
    if outcome is None:
        return "not run"
    return f"{outcome.status}, {outcome.seconds} s" + (f": {_cell(outcome.reason)}" if outcome.reason else "")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
