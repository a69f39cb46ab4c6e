"""Unmodified boto3 against `hdp serve`: jobs that run, are stopped, and fail."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from itertools import groupby, pairwise
from typing import Any

import pytest
from botocore.exceptions import ClientError, ParamValidationError
from serve_support import ENDED, GROUP, IMAGE, ROLE, job, wait_for

CHANNEL = {
    "ChannelName": "training",
    "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://bucket/data/"}},
}
TAGS = [{"Key": "team", "Value": "vision"}, {"Key": "paid", "Value": "no"}]


SPOT: dict[str, Any] = {
    "EnableManagedSpotTraining": True,
    "StoppingCondition": {"MaxRuntimeInSeconds": 600, "MaxWaitTimeInSeconds": 900},
}


def describing(sagemaker: Any, name: str) -> Callable[[], dict[str, Any]]:
    return lambda: sagemaker.describe_training_job(TrainingJobName=name)


@pytest.fixture(scope="module")
def trained(sagemaker: Any) -> list[dict[str, Any]]:
    """Every description of a job on two hosts, until it had ended."""
    request = job("trained", "s3://bucket/code/train.tar.gz", 2, InputDataConfig=[CHANNEL], Tags=TAGS, **SPOT)
    answer = sagemaker.create_training_job(**request)
    assert answer["TrainingJobArn"] == "arn:aws:sagemaker:eu-west-1:000000000000:training-job/trained"
    return wait_for(describing(sagemaker, "trained"), *ENDED)


@pytest.fixture(scope="module")
def stopped(sagemaker: Any) -> list[dict[str, Any]]:
    """Every description of a job from when it was stopped on."""
    sagemaker.create_training_job(**job("stopped", "s3://bucket/code/loop.tar.gz"))
    wait_for(describing(sagemaker, "stopped"), "Training", *ENDED)
    sagemaker.stop_training_job(TrainingJobName="stopped")
    return wait_for(describing(sagemaker, "stopped"), *ENDED)


@pytest.fixture(scope="module")
def failed(sagemaker: Any) -> dict[str, Any]:
    """The last description of a job whose script raises."""
    sagemaker.create_training_job(**job("failed", "s3://bucket/code/fail.tar.gz"))
    return wait_for(describing(sagemaker, "failed"), *ENDED)[-1]


def refused(call: Callable[..., Any], **arguments: Any) -> tuple[str, str]:
    """Code and message of the service's answer."""
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    return caught.value.response["Error"]["Code"], caught.value.response["Error"]["Message"]


def test_a_job_goes_through_its_states(trained: list[dict[str, Any]]) -> None:
    order = ["Starting", "Downloading", "Training", "Uploading", "Completed"]
    seen = [status for status, _ in groupby(answer["SecondaryStatus"] for answer in trained)]
    assert seen == [status for status in order if status in seen] and seen[-1] == "Completed"
    assert [step["Status"] for step in trained[-1]["SecondaryStatusTransitions"]] == order


def test_transitions_follow_each_other(trained: list[dict[str, Any]]) -> None:
    steps = trained[-1]["SecondaryStatusTransitions"]
    assert all(step["StartTime"] <= step["EndTime"] for step in steps)
    assert all(one["EndTime"] == other["StartTime"] for one, other in pairwise(steps))


def test_the_request_is_described_as_it_was_made(trained: list[dict[str, Any]]) -> None:
    last = trained[-1]
    request = job("trained", "s3://bucket/code/train.tar.gz", 2, **SPOT)
    request["OutputDataConfig"]["KmsKeyId"] = ""  # as the service says it
    assert {key: last[key] for key in request} == request
    assert last["AlgorithmSpecification"]["TrainingImage"] == IMAGE


def test_time_is_billed(trained: list[dict[str, Any]]) -> None:
    last = trained[-1]
    seconds = (last["TrainingEndTime"] - last["TrainingStartTime"]).total_seconds()
    assert last["BillableTimeInSeconds"] == last["TrainingTimeInSeconds"] == pytest.approx(seconds, abs=1)
    assert last["CreationTime"] <= last["TrainingStartTime"] <= last["TrainingEndTime"] <= last["LastModifiedTime"]
    assert abs((datetime.now(timezone.utc) - last["LastModifiedTime"]).total_seconds()) < 600


