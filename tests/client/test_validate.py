"""The walker over botocore's model: what botocore accepts and the service wouldn't."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.validate import ParamValidator

from hdp.estimator.validate import Relaxed, faults_of

from .conftest import ROLE

GOOD: dict[str, Any] = {
    "TrainingJobName": "a-job",
    "RoleArn": ROLE,
    "AlgorithmSpecification": {"TrainingInputMode": "FastFile", "TrainingImage": "image:1"},
    "OutputDataConfig": {"S3OutputPath": "s3://bucket/out"},
    "ResourceConfig": {"InstanceType": "ml.p4d.24xlarge", "InstanceCount": 4, "VolumeSizeInGB": 30},
    "StoppingCondition": {"MaxRuntimeInSeconds": 86400},
    "HyperParameters": {"lr": "0.1"},
    "InputDataConfig": [
        {
            "ChannelName": "training",
            "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://bucket/data/"}},
            "InputMode": "FastFile",
        }
    ],
    "Tags": [{"Key": "päivä", "Value": "a b+c"}],
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """GOOD with `value` at a path like ``InputDataConfig.0.InputMode``; ... removes it."""
    job = copy.deepcopy(GOOD)
    target: Any = job
    *steps, last = [int(s) if s.isdigit() else s for s in path.split(".")]
    for step in steps:
        target = target[step]
    if value is ...:
        del target[last]
    else:
        target[last] = value
    return job


def botocore_accepts(job: dict[str, Any]) -> bool:
    model = ServiceModel(Loader().load_service_model("sagemaker", "service-2"), "sagemaker")
    shape = model.operation_model("CreateTrainingJob").input_shape
    assert shape is not None
    return not ParamValidator().validate(job, shape).has_errors()


def test_a_good_request_has_no_fault() -> None:
    """Also by botocore's own validator."""
    assert faults_of(GOOD) == []
    assert botocore_accepts(GOOD)


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        (
            "InputDataConfig.0.InputMode",
            "Fastfile",
            "InputDataConfig[0].InputMode: 'Fastfile' isn't one of Pipe, File, FastFile; did you mean 'FastFile'?",
        ),
        (
            "TrainingJobName",
            "bad_name",
            "TrainingJobName: 'bad_name' doesn't have the form [a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}",
        ),
        ("HyperParameters", {"x": "v" * 2501}, "HyperParameters['x'] has 2501 characters; at most 2500"),
        ("HyperParameters", {"x": "a\nb"}, "HyperParameters['x']: 'a\\nb' doesn't have the form .*"),
        ("HyperParameters", {str(i): "" for i in range(101)}, "HyperParameters has 101 entries; at most 100"),
        ("InputDataConfig.0.ChannelName", "a b", "InputDataConfig[0].ChannelName: 'a b' doesn't have the form"),
        ("InputDataConfig.0.DataSource.S3DataSource.S3Uri", "file:///x", "InputDataConfig[0].DataSource.S3DataSource."),
        ("Tags", [{"Key": "k", "Value": "v"}] * 51, "Tags has 51 items; at most 50"),
        ("Tags.0.Value", "<b>", "Tags[0].Value: '<b>' doesn't have the form"),
        ("Environment", {"A-B": "x"}, "Environment: key 'A-B': 'A-B' doesn't have the form"),
        (
            "ResourceConfig.InstanceType",
            "ml.p4d.24xlrge",
            "ResourceConfig.InstanceType: 'ml.p4d.24xlrge' isn't one of the ",
        ),
        (
            "ResourceConfig.KeepAlivePeriodInSeconds",
            10**6,
            "ResourceConfig.KeepAlivePeriodInSeconds is 1000000; expected ",
        ),
        ("RetryStrategy", {"MaximumRetryAttempts": 31}, "RetryStrategy.MaximumRetryAttempts is 31; expected 30 or"),
    ],
)
def test_what_botocore_accepts_and_we_refuse(path: str, value: Any, fault: str) -> None:
    """One thing wrong: botocore says nothing, we say this one line."""
    job = changed(path, value)
    assert botocore_accepts(job)
    faults = faults_of(job)
    assert len(faults) == 1
    assert faults[0].startswith(fault)


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        ("RoleArn", ..., "RoleArn is missing; CreateTrainingJob needs it"),
        ("OutputDataConfig.S3OutputPath", ..., "OutputDataConfig.S3OutputPath is missing; CreateTrainingJob needs it"),
        (
            "ResourceConfig.InstnaceCount",
            1,
            "ResourceConfig.InstnaceCount is no part of CreateTrainingJob; did you mean 'InstanceCount'?",
        ),
        ("ResourceConfig.InstanceCount", "4", "ResourceConfig.InstanceCount is '4' (str); expected a whole number"),
        ("ResourceConfig.InstanceCount", True, "ResourceConfig.InstanceCount is True (bool); expected a whole number"),
        ("EnableNetworkIsolation", 1, "EnableNetworkIsolation is 1 (int); expected True or False"),
        ("InputDataConfig", "x", "InputDataConfig is 'x' (str); expected a list"),
        ("HyperParameters", {"lr": 0.1}, "HyperParameters['lr'] is 0.1 (float); expected text"),
        ("StoppingCondition.MaxRuntimeInSeconds", 0, "StoppingCondition.MaxRuntimeInSeconds is 0; expected 1 or more"),
    ],
)
def test_what_is_wrong_by_itself(path: str, value: Any, fault: str) -> None:
    """One thing wrong: one line with its path."""
    assert faults_of(changed(path, value)) == [fault]


@pytest.mark.parametrize(
    ("path", "value", "relaxed"),
    [
        ("OutputDataConfig.S3OutputPath", "file:///tmp/out", Relaxed(file_uris=True)),
        ("InputDataConfig.0.DataSource.S3DataSource.S3Uri", "file:///data", Relaxed(file_uris=True)),
        ("ResourceConfig.InstanceType", "local_gpu", Relaxed(any_instance_type=True)),
        ("OutputDataConfig.S3OutputPath", ..., Relaxed(no_output_path=True)),
    ],
)
def test_a_relaxation_allows_this_alone(path: str, value: Any, relaxed: Relaxed) -> None:
    """Refused for SageMaker, fine for an engine on this machine."""
    assert len(faults_of(changed(path, value))) == 1
    assert faults_of(changed(path, value), relaxed) == []


def test_a_relaxed_uri_must_still_be_absolute() -> None:
    """file://x is refused by every engine."""
    assert len(faults_of(changed("OutputDataConfig.S3OutputPath", "file://x"), Relaxed(file_uris=True))) == 1


def test_no_network_and_no_credentials_are_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No sockets can be made; the walker still answers."""
    import socket

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a socket was made")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert faults_of(GOOD) == []
