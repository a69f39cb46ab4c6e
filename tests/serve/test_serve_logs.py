"""Unmodified boto3 against the Logs half of `hdp serve`: streams, pages, tokens, filters."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest
from botocore.exceptions import ClientError
from serve_support import GROUP, Served, written

from hdp.estimator.engines.local import store
from hdp.estimator.engines.local.home import JobDir

HOSTS, LINES = 120, 5


def lines(host: int, count: int) -> str:
    """`count` lines of a host, all from before the job, so that they have the time of its start."""
    return "".join(f"1.0 [algo-{host}:{host - 1}] line {i} of algo-{host}\n" for i in range(count))


@pytest.fixture(scope="module")
def many(served: Served) -> JobDir:
    """A job with 120 hosts, each with five lines."""
    return written(served.home, "many", {f"algo-{i}": lines(i, LINES) for i in range(1, HOSTS + 1)})


@pytest.fixture(scope="module")
def long(served: Served) -> JobDir:
    """A job with a host that has said 25,000 lines, an empty one, and one that hasn't said anything."""
    return written(served.home, "long", {"algo-1": lines(1, 25_000), "algo-2": ""})


def names_of(logs: Any, **asked: Any) -> Iterator[str]:
    pages = logs.get_paginator("describe_log_streams").paginate(logGroupName=GROUP, **asked)
    return (stream["logStreamName"] for page in pages for stream in page["logStreams"])


def stream_of(logs: Any, name: str, host: str) -> str:
    return next(names_of(logs, logStreamNamePrefix=f"{name}/{host}-"))


def refused(call: Any, **arguments: Any) -> tuple[str, str]:
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    return caught.value.response["Error"]["Code"], caught.value.response["Error"]["Message"]


def test_streams_come_fifty_a_page(logs: Any, many: JobDir) -> None:
    token: dict[str, str] = {}
    pages = []
    while token is not None:
        page = logs.describe_log_streams(logGroupName=GROUP, logStreamNamePrefix="many/", **token)
        pages.append([stream["logStreamName"] for stream in page["logStreams"]])
        token = {"nextToken": page["nextToken"]} if "nextToken" in page else None
    assert [len(page) for page in pages] == [50, 50, 20]
    names = list(chain(*pages))
    assert names == sorted(names) and len(set(names)) == HOSTS


def test_a_stream_is_named_as_on_aws(logs: Any, many: JobDir) -> None:
    """``<job>/algo-7-<Unix milliseconds of the job's start>``, with the times of what is in it."""
    created = int(store.read(many).created * 1000)
    page = logs.describe_log_streams(logGroupName=GROUP, logStreamNamePrefix="many/algo-7-")["logStreams"]
    assert page == [
        {
            "logStreamName": f"many/algo-7-{created}",
            "creationTime": created,
            "firstEventTimestamp": created,
            "lastEventTimestamp": created,
            "lastIngestionTime": created,
            "arn": f"arn:aws:logs:eu-west-1:000000000000:log-group:{GROUP}:log-stream:many/algo-7-{created}",
            "storedBytes": 0,
        }
    ]


def test_a_host_that_has_said_nothing_has_no_stream(logs: Any, long: JobDir) -> None:
    assert [name.rpartition("-")[0] for name in names_of(logs, logStreamNamePrefix="long/")] == ["long/algo-1"]


def test_streams_by_their_last_event(logs: Any, served: Served) -> None:
    later = time.time() + 3600
    written(served.home, "later", {"algo-1": f"{later:.6f} [algo-1] tomorrow\n"})
    newest = next(names_of(logs, orderBy="LastEventTime", descending=True))
    assert newest.startswith("later/algo-1-")
    assert refused(
        logs.describe_log_streams, logGroupName=GROUP, orderBy="LastEventTime", logStreamNamePrefix="later/"
    ) == ("InvalidParameterException", "Cannot order by LastEventTime with a logStreamNamePrefix.")


def test_forward_to_the_end_and_on(logs: Any, long: JobDir) -> None:
    """10,000 events a page; at the end the token stays, and goes on when there is more."""
    asked = {"logGroupName": GROUP, "logStreamName": stream_of(logs, "long", "algo-1"), "startFromHead": True}
    counts, seen, token = [], [], {}
    while not counts or counts[-1]:
        page = logs.get_log_events(**asked, **token)
        counts.append(len(page["events"]))
        seen += [event["message"] for event in page["events"]]
        token = {"nextToken": page["nextForwardToken"]}
    assert counts == [10_000, 10_000, 5_000, 0]
    assert seen == [f"[algo-1:0] line {i} of algo-1" for i in range(25_000)]
    assert logs.get_log_events(**asked, **token)["nextForwardToken"] == token["nextToken"]
    with long.log("algo-1").open("a") as log:
        log.write("1.0 [algo-1:0] one more\n1.0 [algo-1:0] not who")
    page = logs.get_log_events(**asked, **token)
    assert [event["message"] for event in page["events"]] == ["[algo-1:0] one more"]


def test_the_last_ones_first_then_backward(logs: Any, many: JobDir) -> None:
    asked = {"logGroupName": GROUP, "logStreamName": stream_of(logs, "many", "algo-3"), "limit": 2}
    last = logs.get_log_events(**asked)
    before = logs.get_log_events(**asked, nextToken=last["nextBackwardToken"])
    first = logs.get_log_events(**asked, nextToken=before["nextBackwardToken"])
    end = logs.get_log_events(**asked, nextToken=first["nextBackwardToken"])
    numbers = [[int(event["message"].split()[2]) for event in page["events"]] for page in (last, before, first, end)]
    assert numbers == [[3, 4], [1, 2], [0], []]
    assert end["nextBackwardToken"] == first["nextBackwardToken"]


