"""Logs' operations: the streams of all jobs' hosts, and what is in them.

There is one group, as SageMaker names it, with a stream for each host of each job, ``<job>/algo-1-<Unix
milliseconds>``. An event is a line of the host's log.
"""

from __future__ import annotations

import heapq
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hdp.contract.errors import EngineError, JobNotFound
from hdp.estimator.serve.calls import ACCOUNT, Call, from_token, to_token
from hdp.estimator.serve.errors import invalid_parameter, not_found
from hdp.estimator.serve.patterns import matcher
from hdp.estimator.serve.streams import Event, Stream

GROUP = "/aws/sagemaker/TrainingJobs"
MOST_STREAMS, MOST_EVENTS, MOST_BYTES = 50, 10_000, 1024 * 1024
_TOKEN = re.compile(r"([fb])/(\d{1,56})(?:/s)?")


def describe_streams(call: Call) -> dict[str, Any]:
    """DescribeLogStreams, 50 a page at most."""
    _require_group(call)
    asked = call.arguments
    prefix, by_time = asked.get("logStreamNamePrefix", ""), asked.get("orderBy") == "LastEventTime"
    if prefix and by_time:
        raise invalid_parameter("Cannot order by LastEventTime with a logStreamNamePrefix.")
    descending = bool(asked.get("descending"))

    def place(stream: Stream) -> list[Any]:
        return [stream.time_ms(-1) if by_time else 0, stream.name]

    found = sorted(_streams(call, prefix), key=place, reverse=descending)
    if "nextToken" in asked:
        last = _place(from_token(asked["nextToken"], invalid_parameter))
        found = [s for s in found if (place(s) < last if descending else place(s) > last)]
    size = asked.get("limit", MOST_STREAMS)
    more = {"nextToken": to_token(place(found[size - 1]))} if len(found) > size else {}
    return {"logStreams": [_row(call, stream) for stream in found[:size]], **more}


def get_events(call: Call) -> dict[str, Any]:
    """GetLogEvents: one stream, forward or backward."""
    _require_group(call)
    asked = call.arguments
    name = asked["logStreamName"]
    stream = next((s for s in _streams(call, name) if s.name == name), None)
    if stream is None:
        raise not_found("The specified log stream does not exist.")
    start, stop, backward = _span(stream, asked)
    events = _fitting(stream.events(start, stop), stop - start, backward)
    start, stop = (stop - len(events), stop) if backward else (start, start + len(events))
    return {
        "events": [{**_event(event), "ingestionTime": event.time_ms} for event in events],
        "nextForwardToken": f"f/{stop:056}/s",
        "nextBackwardToken": f"b/{start:056}/s",
    }


def filter_events(call: Call) -> dict[str, Any]:
    """FilterLogEvents: all streams that are asked for, merged by time."""
    _require_group(call)
    asked = call.arguments
    if "logStreamNames" in asked and "logStreamNamePrefix" in asked:
        raise invalid_parameter("logStreamNames and logStreamNamePrefix can't both be given")
    if asked.get("startFromHead") is False:
        raise invalid_parameter("startFromHead=false isn't served; events come from the first one on")
    matches = matcher(asked.get("filterPattern", ""))
    last = _last_place(from_token(asked["nextToken"], invalid_parameter)) if "nextToken" in asked else None
    rows: list[dict[str, Any]] = []
    size = 0
    for place, stream in _merged(_asked_streams(call), asked, last):
        if len(rows) == asked.get("limit", MOST_EVENTS) or size > MOST_BYTES:
            return {"events": rows, "searchedLogStreams": [], "nextToken": to_token(last)}
        last = place
        event = next(stream.events(place[2], place[2] + 1))
        if matches(event.message):
            rows.append(_found(stream, event))
            size += event.size_bytes
    return {"events": rows, "searchedLogStreams": []}


def _require_group(call: Call) -> None:
    group = call.arguments.get("logGroupName") or call.arguments.get("logGroupIdentifier")
    if group is None:
        raise invalid_parameter("logGroupName is missing")
    if str(group).rpartition(":log-group:")[2] != GROUP:
        raise not_found("The specified log group does not exist.")


def _streams(call: Call, prefix: str) -> list[Stream]:
    """Streams whose names begin so."""
    job_name, slash, _ = prefix.partition("/")
    found: list[Stream] = []
    for name in call.serving.store.names():
        if name == job_name if slash else name.startswith(job_name):
            found += _streams_of(call, name)
    return [stream for stream in found if stream.name.startswith(prefix)]


