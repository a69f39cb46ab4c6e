"""What `hdp serve` decides without a socket: how a request becomes a local job, patterns, pages, whose a socket is."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest
from serve_support import IMAGE, job

from hdp.contract import delivery
from hdp.contract.hyperparameters import decode
from hdp.estimator.engines.base import JobRequest
from hdp.estimator.engines.local import cloud, processes, refusals, state
from hdp.estimator.engines.local.home import JobDir
from hdp.estimator.engines.local.localjob import LocalJob
from hdp.estimator.serve.errors import ServiceError
from hdp.estimator.serve.listing import page_of, wanted
from hdp.estimator.serve.patterns import matcher
from hdp.estimator.serve.peers import is_welcome
from hdp.estimator.serve.throttle import Throttle
from hdp.estimator.serve.training import with_download

RUN = "/opt/ml/input/data"


def channel(name: str, uri: str) -> dict[str, Any]:
    return {"ChannelName": name, "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": uri}}}


def directory(training_job: dict[str, Any]) -> str:
    return str(decode(cloud.as_local(training_job, "local")["HyperParameters"]["sagemaker_submit_directory"]))


@pytest.mark.parametrize(
    ("source", "uri", "expected"),
    [
        ("s3://b/code.tar.gz", "s3://b/data", "s3://b/code.tar.gz"),
        (f"{RUN}/code/sourcedir.tar.gz", "s3://b/job/source/sourcedir.tar.gz", "s3://b/job/source/sourcedir.tar.gz"),
        (f"{RUN}/code/sourcedir.tar.gz", "s3://b/job/source/", "s3://b/job/source/sourcedir.tar.gz"),
        (f"{RUN}/code/sourcedir.tar.gz", "file:///code", "file:///code/sourcedir.tar.gz"),
    ],
)
def test_code_that_would_come_in_a_channel_is_fetched_from_there(source: str, uri: str, expected: str) -> None:
    """As v2 sends it for a network-isolated job."""
    assert directory(job("j", source, InputDataConfig=[channel("code", uri)])) == expected


def test_our_entry_point_is_taken_apart() -> None:
    """Its three channels go, and the user's stay; the archive is the one in the channel of the code."""
    request = job("j", "", InputDataConfig=[channel(name, f"s3://b/{name}/") for name in (*delivery.CHANNELS, "data")])
    request["AlgorithmSpecification"]["ContainerEntrypoint"] = list(delivery.ENTRYPOINT)
    local = cloud.as_local(request, "local")
    assert [c["ChannelName"] for c in local["InputDataConfig"]] == ["data"]
    assert local["AlgorithmSpecification"] == {"TrainingImage": IMAGE, "TrainingInputMode": "File"}
    assert decode(local["HyperParameters"]["sagemaker_submit_directory"]) == "s3://b/code/sourcedir.tar.gz"
    assert cloud.program(request) == () and cloud.faults(request) == []


def test_our_entry_point_is_run_when_asked_for(tmp_path: Path) -> None:
    """Then every channel is provided, and the hyperparameters stay."""
    request = job("j", "", InputDataConfig=[channel(name, f"s3://b/{name}/") for name in delivery.CHANNELS])
    request["AlgorithmSpecification"]["ContainerEntrypoint"] = list(delivery.ENTRYPOINT)
    made = LocalJob.of(JobDir(tmp_path), JobRequest(request, {"instance_types": "local", "run_carried": True}))
    assert made.program == delivery.ENTRYPOINT and made.training_job == request


def test_our_entry_point_without_code_is_refused() -> None:
    request = job("j", "")
    request["AlgorithmSpecification"]["ContainerEntrypoint"] = list(delivery.ENTRYPOINT)
    assert cloud.faults(request) == ["InputDataConfig has no channel 'code', where start.py finds the code"]


def test_types_are_kept_where_hosts_have_no_gpus() -> None:
    request = job("j", "s3://b/c.tar.gz")
    assert cloud.as_local(request, "local")["ResourceConfig"]["InstanceType"] == "ml.p4d.24xlarge"
    assert cloud.as_local(request, "local_gpu")["ResourceConfig"]["InstanceType"] == "local_gpu"


def test_gpus_must_be_there() -> None:
    (fault,) = refusals.faults(job("j", "s3://b/c.tar.gz", 2), 1, "local_gpu")
    assert fault.startswith('instance_type="local_gpu" with 2 host(s): 1 NVIDIA device(s) can be used here')


def test_types_of_sagemaker_are_refused_without_the_option() -> None:
    (fault,) = refusals.faults(job("j", "s3://b/c.tar.gz"), 0)
    assert fault == 'instance_type=\'ml.p4d.24xlarge\': the local engine serves "local" and "local_gpu"'


def test_the_log_begins_with_what_stands_for_what() -> None:
    request = job("j", "s3://b/c.tar.gz", EnableNetworkIsolation=True, VpcConfig={"Subnets": [], "x": 1})
    request["OutputDataConfig"] |= {"KmsKeyId": "key", "CompressionType": "NONE"}
    assert cloud.preface(request, "/usr/bin/python3", "local") == [
        f"emulated on this machine: the image isn't run ({IMAGE}), /usr/bin/python3 stands for it",
        "hosts of the type ml.p4d.24xlarge run as 'local'",
        "without effect here: the VPC, network isolation, encryption keys, "
        "CompressionType=NONE (artifacts are archives)",
    ]


