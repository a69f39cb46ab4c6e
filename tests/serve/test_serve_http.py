"""`hdp serve` as a process: what it says, whom it answers, and what outlives it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from serve_support import ENDED, Served, end_all, environment, job, serving, wait_for, written

from hdp.estimator.engines.local.engine import LocalEngine
from hdp.estimator.engines.local.home import Home

TARGET = "SageMaker.ListTrainingJobs"


def call(served: Served, body: bytes = b"{}", target: str = TARGET, **headers: str) -> tuple[int, dict[str, Any]]:
    """Status and content of the answer to one request by hand."""
    connection = http.client.HTTPConnection("127.0.0.1", int(served.endpoint.rpartition(":")[2]), timeout=30)
    try:
        connection.request("POST", "/", body, {"X-Amz-Target": target, **headers})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_a_call_needs_no_signature(served: Served) -> None:
    assert call(served) == (200, {"TrainingJobSummaries": []})


def test_the_region_is_that_of_the_signature(served: Served) -> None:
    """Without one it is the server's own."""
    written(served.home, "here", {"algo-1": ""})
    signed = "AWS4-HMAC-SHA256 Credential=KEY/20260101/ap-south-1/sagemaker/aws4_request, SignedHeaders=host"
    for headers, region in (({"Authorization": signed}, "ap-south-1"), ({}, "eu-west-1")):
        _, answer = call(served, b'{"TrainingJobName": "here"}', "SageMaker.DescribeTrainingJob", **headers)
        assert answer["TrainingJobArn"] == f"arn:aws:sagemaker:{region}:000000000000:training-job/here"


@pytest.mark.parametrize("target", ["SageMaker.CreateModel", "Logs_20140328.PutLogEvents", "S3.ListBuckets", ""])
def test_other_operations_are_named_as_unknown(served: Served, target: str) -> None:
    status, answer = call(served, target=target)
    assert (status, answer["__type"]) == (400, "UnknownOperationException")
    assert answer["message"].startswith(f"{target or 'no X-Amz-Target'}: hdp serve has CreateTrainingJob, ")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"{", "the body isn't JSON"),
        (b"[]", "the body is a list, expected an object"),
        (b"\xff", "isn't JSON"),
        (b"[" * 9999, "isn't JSON"),
    ],
)
def test_a_body_must_be_an_object(served: Served, body: bytes, expected: str) -> None:
    status, answer = call(served, body)
    assert (status, answer["__type"]) == (400, "SerializationException") and expected in answer["message"]


def test_a_huge_body_is_not_read(served: Served) -> None:
    status, answer = call(served, **{"Content-Length": str(5 * 1024 * 1024)})
    assert (status, answer["__type"]) == (413, "RequestEntityTooLargeException")


def test_arguments_are_checked_by_the_service_model(served: Served) -> None:
    status, answer = call(served, b'{"MaxResults": 0, "SortBy": "Nmae", "Extra": 1}')
    assert (status, answer["__type"]) == (400, "ValidationException")
    assert answer["message"].startswith("3 validation errors detected: ")
    for fault in (
        "MaxResults is 0; expected 1 or more",
        "did you mean 'Name'?",
        "Extra is no part of",
    ):
        assert fault in answer["message"]


@pytest.mark.parametrize("token", ["x", "bnVsbA==", "WzEsMl0="])
def test_a_foreign_token_is_refused(served: Served, token: str) -> None:
    status, answer = call(served, json.dumps({"NextToken": token}).encode())
    assert (status, answer["__type"]) == (400, "ValidationException") and "oken" in answer["message"]


def test_a_web_page_of_another_host_is_refused(served: Served) -> None:
    """Its name may lead to loopback, but the browser says which name it was."""
    status, answer = call(served, Host="attacker.example")
    assert (status, answer["__type"]) == (403, "AccessDeniedException")


def test_it_listens_on_loopback_alone(served: Served) -> None:
    port = int(served.endpoint.rpartition(":")[2])
    with socket.socket() as other:
        other.bind(("127.0.0.2", port))  # free: a socket on every address would have taken it


OTHER_USER = """
import encodings.idna, http.client, os, sys  # what is imported later, the other user may not read
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
connection.request("POST", "/", b"{}", {"X-Amz-Target": "SageMaker.ListTrainingJobs"})
answer = connection.getresponse()
print(answer.status, answer.read().decode())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_is_refused(served: Served) -> None:
    """Whoever may call runs code as the user who serves."""
    done = subprocess.run(
        [sys.executable, "-c", OTHER_USER, served.endpoint.rpartition(":")[2]],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.startswith("403 ") and "only processes of this user on this machine may call" in done.stdout


def test_a_port_that_is_taken(served: Served) -> None:
    port = served.endpoint.rpartition(":")[2]
    done = subprocess.run(
        [sys.executable, "-m", "hdp.estimator.cli", "serve", "--port", port],
        env={**environment(), "HDP_HOME": str(served.home)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == (
        f"hdp: port {port} of loopback can't be had: Address already in use; give another with --port\n"
    )


def test_a_python_that_is_missing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hdp.estimator.cli", "serve", "--port", "0", "--python", "no-such-python"],
        env={**environment(), "HDP_HOME": str(tmp_path)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "no executable 'no-such-python' is on this machine; give the path of a Python" in done.stderr


def test_more_calls_than_allowed_are_throttled(tmp_path: Path) -> None:
    """One call in ten seconds: the second one comes too soon."""
    with serving(tmp_path / "home", None, "--calls-per-second", "0.1") as slow:
        assert call(slow)[0] == 200
        assert call(slow) == (400, {"__type": "ThrottlingException", "message": "Rate exceeded"})


def test_jobs_go_on_without_it(s3_endpoint: str, tmp_path: Path) -> None:
    """Ctrl-C ends it with a word; its job runs on, another one has it, and it is stopped there."""
    with serving(tmp_path / "home", s3_endpoint) as first:
        client = first.client("sagemaker")
        client.create_training_job(**job("on", "s3://bucket/code/loop.tar.gz"))
        wait_for(lambda: client.describe_training_job(TrainingJobName="on"), "Training", *ENDED)
        first.process.send_signal(signal.SIGINT)
        said, _ = first.process.communicate(timeout=60)
        assert first.process.returncode == 0 and "ended; jobs go on: hdp jobs" in said
    try:
        assert LocalEngine(Home(first.home)).describe("on")["TrainingJobStatus"] == "InProgress"
        with serving(tmp_path / "home", s3_endpoint) as second:
            client = second.client("sagemaker")
            client.stop_training_job(TrainingJobName="on")
            seen = wait_for(lambda: client.describe_training_job(TrainingJobName="on"), *ENDED)
        assert seen[-1]["TrainingJobStatus"] == "Stopped"
    finally:
        end_all(Home(first.home))