def test_times_never_go_back_and_limit_what_is_shown(logs: Any, served: Served) -> None:
    """A line that was written late takes the time of the line above it; startTime is within, endTime isn't."""
    base = int(time.time()) + 100
    text = f"{base}.0 [algo-1] a\n{base - 5}.0 [algo-1:0] late\n\nwithout a head\n{base + 1}.5 [algo-1] b\n"
    written(served.home, "times", {"algo-1": text})
    asked = {"logGroupName": GROUP, "logStreamName": stream_of(logs, "times", "algo-1"), "startFromHead": True}
    events = logs.get_log_events(**asked)["events"]
    assert [(event["timestamp"] - base * 1000, event["message"]) for event in events] == [
        (0, "[algo-1] a"),
        (0, "[algo-1:0] late"),
        (0, "without a head"),
        (1500, "[algo-1] b"),
    ]
    later = logs.get_log_events(**asked, startTime=base * 1000 + 1)["events"]
    assert [event["message"] for event in later] == ["[algo-1] b"]
    assert len(logs.get_log_events(**asked, endTime=base * 1000 + 1500)["events"]) == 3


def test_an_answer_has_a_mebibyte_of_events_at_most(logs: Any, served: Served) -> None:
    text = "".join(f"1.0 [algo-1] {i} {'x' * 60_000}\n" for i in range(40))
    written(served.home, "wide", {"algo-1": text})
    asked = {"logGroupName": GROUP, "logStreamName": stream_of(logs, "wide", "algo-1")}
    first = logs.get_log_events(**asked, startFromHead=True)
    last = logs.get_log_events(**asked)
    assert [len(first["events"]), len(last["events"])] == [17, 17]
    assert first["events"][0]["message"].split()[1] == "0" and last["events"][-1]["message"].split()[1] == "39"
    assert len(logs.get_log_events(**asked, nextToken=first["nextForwardToken"])["events"]) == 17


def test_all_hosts_are_merged_by_time(logs: Any, served: Served) -> None:
    base = int(time.time()) + 1000
    texts = {
        f"algo-{host}": "".join(f"{base + i}.{host:03} [algo-{host}] line {i}\n" for i in range(4))
        for host in (1, 2, 3)
    }
    written(served.home, "merged", texts)
    pages = logs.get_paginator("filter_log_events").paginate(
        logGroupName=GROUP, logStreamNamePrefix="merged/", PaginationConfig={"PageSize": 5}
    )
    found = [[event["message"] for event in page["events"]] for page in pages]
    assert [len(page) for page in found] == [5, 5, 2]
    assert list(chain(*found)) == [f"[algo-{host}] line {i}" for i in range(4) for host in (1, 2, 3)]


def test_terms_are_filtered(logs: Any, many: JobDir) -> None:
    asked = {"logGroupName": GROUP, "logStreamNamePrefix": "many/"}
    events = logs.filter_log_events(**asked, filterPattern='"line 4" -algo-12 ?algo-119 ?algo-120 ?algo-7')["events"]
    hosts = sorted(event["message"].split()[-1] for event in events)
    assert hosts == ["algo-119", *(f"algo-7{i}" for i in ("", *range(10)))]
    assert len({event["eventId"] for event in events}) == len(events)


def test_streams_by_name_are_filtered(logs: Any, many: JobDir) -> None:
    names = [stream_of(logs, "many", host) for host in ("algo-2", "algo-9")]
    events = logs.filter_log_events(logGroupName=GROUP, logStreamNames=names)["events"]
    assert {event["logStreamName"] for event in events} == set(names) and len(events) == 2 * LINES


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"filterPattern": '{ $.loss = "1" }'}, "here only terms are matched"),
        ({"filterPattern": '"open'}, "can't be read from '\"open' on"),
        ({"nextToken": "x"}, "the token 'x' isn't one of ours"),
        ({"startFromHead": False}, "startFromHead=false isn't served"),
        ({"logStreamNames": ["a"], "logStreamNamePrefix": "a"}, "can't both be given"),
        ({"limit": 10_001}, "limit is 10001; expected 10000 or less"),
    ],
)
def test_what_filtering_refuses(logs: Any, asked: dict[str, Any], expected: str) -> None:
    code, message = refused(logs.filter_log_events, logGroupName=GROUP, **asked)
    assert code == "InvalidParameterException" and expected in message


def test_unknown_groups_and_streams(logs: Any, many: JobDir) -> None:
    assert refused(logs.describe_log_streams, logGroupName="/aws/other") == (
        "ResourceNotFoundException",
        "The specified log group does not exist.",
    )
    assert refused(logs.get_log_events, logGroupName=GROUP, logStreamName="many/algo-1-5") == (
        "ResourceNotFoundException",
        "The specified log stream does not exist.",
    )
    assert (
        refused(
            logs.get_log_events, logGroupName=GROUP, logStreamName=stream_of(logs, "many", "algo-1"), nextToken="f"
        )[1]
        == "The specified nextToken is invalid."
    )


def test_unknown_jobs_have_no_streams(logs: Any) -> None:
    assert list(names_of(logs, logStreamNamePrefix="nobody/")) == []
