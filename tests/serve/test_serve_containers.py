"""Jobs with a ContainerEntrypoint: a program of this machine, run as in a container; and our own entry point."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from serve_support import ENDED, GROUP, IMAGE, job, wait_for

from hdp.contract import delivery
from hdp.estimator.engines.local import hostns

CHANNEL = {
    "ChannelName": "training",
    "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://bucket/data/"}},
}
SHOW = (
    'echo "data: $(cat /opt/ml/input/data/training/data.txt)"; echo "argument: $1"; touch /opt/ml/model/$(hostname); '
    "! [ -e /opt/ml/input/config/hdp-channels.json ] && command -v python3"
)
FAIL = 'echo "[INFO] to the log"; echo "why it failed" > /opt/ml/output/failure; exit 3'
LOOP = 'trap "echo terminated; exit 0" TERM; echo looping; while true; do sleep 0.1; done'

needs_namespaces = pytest.mark.skipif(
    hostns.probe().means == "none", reason=f"hosts can't have an /opt/ml of their own: {hostns.probe().reason}"
)


def program(name: str, script: str, *arguments: str, hosts: int = 1) -> dict[str, Any]:
    algorithm = {
        "TrainingImage": IMAGE,
        "TrainingInputMode": "File",
        "ContainerEntrypoint": ["/bin/sh", "-c", script, "sh"],
        "ContainerArguments": list(arguments),
    }
    if not arguments:
        del algorithm["ContainerArguments"]
    return {
        **job(name, "", hosts),
        "AlgorithmSpecification": algorithm,
        "HyperParameters": {},
        "InputDataConfig": [CHANNEL],
    }


def ended(sagemaker: Any, request: dict[str, Any]) -> dict[str, Any]:
    sagemaker.create_training_job(**request)
    name = request["TrainingJobName"]
    return wait_for(lambda: sagemaker.describe_training_job(TrainingJobName=name), *ENDED)[-1]


def said(logs: Any, name: str) -> list[str]:
    events = logs.filter_log_events(logGroupName=GROUP, logStreamNamePrefix=f"{name}/")["events"]
    return [event["message"] for event in events]


@needs_namespaces
def test_a_program_has_its_channels_and_leaves_its_model(sagemaker: Any, logs: Any) -> None:
    answer = ended(sagemaker, program("shows", SHOW, "one argument", hosts=2))
    assert answer["TrainingJobStatus"] == "Completed", answer.get("FailureReason")
    assert answer["ModelArtifacts"]["S3ModelArtifacts"] == "s3://bucket/out/shows/output/model.tar.gz"
    lines = said(logs, "shows")
    for host in ("algo-1", "algo-2"):
        own = [line.removeprefix(f"[{host}] ") for line in lines if line.startswith(f"[{host}] ")]
        assert own[-3:-1] == ["data: digits", "argument: one argument"]
        assert own[-1].rpartition("/")[0] == sys.executable.rpartition("/")[0]


@needs_namespaces
def test_a_program_says_why_it_failed(sagemaker: Any, logs: Any) -> None:
    answer = ended(sagemaker, program("why", FAIL))
    assert answer["TrainingJobStatus"] == "Failed"
    assert answer["FailureReason"] == "host algo-1 failed (exit code 3)\nwhy it failed"
    assert "[algo-1] [INFO] to the log" in said(logs, "why"), "a line's host is its own, whatever it begins with"


@needs_namespaces
def test_a_program_that_is_missing(sagemaker: Any) -> None:
    request = program("missing", "")
    request["AlgorithmSpecification"]["ContainerEntrypoint"] = ["/no/such/program"]
    answer = ended(sagemaker, request)
    assert answer["TrainingJobStatus"] == "Failed" and "/no/such/program" in answer["FailureReason"]


@needs_namespaces
def test_a_program_is_told_to_stop(sagemaker: Any, logs: Any) -> None:
    sagemaker.create_training_job(**program("told", LOOP))
    wait_for(lambda: sagemaker.describe_training_job(TrainingJobName="told"), "Training", *ENDED)
    while "[algo-1] looping" not in said(logs, "told"):
        pass
    sagemaker.stop_training_job(TrainingJobName="told")
    answer = wait_for(lambda: sagemaker.describe_training_job(TrainingJobName="told"), *ENDED)[-1]
    assert answer["TrainingJobStatus"] == "Stopped"
    assert said(logs, "told")[-2:] == ["[algo-1] told to stop", "[algo-1] terminated"]


def test_our_own_entry_point_is_started_by_the_hosts_themselves(sagemaker: Any, logs: Any) -> None:
    """Its channels aren't provided: the hosts have the runtime and a secret, and fetch the code from its channel."""

    def channel(name: str, uri: str) -> dict[str, Any]:
        return {"ChannelName": name, "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": uri}}}

    request = job("ours", "")
    request["HyperParameters"] = {"sagemaker_program": '"train.py"'}
    request["AlgorithmSpecification"]["ContainerEntrypoint"] = list(delivery.ENTRYPOINT)
    request["InputDataConfig"] = [
        CHANNEL,
        channel("code", "s3://bucket/code/train.tar.gz"),
        channel("hdp_runtime", "s3://nowhere/runtime/"),
        channel("hdp_secret", "s3://nowhere/secret"),
    ]
    answer = ended(sagemaker, request)
    assert answer["TrainingJobStatus"] == "Completed", answer.get("FailureReason")
    assert answer["InputDataConfig"][1:] == request["InputDataConfig"][1:]
    assert "[algo-1] trained on digits" in [line.replace("algo-1:0", "algo-1") for line in said(logs, "ours")]
