"""What a job's ranks traced (HDP_TIMELINE=1), as values: see `hdp.collectives.timeline` for who writes it.

A file has an event a line; that of a killed process may end within one, and counts as far as it goes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

MARGINS = ("", "[", "]")


@dataclass(frozen=True)
class Operation:
    """One collective operation, as one rank saw it."""

    rank: int
    name: str
    """Kind, tag and number: the same on every rank of `group`."""
    group: str
    kind: str
    size_bytes: int
    begin: float
    """Unix seconds, by the host's clock; so `end`."""
    end: float
    waited: float
    """Seconds in which the program did nothing but wait for it."""
    status: str


class Cut(ValueError):
    """A file ends within an event."""


def events_of(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The events of a file. Raises Cut where it ends within one."""
    for line in lines:
        text = line.decode(errors="replace").strip().rstrip(",")
        if text in MARGINS:
            continue
        try:
            event = json.loads(text)
        except ValueError as exc:
            raise Cut(text[:80]) from exc
        if not isinstance(event, dict) or "ph" not in event:
            raise Cut(text[:80])
        yield event


def operations_of(lines: Iterable[bytes]) -> Iterator[Operation]:
    """The operations in the file of a rank; none in that of a server."""
    try:
        for event in events_of(lines):
            arguments = event.get("args", {})
            if event["ph"] == "X" and "rank" in arguments:
                yield _operation(event, arguments)
    except (Cut, KeyError, TypeError):
        return


def _operation(event: dict[str, Any], arguments: dict[str, Any]) -> Operation:
    begin = event["ts"] / 1e6
    return Operation(
        rank=arguments["rank"],
        name=event["name"],
        group=arguments.get("group", ""),
        kind=event.get("cat", ""),
        size_bytes=arguments.get("bytes", 0),
        begin=begin,
        end=begin + event.get("dur", 0) / 1e6,
        waited=arguments.get("waited_us", 0) / 1e6,
        status=arguments.get("status", ""),
    )