def test_what_both_hosts_left_is_one_archive_at_the_output_path(trained: list[dict[str, Any]]) -> None:
    import boto3

    uri = trained[-1]["ModelArtifacts"]["S3ModelArtifacts"]
    assert uri == "s3://bucket/out/trained/output/model.tar.gz"
    s3 = boto3.client("s3")
    body = s3.get_object(Bucket="bucket", Key="out/trained/output/model.tar.gz")["Body"].read()
    s3.close()
    with tarfile.open(fileobj=io.BytesIO(body)) as tar:
        assert sorted(tar.getnames()) == ["algo-1.bin", "algo-2.bin"]


def test_a_stop_goes_through_stopping(stopped: list[dict[str, Any]]) -> None:
    last = stopped[-1]
    assert (last["TrainingJobStatus"], last["SecondaryStatus"]) == ("Stopped", "Stopped")
    assert [step["Status"] for step in last["SecondaryStatusTransitions"]][-2:] == ["Stopping", "Stopped"]


def test_an_ended_job_cannot_be_stopped(sagemaker: Any, stopped: list[dict[str, Any]]) -> None:
    code, message = refused(sagemaker.stop_training_job, TrainingJobName="stopped")
    assert code == "ValidationException"
    assert message == "The request was rejected because the training job is in status Stopped."


def test_a_failure_has_its_reason(failed: dict[str, Any]) -> None:
    assert failed["TrainingJobStatus"] == "Failed" and failed["SecondaryStatusTransitions"][-1]["Status"] == "Failed"
    assert "ValueError: no such luck" in failed["FailureReason"] and len(failed["FailureReason"]) <= 1024
    assert "ModelArtifacts" not in failed


def test_a_name_is_taken_for_good(sagemaker: Any, trained: list[dict[str, Any]]) -> None:
    code, message = refused(sagemaker.create_training_job, **job("trained", "s3://bucket/code/train.tar.gz"))
    assert code == "ResourceInUse"
    assert "already exists (arn:aws:sagemaker:eu-west-1:000000000000:training-job/trained)" in message


@pytest.mark.parametrize("operation", ["describe", "stop", "update"])
def test_an_unknown_name_is_answered_as_sagemaker_does(sagemaker: Any, operation: str) -> None:
    code, message = refused(getattr(sagemaker, f"{operation}_training_job"), TrainingJobName="nobody")
    assert code == "ValidationException"
    assert message == "Requested resource not found. No training job is called 'nobody' here."


