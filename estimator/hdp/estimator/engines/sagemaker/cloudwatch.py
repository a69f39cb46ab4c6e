"""Reads a job's log: one stream a host, any number of hosts, merged by time, from a cursor on.

Each stream is read by its own token (GetLogEvents), so that no event is missed or shown twice however late it comes;
a query over all streams by time can't promise that. Streams that had nothing new rest a while, so that many hosts stay
within the service's 25 calls a second.

A page has one fetch of every stream that is due, and a look whether there is more behind it. An event is given out
when no stream can still have an earlier one: not after the last event of any stream that has more. The rest waits, here
and, as a count, in the cursor. So a log of any length is in order, however many pages it takes. Only what comes late,
while a job is followed, stands late.

The cursor is a JSON value: for each stream the fields of its `Place`.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, field, replace
from typing import Any

from hdp.estimator.engines.base import LogLine, LogPage
from hdp.estimator.engines.sagemaker.asking import Refused
from hdp.estimator.engines.sagemaker.console import LOG_GROUP
from hdp.estimator.engines.sagemaker.lines import host_of, lines_of

Ask = Callable[..., dict[str, Any]]
"""Calls an operation of CloudWatch Logs: its name in boto3's spelling, and arguments."""

Event = Mapping[str, Any]

_FETCHERS = 8
#: Of all streams together; the service allows 25. A stream takes two: its news, and whether there is more.
_CALLS_PER_SECOND = 20.0
_LOOK_AGAIN_SECONDS = 1.0
#: A restarted host has a new stream.
_LIST_AGAIN_SECONDS = 30.0
#: A page may be empty and yet have more behind it; but no stream may hold up the others for ever.
_EMPTY_PAGES = 50
#: Events of all streams that are in memory at a time, about; a page of the service has at most 10,000.
_EVENTS = 50_000
_TAIL_EVENTS = 1000


@dataclass(frozen=True)
class Place:
    """How far one stream was read."""

    token: str | None = None
    """Of the page to read next; None: from `from_ms` on, or from the begin. It dies after a day."""
    given: int = 0
    """Events of that page that were given out."""
    last_ms: int = 0
    """Time of the last event given out, in Unix milliseconds."""
    at_last: int = 0
    """How many were given out that have this very time."""
    from_ms: int | None = None


@dataclass(frozen=True)
class _Page:
    """Some events of one stream, from `place` on. None: there were none behind it."""

    place: Place
    events: Sequence[Event] = ()
    after: str | None = None
    """The token behind them."""
    more: bool = False
    """Whether more was there behind them when they were fetched."""

    @property
    def last_ms(self) -> int:
        return max(int(event["timestamp"]) for event in self.events)