def test_a_program_needs_an_opt_ml_of_its_own(tmp_path: Path) -> None:
    request = job("j", "")
    request["AlgorithmSpecification"] |= {"ContainerEntrypoint": ["/bin/sh", "-c"], "ContainerArguments": ["x"]}
    made = LocalJob.of(JobDir(tmp_path), JobRequest(request, {"instance_types": "local"}))
    assert made.program == ("/bin/sh", "-c", "x") and made.options.namespaces == "required"


@pytest.mark.parametrize(
    ("pattern", "message", "expected"),
    [
        ("", "anything", True),
        ("loss", "the loss is 1", True),
        ("loss step", "the loss is 1", False),
        ('"loss is"', "the loss is 1", True),
        ('"is loss"', "the loss is 1", False),
        ("loss -is", "the loss is 1", False),
        ("?error ?loss", "the loss is 1", True),
        ("?error ?warn", "the loss is 1", False),
        ("LOSS", "the loss is 1", False),
        (r'"say \"x\""', 'they say "x"', True),
    ],
)
def test_terms_of_a_pattern(pattern: str, message: str, expected: bool) -> None:
    assert matcher(pattern)(message) is expected


def states(*names: str) -> list[state.JobState]:
    """Jobs that were made a second after each other."""
    return [state.new(name, processes.current(), float(i)) for i, name in enumerate(names)]


def test_pages_go_on_where_the_last_one_ended_whatever_comes_or_goes() -> None:
    jobs = states("c", "a", "b", "d")
    page, token = page_of(jobs, {"MaxResults": 2, "SortBy": "Name", "SortOrder": "Descending"})
    assert [one.name for one in page] == ["d", "c"]
    later = [*states("e"), *jobs[1:]]  # c is gone, e has come
    page, token = page_of(later, {"MaxResults": 2, "SortBy": "Name", "SortOrder": "Descending", "NextToken": token})
    assert [one.name for one in page] == ["b", "a"] and token is None


def test_jobs_are_in_the_order_in_which_they_were_made_unless_asked_otherwise() -> None:
    page, _ = page_of(states("c", "a", "b"), {})
    assert [one.name for one in page] == ["c", "a", "b"]


def test_no_job_here_has_a_warm_pool() -> None:
    (made,) = states("a")
    assert wanted(made, {}) and not wanted(made, {"WarmPoolStatusEquals": "Available"})


def test_a_download_that_has_not_ended_is_all_there_is() -> None:
    step = {"Status": "Training", "StartTime": 1, "StatusMessage": "Training on 1 host"}
    (shown,) = with_download([step], None)
    assert shown == {"Status": "Downloading", "StartTime": 1, "StatusMessage": "Downloading input data"}


HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
ROW = "   0: {local} {remote} 01 00000000:00000000 00:00000000 00000000 {uid:5}        0 12345 1\n"


@pytest.mark.parametrize(("uid", "expected"), [(os.geteuid(), True), (0, True), (os.geteuid() + 4711, False)])
def test_whose_a_socket_is(tmp_path: Path, uid: int, expected: bool) -> None:
    """From 127.0.0.1, port 40000, to port 8571: the table has addresses in this machine's byte order."""
    table = tmp_path / "tcp"
    ours, theirs = "0100007F:217B", "0100007F:9C40"
    text = HEAD + ROW.format(local=ours, remote=theirs, uid=0) + ROW.format(local=theirs, remote=ours, uid=uid)
    table.write_text(text)
    assert is_welcome(("127.0.0.1", 8571), ("127.0.0.1", 40000), table) is expected


def test_a_socket_that_nobody_knows_is_not_welcome(tmp_path: Path) -> None:
    table = tmp_path / "tcp"
    table.write_text(HEAD)
    assert not is_welcome(("127.0.0.1", 8571), ("127.0.0.1", 40000), table)


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="the table of sockets is Linux's")
def test_a_socket_that_was_closed_is_nobodys() -> None:
    """The kernel lists it as root's, whoever's it was, while what it sent still waits: it must not count as root's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        answering, theirs = server.accept()
        with answering:
            assert is_welcome(answering.getsockname(), theirs)
            client.sendall(b"POST / HTTP/1.1")
            client.close()
            assert not is_welcome(answering.getsockname(), theirs)


def test_calls_that_come_too_fast_are_refused() -> None:
    """Two a second: two at once, then one each half second."""
    clock = [0.0]
    throttle = Throttle(2, lambda: clock[0])
    throttle.admit()
    throttle.admit()
    with pytest.raises(ServiceError, match="ThrottlingException: Rate exceeded"):
        throttle.admit()
    clock[0] = 0.5
    throttle.admit()
    with pytest.raises(ServiceError):
        throttle.admit()


def test_a_service_error_shows_its_code() -> None:
    assert str(ServiceError("ResourceInUse", "taken")) == "ResourceInUse: taken"
