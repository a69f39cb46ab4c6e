"""What to do about common errors, links to the console, and what a job costs."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from hdp.estimator.cost import Cost, cost_of
from hdp.estimator.engines.sagemaker import console
from hdp.estimator.engines.sagemaker.engine import SageMakerEngine
from hdp.estimator.engines.sagemaker.epilogue import first_cause
from hdp.estimator.engines.sagemaker.remedies import remedy_for

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("ExpiredTokenException: The security token included in the request is expired", "credentials have expired"),
        ("UnauthorizedSSOTokenError: The SSO session has expired", "credentials have expired"),
        ("UnrecognizedClientException: The security token included in the request is invalid", "doesn't know the cred"),
        ("NoCredentialsError: Unable to locate credentials", "doesn't know the credentials"),
        ("ResourceLimitExceeded: The account-level service limit 'ml.p4d.24xlarge for training job", "Service Quotas"),
        (
            "CapacityError: Unable to provision requested ML compute capacity. Please retry",
            "too few of these instances",
        ),
        ("InternalServerError: InsufficientCapacityError", "too few of these instances"),
        ("ValidationException: Could not assume role arn:aws:iam::1:role/x. Please ensure", "trust policy names sage"),
        ("AccessDeniedException: User: x is not authorized to perform: iam:PassRole on resource", "needs iam:PassRole"),
        ("AccessDenied: User is not authorized to perform: s3:PutObject", "a permission is missing"),
        ("ClientError: Data download failed:Access denied ... 403", "a permission is missing"),
        ("PermanentRedirect: The bucket you are attempting to access must be addressed", "another region than the job"),
        ("ValidationException: The bucket b must be in the same region as the job", "another region than the job"),
        ("NoSuchBucket: The specified bucket does not exist", "the bucket doesn't exist"),
        ('ClientError: No S3 objects found under S3 URL "s3://b/x"', "nothing at the channel's URI"),
        ("AlgorithmError: exec /usr/bin/python3: exec format error", "another processor"),
        ("ClientError: CannotPullContainerError: manifest unknown", "the image can't be pulled"),
        ("ValidationException: Cannot find the requested image x:1 in the repository", "the image can't be pulled"),
        ("AlgorithmError: rank 1 on algo-1 failed (killed by SIGKILL)", "memory ran out, probably"),
        ("AlgorithmError: torch.cuda.OutOfMemoryError: CUDA out of memory", "memory ran out, probably"),
        ("OSError: [Errno 28] No space left on device", "raise volume_size"),
        ("OSError: [Errno 122] Disk quota exceeded", "raise volume_size"),
        ("MaxRuntimeExceeded: ", "raise max_run"),
        ("EndpointConnectionError: Could not connect to the endpoint URL", "check the network, the region"),
    ],
)
def test_a_common_error_has_its_remedy(said: str, expected: str) -> None:
    assert expected in str(remedy_for(said))


@pytest.mark.parametrize(
    "said", ["ValueError: boom", "AlgorithmError: exit code: 1", "KeyError: no model architecture 'x'"]
)
def test_an_error_of_the_script_has_none(said: str) -> None:
    assert remedy_for(said) is None


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("AlgorithmError: rank 12 on algo-3 failed (exit code 1): ValueError: x, exit code: 1", (12, "algo-3")),
        ("AlgorithmError: host algo-2 failed: LaunchError: x", (None, "algo-2")),
        ("AlgorithmError: ExecuteUserScriptError: ExitCode 1", (None, "")),
    ],
)
def test_the_first_cause_is_read_from_our_failure_report(reason: str, expected: tuple[int | None, str]) -> None:
    assert first_cause(reason) == expected


def test_the_consoles_pages() -> None:
    """By region and partition; CloudWatch escapes twice behind the fragment."""
    assert console.job_url("j", "eu-west-1") == (
        "https://eu-west-1.console.aws.amazon.com/sagemaker/home?region=eu-west-1#/jobs/j"
    )
    assert console.job_url("j", "cn-north-1", "aws-cn").startswith("https://cn-north-1.console.amazonaws.cn/")
    assert console.logs_url("j", "eu-west-1").endswith(
        "#logsV2:log-groups/log-group/$252Faws$252Fsagemaker$252FTrainingJobs$253FlogStreamNameFilter$253Dj$252F"
    )


def test_links_are_given_where_the_service_is_amazons_own(account: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind an endpoint variable there is no console; without one there is, and asking for links needs no network."""
    assert SageMakerEngine()._links("j") == {}
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    assert SageMakerEngine()._links("j") == {
        "console": console.job_url("j", "eu-west-1"),
        "log_dir": console.logs_url("j", "eu-west-1"),
    }