def _streams_of(call: Call, name: str) -> Sequence[Stream]:
    try:
        return call.serving.streams.of(call.serving.store.home.job(name), call.serving.store.look(name))
    except (JobNotFound, EngineError, FileNotFoundError):  # removed meanwhile, or damaged
        return ()


def _asked_streams(call: Call) -> list[Stream]:
    names = call.arguments.get("logStreamNames")
    if names is None:
        return _streams(call, call.arguments.get("logStreamNamePrefix", ""))
    found = {stream.name: stream for name in names for stream in _streams(call, name)}
    missing = [name for name in names if name not in found]
    if missing:
        raise not_found(f"The specified log stream does not exist: {missing[0]}")
    return [found[name] for name in dict.fromkeys(names)]


def _merged(
    streams: Iterable[Stream], asked: Mapping[str, Any], last: tuple[int, str, int] | None
) -> Iterator[tuple[tuple[int, str, int], Stream]]:
    """Time, stream and number of every event in the asked time, after the place `last`, in this order."""

    def places(stream: Stream) -> Iterator[tuple[tuple[int, str, int], Stream]]:
        start, stop = _limits(stream, asked)
        for i in range(start, stop):
            place = (stream.time_ms(i), stream.name, i)
            if last is None or place > last:
                yield place, stream

    return heapq.merge(*map(places, streams), key=lambda found: found[0])


def _limits(stream: Stream, asked: Mapping[str, Any]) -> tuple[int, int]:
    """Numbers of the events from startTime to before endTime."""
    start = stream.first_at(asked.get("startTime", 0))
    return start, max(start, stream.first_at(asked["endTime"]) if "endTime" in asked else len(stream))


def _span(stream: Stream, asked: Mapping[str, Any]) -> tuple[int, int, bool]:
    """Numbers of the events that are asked for, and whether they are the last ones before a place."""
    low, high = _limits(stream, asked)
    limit = asked.get("limit", MOST_EVENTS)
    if "nextToken" not in asked:
        return (
            (low, min(low + limit, high), False) if asked.get("startFromHead") else (max(low, high - limit), high, True)
        )
    token = _TOKEN.fullmatch(asked["nextToken"])
    if token is None:
        raise invalid_parameter("The specified nextToken is invalid.")
    at = int(token[2])
    if token[1] == "b":
        high = min(at, high)
        return min(high, max(low, high - limit)), high, True
    return max(at, low), max(at, low, min(max(at, low) + limit, high)), False


def _fitting(events: Iterable[Event], count: int, backward: bool) -> list[Event]:
    """The events that fit into one answer: the first, or the last ones; one at least."""
    found = list(events)
    kept, size = 0, 0
    for event in reversed(found) if backward else found:
        size += event.size_bytes
        if kept and size > MOST_BYTES:
            break
        kept += 1
    return found[count - kept :] if backward else found[:kept]


def _event(event: Event) -> dict[str, Any]:
    return {"timestamp": event.time_ms, "message": event.message}


def _found(stream: Stream, event: Event) -> dict[str, Any]:
    number = f"{event.time_ms:020}{zlib.crc32(stream.name.encode()):016}{event.index:020}"
    return {**_event(event), "logStreamName": stream.name, "ingestionTime": event.time_ms, "eventId": number}


def _row(call: Call, stream: Stream) -> dict[str, Any]:
    return {
        "logStreamName": stream.name,
        "creationTime": stream.created_ms,
        "firstEventTimestamp": stream.time_ms(0),
        "lastEventTimestamp": stream.time_ms(-1),
        "lastIngestionTime": stream.time_ms(-1),
        "arn": f"arn:aws:logs:{call.region}:{ACCOUNT}:log-group:{GROUP}:log-stream:{stream.name}",
        "storedBytes": 0,
    }


def _place(token: object) -> list[Any]:
    match token:
        case [int(), str()]:
            return list(token)
    raise invalid_parameter("The specified nextToken is invalid.")


def _last_place(token: object) -> tuple[int, str, int]:
    match token:
        case [int(time_ms), str(name), int(index)]:
            return time_ms, name, index
    raise invalid_parameter("The specified nextToken is invalid.")
