"""What the agent and its mount process tell each other: one JSON object a line, in both directions. Pure.

The first line to the process is its `Task`; the end of its stdin means that the agent is gone or wants it to end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hdp.runtime.channels.keys import Entry


@dataclass(frozen=True)
class Task:
    """What a mount process serves."""

    channel: str
    base: str
    """``s3://bucket`` or a folder."""
    entries: tuple[Entry, ...]
    target: str
    """Where it is mounted."""
    budget_bytes: int
    order_file: str | None = None
    """Where the script may say in which order it will open files."""

    def to_line(self) -> bytes:
        """For the process's stdin. By columns, since that is shorter and there may be millions of rows."""
        rows = [(e.key, e.path, e.size_bytes, e.etag, e.mtime) for e in self.entries]
        columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[], [], [], [], []]
        value = {**vars(self), "entries": columns}
        return json.dumps(value).encode() + b"\n"

    @staticmethod
    def from_line(line: bytes) -> Task:
        """Inverse of `to_line`."""
        value = json.loads(line)
        return Task(**{**value, "entries": tuple(Entry(*row) for row in zip(*value["entries"], strict=True))})


def event(kind: str, **more: object) -> str:
    """A line for the agent: ``ready``; ``trouble`` (text); ``log`` (text); ``numbers`` (values)."""
    return json.dumps({"event": kind, **more})


def read_event(line: str) -> Mapping[str, Any] | None:
    """A line from the process; None for one that isn't an event, such as a line of a traceback."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) and "event" in value else None
