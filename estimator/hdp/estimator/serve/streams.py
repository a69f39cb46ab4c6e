"""A host's log as a log stream: its lines by number and by time.

Logs orders a stream's events by time. Lines of a log are nearly so, but not quite (a rank's line may be written after
a later one of another rank), and a client that goes on from a time must not miss any: so a line's time is never
before that of the line above it. `Stream` knows where each line begins and its time, 16 bytes a line, and learns of
new ones whenever it is asked.
"""

from __future__ import annotations

import re
import threading
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hdp.estimator.engines.local.home import JobDir
from hdp.estimator.engines.local.logfiles import in_order_of_hosts
from hdp.estimator.engines.local.state import JobState

_TIME = re.compile(rb"(\d{1,12}\.\d+) (?=\[)")
#: An event is cut here: 256 KiB less what an event counts beside its text.
MOST_EVENT_BYTES = 256 * 1024 - 26


@dataclass(frozen=True)
class Event:
    """One line."""

    index: int
    """Its number in the stream, from 0."""
    time_ms: int
    """Unix time."""
    message: str

    @property
    def size_bytes(self) -> int:
        """As Logs counts it."""
        return len(self.message.encode()) + 26


class Stream:
    """One host's log. Safe to be used from several threads."""

    def __init__(self, path: Path, name: str, created_ms: int) -> None:
        """created_ms: Unix time; what has no time of its own has this one."""
        self.name = name
        self.created_ms = created_ms
        self._path = path
        self._lock = threading.Lock()
        self._starts = array("Q")
        self._times = array("Q")
        self._read_to = 0

    def __len__(self) -> int:
        return len(self._times)

    def look(self, final: bool) -> None:
        """Learn of lines that have come since. final: a last line without its end is one, too."""
        with self._lock, self._path.open("rb") as log:
            log.seek(self._read_to)
            for line in log:
                if line.endswith(b"\n") or final:
                    self._add(line)

    def first_at(self, time_ms: int) -> int:
        """Number of the first event at `time_ms` or later; the number of all events where there is none."""
        return bisect_left(self._times, max(0, time_ms))

    def time_ms(self, index: int) -> int:
        """Of the event with this number."""
        return self._times[index]

    def events(self, start: int, stop: int) -> Iterator[Event]:
        """Those with these numbers, in order."""
        with self._path.open("rb") as log:
            for i in range(start, stop):
                log.seek(self._starts[i])
                line = log.readline(MOST_EVENT_BYTES)
                text = _without_time(line).rstrip(b"\r\n").decode("utf-8", "replace")
                yield Event(i, self._times[i], text)

    def _add(self, line: bytes) -> None:
        """Empty lines are no events."""
        head = _TIME.match(line)
        before = self._times[-1] if self._times else self.created_ms
        if line.strip():
            self._starts.append(self._read_to)
            self._times.append(max(before, int(float(head[1]) * 1000) if head else 0))
        self._read_to += len(line)


class Streams:
    """The streams that were asked for lately, with what is known of them."""

    def __init__(self, most: int = 4096) -> None:
        """most: streams that are remembered; each takes 16 bytes a line."""
        self._most = most
        self._known: OrderedDict[str, Stream] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, job: JobDir, state: JobState) -> list[Stream]:
        """Those of the job's hosts that have said something, as they are now, in the hosts' order."""
        created_ms = int(state.created * 1000)
        paths = in_order_of_hosts(job)
        found = [self._stream(path, f"{job.name}/{path.stem}-{created_ms}", created_ms) for path in paths]
        for stream in found:
            stream.look(final=state.stage.terminal)
        return [stream for stream in found if len(stream)]

    def _stream(self, path: Path, name: str, created_ms: int) -> Stream:
        with self._lock:
            stream = self._known.pop(name, None) or Stream(path, name, created_ms)
            self._known[name] = stream
            if len(self._known) > self._most:
                self._known.popitem(last=False)
            return stream


def _without_time(line: bytes) -> bytes:
    head = _TIME.match(line)
    return line[head.end() :] if head else line
