"""What is said before a job is paid for: role, buckets, regions, data, devices. S3, STS and IAM are real servers."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from scripted_jobs import IMAGE

from hdp.contract import advice
from hdp.contract.errors import SpecError
from hdp.estimator import PyTorch, TrainingInput
from hdp.estimator.engines.sagemaker.asking import Patience
from hdp.estimator.preflight import Preflight

HDP = {"hdp": {"enabled": True, "processes_per_host": 8}}
ARN = "arn:aws:iam::123456789012:role/"


@pytest.fixture
def script(tmp_path: Path) -> str:
    file = tmp_path / "train.py"
    file.write_text("print('hello')\n")
    return str(file)


@pytest.fixture
def data(s3: Any) -> str:
    """A bucket of this test's region, with three objects."""
    bucket = "data-of-preflight"
    if bucket not in [b["Name"] for b in s3.list_buckets()["Buckets"]]:
        s3.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
        for i in range(3):
            s3.put_object(Bucket=bucket, Key=f"three/{i}", Body=b"x" * 10)
        s3.put_object(Bucket=bucket, Key="three/", Body=b"")
    return bucket


def look(script: str, inputs: object = None, **more: Any) -> Preflight:
    arguments = {"role": "Trainer", "instance_type": "ml.m5.xlarge", "image_uri": IMAGE, **more}
    return PyTorch(script, **arguments).preflight(inputs)


def test_a_job_that_will_run_has_nothing_said_against_it(script: str, data: str) -> None:
    found = look(script, f"s3://{data}/three/", output_path=f"s3://{data}/out")
    assert found.ok and str(found) == "nothing to say against it"


def test_every_fault_comes_at_once(script: str, data: str) -> None:
    """A role, a bucket and a prefix that don't exist. Expected: three lines, and what to do in each."""
    inputs = {"training": f"s3://{data}/nothing/", "test": "s3://no-such-bucket-here/x/"}
    assert look(script, inputs, role="Nobody").faults == (
        "role 'Nobody': the account has no IAM role of that name; check it",
        "inputs['test']: the bucket no-such-bucket-here doesn't exist; check its name",
        f"inputs['training']: there is no object at s3://{data}/nothing/; check the prefix",
    )


@pytest.mark.parametrize("distribution", [None, HDP], ids=["fetched", "carried"])
def test_an_archive_that_is_not_there_is_named(
    distribution: dict[str, Any] | None, script: str, data: str, s3: Any
) -> None:
    """source_dir on S3, once where nothing is and once where something is."""
    s3.put_object(Bucket=data, Key="code/there.tar.gz", Body=b"x")
    arguments = {"source_dir": f"s3://{data}/code/gone.tar.gz", "distribution": distribution}
    assert look("train.py", **arguments).faults == (
        f"source_dir: there is no object at s3://{data}/code/gone.tar.gz; check the key",
    )
    assert look("train.py", **{**arguments, "source_dir": f"s3://{data}/code/there.tar.gz"}).ok


def test_fit_refuses_what_preflight_finds(script: str, data: str) -> None:
    """Expected: SpecError that says that nothing was started, before anything is uploaded."""
    estimator = PyTorch(script, role="Trainer", instance_type="ml.m5.xlarge", image_uri=IMAGE)
    with pytest.raises(SpecError, match=r"seen from sagemaker; nothing was started:\n.*there is no object at"):
        estimator.fit(f"s3://{data}/nothing/")


def test_what_plan_refuses_is_among_the_faults(script: str, account: str) -> None:
    """101 hyperparameters and a misspelt channel. Expected: as `plan` says them, and no network is asked."""
    found = look(script, {"tra ining": "s3://b/x/"}, hyperparameters=None)
    assert len(found.faults) == 1 and "tra ining" in found.faults[0]