@dataclass
class LogReader:
    """Reads the log of one job."""

    ask: Ask
    name: str
    hosts: int = 1
    """As many streams are waited for impatiently."""
    leave: Callable[[], None] = lambda: None
    """Called where the caller is interrupted, so that calls under way aren't tried again."""
    ended_at: float | None = None
    """Monotonic time since when the job is known to have ended: what was looked at before is looked at once more."""
    _streams: tuple[str, ...] = ()
    _listed_at: float = -_LIST_AGAIN_SECONDS
    _held: dict[str, _Page] = field(default_factory=dict)
    """Pages of which a part waits."""
    _ahead: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)
    """Answers that were fetched to see whether there is more, and the tokens that they are for."""
    _rests: dict[str, tuple[str | None, float]] = field(default_factory=dict)
    """Behind which token a stream had nothing, and when that was."""

    def page(self, cursor: Mapping[str, Any]) -> LogPage:
        """Lines since `cursor` that are in order. No lines: there are none for now."""
        places = {stream: Place(*value) for stream, value in cursor.get("streams", {}).items()}
        due = [(stream, places.get(stream, Place())) for stream in self.streams()]
        pages = self._fetch_all([(stream, place) for stream, place in due if not self._rested(stream, place)])
        lines, after = _in_order(pages)
        self._held |= {stream: page for stream, page in pages.items() if page.events}
        kept = {stream: list(astuple(place)) for stream, place in {**places, **after}.items()}
        return LogPage(tuple(lines), {"streams": kept})

    def tail(self, host: str, rank: int | None, count: int) -> list[str]:
        """The last lines of a rank, or of a host with rank None. Doesn't disturb the reading."""
        found: list[LogLine] = []
        for stream in (s for s in self.streams() if host_of(s) == host):
            answer = self._events(stream, startFromHead=False, limit=_TAIL_EVENTS)
            found += _lines(stream, answer.get("events", ()))
        return [line.text for line in found if rank in (None, line.rank)][-count:]

    def streams(self) -> tuple[str, ...]:
        """Names of the streams; asked again only now and then."""
        now = time.monotonic()
        pause = _LIST_AGAIN_SECONDS if len(self._streams) >= self.hosts else _LOOK_AGAIN_SECONDS
        late = self.ended_at is not None and self._listed_at < self.ended_at
        if late or now - self._listed_at >= pause:
            self._streams, self._listed_at = tuple(self._list_now()), now
        return self._streams

    def _list_now(self) -> Iterator[str]:
        wanted = {"logGroupName": LOG_GROUP, "logStreamNamePrefix": f"{self.name}/"}
        more: dict[str, Any] = {}
        while True:
            try:
                answer = self.ask("describe_log_streams", **wanted, **more)
            except Refused as exc:
                if exc.code == "ResourceNotFoundException":  # no job has ever written a log here
                    return
                raise
            yield from (str(stream["logStreamName"]) for stream in answer.get("logStreams", ()))
            token = answer.get("nextToken")
            if not token or token == more.get("nextToken"):
                return
            more = {"nextToken": token}

    def _rested(self, stream: str, place: Place) -> bool:
        """Whether the stream had nothing behind `place` a moment ago."""
        empty, at = self._rests.get(stream, (None, 0.0))
        if empty is None or empty != place.token or (self.ended_at is not None and at < self.ended_at):
            return False
        pause = _LOOK_AGAIN_SECONDS
        if self.ended_at is None:
            pause = max(pause, 2 * len(self._streams) / _CALLS_PER_SECOND)
        return time.monotonic() - at < pause

    def _fetch_all(self, due: Sequence[tuple[str, Place]]) -> dict[str, _Page]:
        if not due:
            return {}
        with ThreadPoolExecutor(min(_FETCHERS, len(due)), thread_name_prefix="hdp-logs") as pool:
            try:
                pages = list(pool.map(lambda one: self._fetch(*one), due))
            except BaseException:  # Ctrl-C: the pool waits for its threads, and these may be patient
                self.leave()
                raise
        return {stream: page for (stream, _), page in zip(due, pages, strict=True)}

    def _fetch(self, stream: str, place: Place) -> _Page:
        held = self._held.pop(stream, None)
        same = held is not None and (held.place.token, held.place.from_ms) == (place.token, place.from_ms)
        if held is not None and same and place.given < len(held.events):
            return replace(held, place=place)
        try:
            return self._fetch_now(stream, place)
        except Refused as exc:
            if exc.code != "InvalidParameterException" or place.token is None:
                raise
        # The token has expired. The time of the last event hasn't.
        return self._fetch_now(stream, Place(None, place.at_last, place.last_ms, place.at_last, place.last_ms))

    def _fetch_now(self, stream: str, place: Place) -> _Page:
        for _ in range(_EMPTY_PAGES):
            answer = self._answer(stream, place)
            events, after = answer.get("events", ()), str(answer["nextForwardToken"])
            if len(events) > place.given:
                return _Page(place, events, after, self._has_more(stream, after))
            if after == place.token:
                break
            place = Place(after, 0, place.last_ms, place.at_last)
        self._rests[stream] = (place.token, time.monotonic())
        return _Page(place)

    def _answer(self, stream: str, place: Place) -> dict[str, Any]:
        token, answer = self._ahead.pop(stream, (None, {}))
        if token is not None and token == place.token:
            return answer
        return self._events(stream, startFromHead=True, limit=self._limit(), **_where(place))

    def _has_more(self, stream: str, token: str) -> bool:
        """Whether there is more behind `token`. What is fetched for that isn't fetched again."""
        answer = self._events(stream, startFromHead=True, limit=self._limit(), nextToken=token)
        if not answer.get("events") and answer["nextForwardToken"] == token:
            self._rests[stream] = (token, time.monotonic())
            return False
        self._ahead[stream] = (token, answer)
        return True

    def _limit(self) -> int:
        return min(10_000, max(200, _EVENTS // max(len(self._streams), 1)))

    def _events(self, stream: str, **more: Any) -> dict[str, Any]:
        return self.ask("get_log_events", logGroupName=LOG_GROUP, logStreamName=stream, **more)


def _where(place: Place) -> dict[str, Any]:
    if place.token is not None:
        return {"nextToken": place.token}
    return {} if place.from_ms is None else {"startTime": place.from_ms}


def _in_order(pages: Mapping[str, _Page]) -> tuple[list[LogLine], dict[str, Place]]:
    """Lines that no stream can still have an earlier one than, by time, and the places behind them."""
    frontier = min((page.last_ms for page in pages.values() if page.more), default=math.inf)
    after: dict[str, Place] = {}
    ready: list[list[LogLine]] = []
    for stream, page in pages.items():
        count = page.place.given
        while count < len(page.events) and int(page.events[count]["timestamp"]) <= frontier:
            count += 1
        ready.append(sorted(_lines(stream, page.events[page.place.given : count]), key=lambda line: line.time))
        after[stream] = _advanced(page, count)
    return list(heapq.merge(*ready, key=lambda line: line.time)), after


def _advanced(page: _Page, count: int) -> Place:
    """The place behind the first `count` events of the page."""
    place = page.place
    if count == place.given:
        return place
    new = page.events[place.given : count]
    last_ms = int(new[-1]["timestamp"])
    at_last = sum(int(event["timestamp"]) == last_ms for event in new)
    at_last += place.at_last if place.last_ms == last_ms else 0
    if count == len(page.events) and page.after != place.token:
        return Place(page.after, 0, last_ms, at_last)
    return Place(place.token, count, last_ms, at_last, place.from_ms)


def _lines(stream: str, events: Sequence[Event]) -> list[LogLine]:
    host = host_of(stream)
    return [line for e in events for line in lines_of(str(e["message"]), host, int(e["timestamp"]) / 1e3)]
