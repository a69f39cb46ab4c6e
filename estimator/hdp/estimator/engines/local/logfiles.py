"""Reads the hosts' logs from a cursor on.

Every line has a head, ``<unix seconds> [<host>:<rank>] text`` or ``<unix seconds> [<host>] text``. A line without one
(the last words of a process that crashed) takes the time of the line before it and belongs to no rank.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Mapping
from pathlib import Path

from hdp.contract.errors import JobNotFound
from hdp.contract.redact import redact_text
from hdp.estimator.engines.base import LogLine, LogPage
from hdp.estimator.engines.local.home import JobDir

_HEAD = re.compile(rb"(\d{1,12}(?:\.\d+)?) \[([A-Za-z0-9-]+)(?::(\d+))?\] ?")
#: One page reads at most this much of each host's log, so that memory stays bounded.
PAGE_BYTES = 4 * 1024 * 1024


def read_page(job: JobDir, cursor: Mapping[str, int], final: bool) -> LogPage:
    """Lines of all hosts since `cursor`, merged by time.

    final: the job has ended, so that a last line without a newline is complete, too.
    """
    merged: list[list[LogLine]] = []
    after = dict(cursor)
    for path in in_order_of_hosts(job):
        host = path.stem
        start, last_us = after.get(host, 0), after.get(f"{host}.time_us", 0)
        data = _complete(_read(path, start), final)
        lines = _parse(host, data, last_us / 1e6)
        merged.append(lines)
        after[host] = start + len(data)
        if lines:
            after[f"{host}.time_us"] = int(lines[-1].time * 1e6)
    return LogPage(tuple(heapq.merge(*map(_in_order, merged), key=lambda line: line.time)), after)


def in_order_of_hosts(job: JobDir) -> list[Path]:
    """The hosts' logs."""
    return sorted(job.logs.glob("*.log"), key=_host_order)


def tail(path: Path, max_chars: int = 600) -> str:
    """The last complete lines of a log, without their heads and secrets, in at most `max_chars` characters."""
    try:
        with path.open("rb") as log:
            size = log.seek(0, 2)
            log.seek(max(0, size - 4 * max_chars))
            lines = log.read().splitlines()
    except OSError:
        return ""
    text = "\n".join(_HEAD.sub(b"", line, count=1).decode("utf-8", "replace") for line in lines).strip()
    text = redact_text(text)
    return text if len(text) <= max_chars else "..." + text[-(max_chars - 3) :]


def _host_order(path: Path) -> tuple[int, str]:
    number = path.stem.rpartition("-")[2]
    return (int(number) if number.isdigit() else 0, path.stem)


def _read(path: Path, start: int) -> bytes:
    try:
        with path.open("rb") as log:
            log.seek(start)
            return log.read(PAGE_BYTES)
    except FileNotFoundError as exc:
        raise JobNotFound(f"the log {path} was removed while it was read") from exc


def _complete(data: bytes, final: bool) -> bytes:
    """`data` without a last line that is still being written."""
    if data.endswith(b"\n") or (len(data) == PAGE_BYTES and b"\n" not in data):
        return data
    whole = data[: data.rfind(b"\n") + 1]
    return data if final and len(data) < PAGE_BYTES else whole


def _parse(host: str, data: bytes, last_time: float) -> list[LogLine]:
    lines = []
    for raw in data.split(b"\n")[: None if data and not data.endswith(b"\n") else -1]:
        head = _HEAD.match(raw)
        if head:
            last_time = float(head[1])
        rank = int(head[3]) if head and head[3] is not None else None
        text = raw[head.end() :] if head else raw
        lines.append(LogLine(last_time, host, rank, text.decode("utf-8", "replace").rstrip("\r")))
    return lines


def _in_order(lines: list[LogLine]) -> list[LogLine]:
    """By time; lines of the same time stay as they were written."""
    return sorted(lines, key=lambda line: line.time)