def test_a_bucket_of_another_region_is_a_fault(script: str, account: str) -> None:
    """The job is in eu-west-1, the bucket in us-west-2. Expected: both regions, and both remedies."""
    import boto3

    there = boto3.client("s3", region_name="us-west-2")
    there.create_bucket(Bucket="far-away", CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    there.close()
    (fault,) = look(script, output_path="s3://far-away/out").faults
    assert fault == (
        "output_path: the bucket far-away is in us-west-2, the job in eu-west-1; a job's buckets must be in its "
        "region: copy the data, or set AWS_REGION=us-west-2"
    )


def test_a_role_that_sagemaker_may_not_take_is_a_warning(script: str, account: str) -> None:
    (warning,) = look(script, role="Lambda").warnings
    assert "role 'Lambda': its trust policy doesn't name sagemaker.amazonaws.com" in warning


def test_a_role_of_another_account_is_a_warning(script: str, account: str) -> None:
    (warning,) = look(script, role="arn:aws:iam::999999999999:role/Trainer").warnings
    assert "is of account 999999999999, and you are in account 123456789012" in warning


def test_fewer_objects_than_hosts_by_key_are_named(script: str, data: str) -> None:
    """Three objects for five hosts; the folder's marker is no object. Expected: two hosts get none."""
    channel = TrainingInput(f"s3://{data}/three/", "ShardedByS3Key")
    (warning,) = look(script, {"training": channel}, instance_count=5).warnings
    assert warning == "inputs['training']: 3 files for 5 hosts by ShardedByS3Key: 2 hosts get none"


def test_many_small_objects_in_fastfile_are_named(
    script: str, s3: Any, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20 objects of 2 bytes, where 20 are many. Expected: what to do about it."""
    monkeypatch.setattr(advice, "MANY", 20)
    for i in range(20):
        s3.put_object(Bucket=data, Key=f"small/{i}", Body=b"xy")
    channel = TrainingInput(f"s3://{data}/small/", input_mode="FastFile")
    (warning,) = look(script, {"training": channel}).warnings
    assert warning.startswith("inputs['training']: 20 files of 2 B, read in shuffled order: pack them into files of")


@pytest.mark.parametrize(
    ("kind", "ranks", "count", "expected"),
    [
        ("ml.p4d.24xlarge", 4, 2, "ml.p4d.24xlarge has 8 GPUs, and processes_per_host is 4: 4 are paid for and idle"),
        ("ml.g5.xlarge", 2, 1, "ml.g5.xlarge has 1 GPUs, and processes_per_host is 2: ranks share GPUs, which NCCL"),
        ("ml.g5.xlarge", 1, 2, "ml.g5.xlarge has no EFA: between hosts everything goes over TCP"),
    ],
)
def test_ranks_that_do_not_fit_the_devices_are_named(
    kind: str, ranks: int, count: int, expected: str, script: str, account: str
) -> None:
    distribution = {"torch_distributed": {"enabled": True, "processes_per_host": ranks}}
    found = look(script, instance_type=kind, instance_count=count, distribution=distribution)
    assert [line for line in found.warnings if line.startswith(expected)]


def test_without_credentials_that_alone_is_said(script: str, account: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    (fault,) = look(script).faults
    assert fault.startswith("credentials: sts get_caller_identity was refused: NoCredentialsError")
    assert "check AWS_PROFILE" in fault


def test_what_cannot_be_reached_is_a_warning(script: str, account: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network without a way to IAM and STS, as private ones are. Expected: warnings alone, each with its remedy."""
    for service in ("IAM", "STS"):
        monkeypatch.setenv(f"AWS_ENDPOINT_URL_{service}", "http://127.0.0.1:9")
    quick = Patience(timedelta(seconds=0.1), first_seconds=0.05)
    monkeypatch.setattr("hdp.estimator.engines.sagemaker.preflight.GLANCE", quick)
    found = look(script, role=f"{ARN}Trainer")
    assert found.ok
    assert found.warnings[0].startswith("the account couldn't be asked for: sts get_caller_identity: no answer for")
    assert found.warnings[1].startswith("role 'Trainer' couldn't be looked at: iam get_role: no answer")
    assert all("check the network" in line for line in found.warnings)


def test_nothing_is_made_or_sent(script: str, s3: Any, data: str) -> None:
    """The default bucket isn't there yet, in a region of its own. Expected: still not after a look."""
    import boto3

    session = boto3.Session("testing", "testing", region_name="sa-east-1")
    assert look(script, boto_session=session).ok
    assert "sagemaker-sa-east-1-123456789012" not in [b["Name"] for b in s3.list_buckets()["Buckets"]]


def test_on_this_machine_there_is_nothing_to_look_at(script: str, account: str) -> None:
    assert PyTorch(script).preflight().ok
