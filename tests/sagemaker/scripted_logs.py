"""CloudWatch Logs by script: streams that the test fills, with the service's pages and tokens."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from aws_face import Answer

#: As many streams the service lists at a time.
STREAMS_PER_PAGE = 50


@dataclass
class ScriptedLogs:
    """One log group. A token is ``f/<index of the next event>``, and dies when the test says so."""

    page_events: int = 10_000
    empty_pages: int = 0
    """How many empty pages with a new token come before the first events of each stream."""
    streams: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    generation: int = 0
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def say(self, stream: str, time_ms: int, text: str) -> None:
        """Append an event."""
        with self._lock:
            self.streams.setdefault(stream, []).append((time_ms, text))

    def expire_tokens(self) -> None:
        """Refuse every token that was given out."""
        self.generation += 1

    def __call__(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """As the reader asks: by boto3's name of the operation."""
        with self._lock:
            self.calls.append((operation, arguments))
            return self.describe(arguments) if operation == "describe_log_streams" else self.events(arguments)

    def describe(self, asked: dict[str, Any]) -> dict[str, Any]:
        """DescribeLogStreams."""
        names = sorted(name for name in self.streams if name.startswith(asked["logStreamNamePrefix"]))
        start = int(asked.get("nextToken", "0"))
        page = names[start : start + STREAMS_PER_PAGE]
        more = {"nextToken": str(start + STREAMS_PER_PAGE)} if start + STREAMS_PER_PAGE < len(names) else {}
        return {"logStreams": [{"logStreamName": name} for name in page], **more}

    def events(self, asked: dict[str, Any]) -> dict[str, Any]:
        """GetLogEvents, forwards; backwards the last page only."""
        all_events = self.streams[asked["logStreamName"]]
        limit = min(asked.get("limit", self.page_events), self.page_events)
        if not asked.get("startFromHead"):
            return {"events": [_event(e) for e in all_events[-limit:]], "nextForwardToken": "f/last"}
        empty, start = self._start(asked, all_events)
        if empty < self.empty_pages:
            return {"events": [], "nextForwardToken": self._token(empty + 1, start)}
        page = all_events[start : start + limit]
        return {"events": [_event(e) for e in page], "nextForwardToken": self._token(empty, start + len(page))}

    def _start(self, asked: dict[str, Any], all_events: list[tuple[int, str]]) -> tuple[int, int]:
        token = asked.get("nextToken")
        if token is not None:
            generation, empty, index = map(int, token.removeprefix("f/").split("."))
            if generation != self.generation:
                raise Answer("InvalidParameterException", "The specified nextToken is invalid.")
            return empty, index
        since = asked.get("startTime", 0)
        return 0, next((i for i, (time_ms, _) in enumerate(all_events) if time_ms >= since), len(all_events))

    def _token(self, empty: int, index: int) -> str:
        return f"f/{self.generation}.{empty}.{index}"


def _event(event: tuple[int, str]) -> dict[str, Any]:
    return {"timestamp": event[0], "message": event[1], "ingestionTime": event[0]}
