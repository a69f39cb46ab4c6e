"""What the agent and its mount process tell each other: one JSON object a line, in both directions. Pure.

The first lines to the process are its `Task`; the end of its stdin means that the agent is gone or wants it to end,
also before the task is whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from hdp.contract.zipping import zip_strict
from hdp.runtime.channels.fastfile.table import Table
from hdp.runtime.channels.keys import Entry

#: A million entries in one line would be 200 MB twice.
_ROWS = 20_000


@dataclass(frozen=True)
class Task:
    """What a mount process serves."""

    channel: str
    base: str
    """``s3://bucket`` or a folder."""
    entries: Sequence[Entry]
    target: str
    """Where it is mounted."""
    budget_bytes: int
    order_file: str | None = None
    """Where the script may say in which order it will open files."""

    def lines(self) -> Iterator[bytes]:
        """For the process's stdin: a line of what it is, then the entries, some thousands a line, by columns."""
        head = {**vars(self), "entries": len(self.entries)}
        yield json.dumps(head).encode() + b"\n"
        for start in range(0, len(self.entries), _ROWS):
            rows = self.entries[start : start + _ROWS]
            columns = zip_strict(*((e.key, e.path, e.size_bytes, e.etag, e.mtime) for e in rows))
            yield json.dumps([list(column) for column in columns]).encode() + b"\n"

    @staticmethod
    def read(lines: BinaryIO) -> Task:
        """Inverse of `lines`. Raises EOFError where they end too soon: the agent is gone."""
        head = json.loads(_whole(lines.readline()))
        entries = Table()
        while len(entries) < head["entries"]:
            for row in zip_strict(*json.loads(_whole(lines.readline()))):
                entries.add(Entry(*row))
        return Task(**{**head, "entries": entries})


def _whole(line: bytes) -> bytes:
    if not line.endswith(b"\n"):
        raise EOFError("the task ends in the middle")
    return line


def event(kind: str, **more: object) -> str:
    """A line for the agent: ``ready``; ``trouble`` (text); ``log`` (text, level); ``numbers`` (values)."""
    return json.dumps({"event": kind, **more})


def read_event(line: str) -> Mapping[str, Any] | None:
    """A line from the process; None for one that isn't an event, such as a line of a traceback."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) and "event" in value else None
