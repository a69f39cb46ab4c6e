"""A log event -> lines with host and rank. Pure.

Our runtime begins its lines with ``[algo-2:3]`` or ``[algo-2]``. In other people's jobs the host is the stream's, and
the rank is what Amazon's mpirun puts in front, ``[1,mpirank:3,algo-2]<stdout>:``, if that is there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from hdp.estimator.engines.base import LogLine

_OURS = re.compile(r"(?:(\d{1,12}(?:\.\d+)?) )?\[([A-Za-z0-9-]+)(?::(\d+))?\] ?")
_MPIS = re.compile(r"\[1,(?:mpirank:)?(\d+)(?:,([A-Za-z0-9-]+))?\]<std(?:out|err|diag)>: ?")
_STREAM_END = re.compile(r"-\d{9,}$")


def host_of(stream: str) -> str:
    """``algo-1`` for the stream ``job/algo-1-1700000000``."""
    return _STREAM_END.sub("", stream.rpartition("/")[2])


def lines_of(message: str, host: str, time: float) -> Iterator[LogLine]:
    """The lines of one event of `host` at Unix time `time`."""
    for text in message.rstrip("\r\n").split("\n"):
        yield _line(text.rstrip("\r"), host, time)


def _line(text: str, host: str, time: float) -> LogLine:
    ours = _OURS.match(text)
    if ours and ours[2] == host:
        when = float(ours[1]) if ours[1] else time
        return LogLine(when, host, int(ours[3]) if ours[3] else None, text[ours.end() :])
    mpis = _MPIS.match(text)
    if mpis:  # ranks of all hosts may speak through the first host's stream
        return LogLine(time, mpis[2] or host, int(mpis[1]), text[mpis.end() :])
    return LogLine(time, host, None, text)
