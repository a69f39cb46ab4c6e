"""How the log of many hosts becomes one, over a CloudWatch by script with the service's pages and tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from scripted_logs import ScriptedLogs

from hdp.estimator.engines.base import LogLine
from hdp.estimator.engines.sagemaker import cloudwatch
from hdp.estimator.engines.sagemaker.asking import Refused
from hdp.estimator.engines.sagemaker.cloudwatch import LogReader
from hdp.estimator.engines.sagemaker.lines import host_of, lines_of


def reader(logs: ScriptedLogs, **more: Any) -> LogReader:
    """A reader of the job "job", whose refusals are those that the engine makes of the service's."""

    def ask(operation: str, **arguments: Any) -> dict[str, Any]:
        try:
            return logs(operation, **arguments)
        except Exception as exc:
            raise Refused(str(exc), exc.args[0], exc.args[1]) from exc

    return LogReader(ask, "job", **more)


def drained(read: LogReader, cursor: Mapping[str, Any] | None = None) -> tuple[list[LogLine], Mapping[str, Any]]:
    """Every line there is for now, and the cursor behind them. Each cursor goes through JSON."""
    lines: list[LogLine] = []
    cursor = cursor or {}
    while page := read.page(cursor):
        lines += page.lines
        cursor = json.loads(json.dumps(page.cursor))
        if not page.lines:
            return lines, cursor
    raise AssertionError


def stream(host: int) -> str:
    return f"job/algo-{host}-1700000000"


def filled(hosts: int, events: int, **more: Any) -> ScriptedLogs:
    """Event i of host h is at i * 1000 + h ms, so that the hosts take turns. Text: its rank's."""
    logs = ScriptedLogs(**more)
    for host in range(1, hosts + 1):
        for i in range(events):
            logs.say(stream(host), i * 1000 + host, f"[algo-{host}:{host * 2}] event {i}")
    return logs


def test_120_streams_are_all_read_and_merged_by_time() -> None:
    """120 hosts, 7 events each in pages of 3, in turns. Expected: all 840 lines in the order of their times."""
    lines, _ = drained(reader(filled(120, 7, page_events=3), hosts=120))
    assert [(round(line.time * 1000), line.host, line.rank, line.text) for line in lines] == [
        (i * 1000 + host, f"algo-{host}", host * 2, f"event {i}") for i in range(7) for host in range(1, 121)
    ]


def test_a_host_with_a_long_log_holds_back_the_others() -> None:
    """Host 1 has 9 events in pages of 2 from 0 ms on, host 2 one at 6,500 ms. Expected: it stands before 7,000 ms."""
    logs = filled(1, 9, page_events=2)
    logs.say(stream(2), 6500, "late starter")
    lines, _ = drained(reader(logs, hosts=2))
    assert [line.text for line in lines][6:9] == ["event 6", "late starter", "event 7"]


def test_a_cursor_goes_on_in_another_process() -> None:
    """Read two pages, keep the cursor as JSON, go on with a reader that knows nothing. Expected: each line once."""
    logs = filled(3, 10, page_events=4)
    first = reader(logs, hosts=3)
    page = first.page({})
    page_2 = first.page(page.cursor)
    rest, _ = drained(reader(logs, hosts=3), json.loads(json.dumps(page_2.cursor)))
    lines = [*page.lines, *page_2.lines, *rest]
    assert [line.time for line in lines] == sorted(line.time for line in lines)
    assert len({(line.host, line.text) for line in lines}) == len(lines) == 30