def described(**more: Any) -> dict[str, Any]:
    return {
        "TrainingJobStatus": "Completed",
        "TrainingTimeInSeconds": 3600,
        "BillableTimeInSeconds": 3600,
        "ResourceConfig": {"InstanceType": "ml.m5.xlarge", "InstanceCount": 4},
        **more,
    }


def test_small_costs_are_not_rounded_to_nothing() -> None:
    """Half a minute of two ml.m5.xlarge."""
    short = described(BillableTimeInSeconds=30, ResourceConfig={"InstanceType": "ml.m5.xlarge", "InstanceCount": 2})
    assert "about $0.0038 (" in str(cost_of(short, NOW))


def test_hosts_times_billable_seconds_times_list_price() -> None:
    """Four ml.m5.xlarge for an hour, 0.23 dollars each."""
    cost = cost_of(described(), NOW)
    assert (cost.host_seconds, cost.dollars, cost.final) == (4 * 3600, pytest.approx(0.92), True)
    assert str(cost) == (
        "3600 s billable x 4 x ml.m5.xlarge; about $0.92 (on-demand list prices for training, us-east-1, 2024)"
    )


def test_spot_savings_are_the_services_formula() -> None:
    """Trained 500 s, billed 100 s: 80 % saved, as the API's own documentation has it."""
    cost = cost_of(described(TrainingTimeInSeconds=500, BillableTimeInSeconds=100, EnableManagedSpotTraining=True), NOW)
    assert cost.spot_savings == pytest.approx(0.8) and "spot saved 80%" in str(cost)


def test_spot_that_trained_no_second_saves_nothing_known() -> None:
    cost = cost_of(described(TrainingTimeInSeconds=0, BillableTimeInSeconds=0, EnableManagedSpotTraining=True), NOW)
    assert cost.spot_savings is None


def test_a_running_job_has_cost_so_far() -> None:
    """Ninety seconds since its start; instance groups of two types, of which one has no known price."""
    groups = [
        {"InstanceType": "ml.m5.xlarge", "InstanceCount": 1},
        {"InstanceType": "ml.p5.48xlarge", "InstanceCount": 2},
    ]
    answer = described(
        TrainingJobStatus="InProgress",
        TrainingStartTime=NOW - timedelta(seconds=90),
        ResourceConfig={"InstanceGroups": groups},
    )
    cost = cost_of(answer, NOW)
    assert (cost.billable_seconds, cost.dollars, cost.final) == (90, None, False)
    assert str(cost) == "90 s billable so far x 1 x ml.m5.xlarge, 2 x ml.p5.48xlarge; no list price is known for it"


def test_ones_own_prices_count() -> None:
    cost = cost_of(
        described(ResourceConfig={"InstanceType": "ml.p5.48xlarge", "InstanceCount": 1}), NOW, {"ml.p5.48xlarge": 50.0}
    )
    assert cost.dollars == pytest.approx(50.0) and "your prices" in str(cost)


def test_a_job_that_has_not_begun_costs_nothing_yet() -> None:
    assert cost_of({"TrainingJobStatus": "InProgress"}, NOW) == Cost(
        0, 0, {"?": 1}, False, False, None, cost_of(described(), NOW).priced
    )