def test_a_name_that_leads_elsewhere_is_refused(sagemaker: Any) -> None:
    code, message = refused(sagemaker.describe_training_job, TrainingJobName="../../etc")
    assert code == "ValidationException" and "'../../etc' doesn't have the form" in message


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "pattern": ({"TrainingJobName": "bad_name"}, "TrainingJobName: 'bad_name' doesn't have the form"),
    "enum": (
        {"AlgorithmSpecification": {"TrainingImage": IMAGE, "TrainingInputMode": "Fastfile"}},
        "TrainingInputMode: 'Fastfile' isn't one of Pipe, File, FastFile",
    ),
    "type of instance": (
        {"ResourceConfig": {"InstanceType": "ml.p4d.24xlrge", "InstanceCount": 1, "VolumeSizeInGB": 1}},
        "known values; did you mean 'ml.p4d.24xlarge'?",
    ),
    "length": ({"HyperParameters": {"x": "y" * 2501}}, "HyperParameters['x'] has 2501 characters; at most 2500"),
    "spot without a wait": (
        {"EnableManagedSpotTraining": True},
        "EnableManagedSpotTraining needs StoppingCondition.MaxWaitTimeInSeconds",
    ),
    "spot with a short wait": (
        {
            "EnableManagedSpotTraining": True,
            "StoppingCondition": {"MaxRuntimeInSeconds": 100, "MaxWaitTimeInSeconds": 99},
        },
        "MaxWaitTimeInSeconds is 99, less than MaxRuntimeInSeconds (100)",
    ),
    "a tag of Amazon's": ({"Tags": [{"Key": "aws:team", "Value": "x"}]}, "the key 'aws:team' begins with 'aws:'"),
    "a channel twice": (
        {"InputDataConfig": [CHANNEL, CHANNEL]},
        "the channel 'training' is there twice; names must be unique",
    ),
    "no script": (
        {"HyperParameters": {}},
        "HyperParameters has no sagemaker_program: no image is run here, so there must be a script",
    ),
    "algorithm": (
        {"AlgorithmSpecification": {"AlgorithmName": "xgboost", "TrainingInputMode": "File"}},
        "AlgorithmName='xgboost': algorithms of the service can't be run here",
    ),
    "file system": (
        {
            "InputDataConfig": [
                {
                    "ChannelName": "data",
                    "DataSource": {
                        "FileSystemDataSource": {
                            "FileSystemId": "fs-0123456789abcdef0",
                            "FileSystemAccessMode": "ro",
                            "FileSystemType": "EFS",
                            "DirectoryPath": "/data",
                        }
                    },
                }
            ]
        },
        "channel 'data': a FileSystemDataSource can't be had here; give s3:// or file://",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_request_is_refused_with_its_fault(sagemaker: Any, what: str) -> None:
    changes, expected = BAD[what]
    code, message = refused(sagemaker.create_training_job, **{**job("bad", "s3://bucket/code/x.tar.gz"), **changes})
    assert code == "ValidationException" and expected in message
    assert "bad" not in [row["TrainingJobName"] for row in sagemaker.list_training_jobs()["TrainingJobSummaries"]]


def test_botocore_knows_the_operations(sagemaker: Any) -> None:
    """What botocore checks by itself never reaches the server."""
    with pytest.raises(ParamValidationError, match="TrainingJobName"):
        sagemaker.describe_training_job()


def test_an_update_is_described(sagemaker: Any, failed: dict[str, Any]) -> None:
    changes = {"ProfilerConfig": {"S3OutputPath": "s3://bucket/profile"}}
    sagemaker.update_training_job(TrainingJobName="failed", ResourceConfig={"KeepAlivePeriodInSeconds": 60}, **changes)
    answer = sagemaker.describe_training_job(TrainingJobName="failed")
    assert answer["ProfilerConfig"]["S3OutputPath"] == "s3://bucket/profile"
    assert answer["ResourceConfig"] == {**failed["ResourceConfig"], "KeepAlivePeriodInSeconds": 60}


def test_remote_debugging_of_an_ended_job_cannot_be_changed(sagemaker: Any, failed: dict[str, Any]) -> None:
    code, message = refused(
        sagemaker.update_training_job, TrainingJobName="failed", RemoteDebugConfig={"EnableRemoteDebug": True}
    )
    assert code == "ValidationException" and message == (
        "RemoteDebugConfig can't be updated: the training job has ended."
    )


def test_tags_are_those_of_the_request_then_what_was_changed(sagemaker: Any, trained: list[dict[str, Any]]) -> None:
    arn = trained[-1]["TrainingJobArn"]
    assert sagemaker.list_tags(ResourceArn=arn)["Tags"] == TAGS
    sagemaker.add_tags(ResourceArn=arn, Tags=[{"Key": "paid", "Value": "yes"}, {"Key": "new", "Value": ""}])
    sagemaker.delete_tags(ResourceArn=arn, TagKeys=["team", "nothing"])
    assert sagemaker.list_tags(ResourceArn=arn)["Tags"] == [
        {"Key": "paid", "Value": "yes"},
        {"Key": "new", "Value": ""},
    ]


def test_there_are_fifty_tags_at_most(sagemaker: Any, failed: dict[str, Any]) -> None:
    many = [{"Key": str(i), "Value": ""} for i in range(50)]
    arn = failed["TrainingJobArn"]
    sagemaker.add_tags(ResourceArn=arn, Tags=many)
    assert refused(sagemaker.add_tags, ResourceArn=arn, Tags=[{"Key": "one more", "Value": ""}]) == (
        "ResourceLimitExceeded",
        "a training job can have 50 tags, this makes 51",
    )
    pages = sagemaker.get_paginator("list_tags").paginate(ResourceArn=arn, PaginationConfig={"PageSize": 50})
    assert [tag for page in pages for tag in page["Tags"]] == many


def test_only_training_jobs_have_tags(sagemaker: Any) -> None:
    code, message = refused(sagemaker.list_tags, ResourceArn="arn:aws:sagemaker:eu-west-1:000000000000:model/m")
    assert code == "ValidationException" and "only training jobs are served" in message


def test_a_running_job_cannot_be_deleted_and_an_ended_one_is_gone(sagemaker: Any) -> None:
    sagemaker.create_training_job(**job("deleted", "s3://bucket/code/loop.tar.gz"))
    wait_for(describing(sagemaker, "deleted"), "Training", *ENDED)
    code, message = refused(sagemaker.delete_training_job, TrainingJobName="deleted")
    assert code == "ResourceInUse" and "is in status InProgress; stop it first" in message
    sagemaker.stop_training_job(TrainingJobName="deleted")
    wait_for(describing(sagemaker, "deleted"), *ENDED)
    sagemaker.delete_training_job(TrainingJobName="deleted")
    assert refused(sagemaker.describe_training_job, TrainingJobName="deleted")[0] == "ValidationException"
    assert refused(sagemaker.delete_training_job, TrainingJobName="deleted")[0] == "ResourceNotFound"


def test_jobs_are_listed(sagemaker: Any, trained: list[dict[str, Any]], stopped: Any, failed: Any) -> None:
    def names(**asked: Any) -> list[str]:
        pages = sagemaker.get_paginator("list_training_jobs").paginate(**asked)
        return [row["TrainingJobName"] for page in pages for row in page["TrainingJobSummaries"]]

    assert {"trained", "stopped", "failed"} <= set(names())
    assert names(StatusEquals="Failed") == ["failed"]
    assert names(NameContains="ained") == ["trained"]
    ended = trained[-1]["LastModifiedTime"] + timedelta(seconds=1)  # botocore sends whole seconds
    assert "trained" not in names(LastModifiedTimeAfter=ended)
    assert "trained" in names(LastModifiedTimeBefore=ended, CreationTimeAfter=ended - timedelta(days=1))
    assert names(SortBy="Name", SortOrder="Descending", PaginationConfig={"PageSize": 1})[0] == "trained"
    row = next(r for r in sagemaker.list_training_jobs()["TrainingJobSummaries"] if r["TrainingJobName"] == "trained")
    same = ("TrainingJobArn", "CreationTime", "TrainingEndTime", "LastModifiedTime", "TrainingJobStatus")
    assert {key: row[key] for key in same} == {key: trained[-1][key] for key in same}


def test_the_role_is_kept(failed: dict[str, Any]) -> None:
    assert failed["RoleArn"] == ROLE


@pytest.fixture(scope="module")
def resumed(sagemaker: Any) -> list[str]:
    """Two jobs, one after the other, with checkpoints in the same place of S3."""
    for name in ("first", "second"):
        request = job(name, "s3://bucket/code/resume.tar.gz", CheckpointConfig={"S3Uri": "s3://bucket/kept"})
        sagemaker.create_training_job(**request)
        last = wait_for(describing(sagemaker, name), *ENDED)[-1]
        assert last["TrainingJobStatus"] == "Completed", last.get("FailureReason")
    return ["first", "second"]


def test_checkpoints_go_to_s3_and_come_back(resumed: list[str], logs: Any) -> None:
    import boto3

    s3 = boto3.client("s3")
    kept = [entry["Key"] for entry in s3.list_objects_v2(Bucket="bucket", Prefix="kept/")["Contents"]]
    s3.close()
    assert kept == ["kept/deep/first.pt", "kept/deep/second.pt"]
    asked = {"logGroupName": GROUP, "filterPattern": "found"}
    found = [logs.filter_log_events(**asked, logStreamNamePrefix=f"{name}/")["events"] for name in resumed]
    assert [events[0]["message"] for events in found] == ["[algo-1:0] found []", "[algo-1:0] found ['deep/first.pt']"]


def test_checkpoints_that_cannot_be_had_fail_the_job(sagemaker: Any) -> None:
    request = job("nowhere", "s3://bucket/code/resume.tar.gz", CheckpointConfig={"S3Uri": "s3://no-such-bucket/kept"})
    sagemaker.create_training_job(**request)
    last = wait_for(describing(sagemaker, "nowhere"), *ENDED)[-1]
    assert last["TrainingJobStatus"] == "Failed"
    assert "the checkpoints in s3://no-such-bucket/kept can't be fetched" in last["FailureReason"]