def test_lines_that_come_later_are_read_from_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drain, say one line more on each host, drain again. Expected: only the new ones; an old stream isn't reread."""
    monkeypatch.setattr(cloudwatch, "_LOOK_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(cloudwatch, "_CALLS_PER_SECOND", 1e9)
    logs = filled(2, 3)
    read = reader(logs, hosts=2)
    _, cursor = drained(read)
    logs.say(stream(1), 9000, "more")
    logs.say(stream(2), 8000, "first")
    lines, _ = drained(read, cursor)
    assert [line.text for line in lines] == ["first", "more"]


def test_a_token_that_expired_after_a_day_loses_and_repeats_nothing() -> None:
    """Three events of the same time, of which a cursor is behind the last; tokens die; two more of that time come."""
    logs = ScriptedLogs()
    for i in range(3):
        logs.say(stream(1), 1000, f"event {i}")
    _, cursor = drained(reader(logs))
    logs.expire_tokens()
    for i in (3, 4):
        logs.say(stream(1), 1000, f"event {i}")
    lines, _ = drained(reader(logs), cursor)
    assert [line.text for line in lines] == ["event 3", "event 4"]


def test_empty_pages_before_the_first_event_are_no_end() -> None:
    """The service may answer with empty pages and new tokens. Expected: the events behind five of them."""
    lines, _ = drained(reader(filled(2, 2, empty_pages=5), hosts=2))
    assert len(lines) == 4


def test_streams_that_are_quiet_rest_so_that_many_hosts_stay_within_the_limit() -> None:
    """120 hosts without news. Expected: the second look, a moment later, asks none of them."""
    logs = filled(120, 1)
    read = reader(logs, hosts=120)
    _, cursor = drained(read)
    asked = len(logs.calls)
    assert not read.page(cursor).lines
    assert len(logs.calls) == asked


def test_after_the_end_every_stream_is_looked_at_once_more() -> None:
    """All streams were quiet a moment ago; then the job's end is seen. Expected: what came meanwhile is read."""
    import time

    logs = filled(3, 1)
    read = reader(logs, hosts=3)
    _, cursor = drained(read)
    logs.say(stream(2), 5000, "last words")
    read.ended_at = time.monotonic()
    lines, _ = drained(read, cursor)
    assert [line.text for line in lines] == ["last words"]


def test_streams_of_a_job_with_a_longer_name_are_not_ours() -> None:
    logs = ScriptedLogs()
    logs.say("job-2/algo-1-1700000000", 1, "another job's")
    logs.say(stream(1), 2, "ours")
    lines, _ = drained(reader(logs))
    assert [line.text for line in lines] == ["ours"]


def test_a_group_that_is_not_there_yet_is_an_empty_log() -> None:
    def missing(operation: str, **arguments: Any) -> dict[str, Any]:
        raise Refused("no group", "ResourceNotFoundException", "no group")

    assert LogReader(missing, "job").page({}).lines == ()


def test_the_tail_of_a_rank() -> None:
    """Ranks 2 and 3 speak in turns on a host. Expected: the last two lines of rank 3 alone."""
    logs = ScriptedLogs()
    for i in range(6):
        logs.say(stream(1), i, f"[algo-1:{2 + i % 2}] line {i}")
    assert reader(logs).tail("algo-1", 3, 2) == ["line 3", "line 5"]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("[algo-2:3] loss 1", ("algo-2", 3, "loss 1")),
        ("[algo-2] starting", ("algo-2", None, "starting")),
        ("1700000001.5 [algo-2:0] x", ("algo-2", 0, "x")),
        ("plain words", ("algo-2", None, "plain words")),
        ("[algo-9:1] quoted from elsewhere", ("algo-2", None, "[algo-9:1] quoted from elsewhere")),
        ("[1,mpirank:7,algo-1]<stdout>:epoch 1", ("algo-1", 7, "epoch 1")),
        ("[1,4]<stderr>: oops\n", ("algo-2", 4, "oops")),
    ],
)
def test_a_line_says_whose_it_is(message: str, expected: tuple[str, int | None, str]) -> None:
    """On algo-2's stream: our heads, none, another host's quoted one, and mpirun's tags."""
    (line,) = lines_of(message, "algo-2", 1.0)
    assert (line.host, line.rank, line.text) == expected


def test_a_streams_name_has_the_host() -> None:
    assert host_of("my-job-1/algo-12-1700000000123") == "algo-12"
