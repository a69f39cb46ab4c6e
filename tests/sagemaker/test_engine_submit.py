"""From `fit` to a job: what is looked up, uploaded once, made once, and removed; over real HTTP, jobs by script."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aws_face import Face, Fault
from scripted_jobs import IMAGE, ScriptedJobs

from hdp.contract.errors import EngineError, SpecError
from hdp.estimator import Estimator, PyTorch, TrainingJob
from hdp.estimator.engines.sagemaker.asking import Patience
from hdp.estimator.engines.sagemaker.engine import SageMakerEngine

HDP = {"hdp": {"enabled": True, "processes_per_host": 2}}
BUCKET = "sagemaker-eu-west-1-123456789012"


@pytest.fixture
def script(tmp_path: Path) -> str:
    """A training script that no other test has."""
    file = tmp_path / "train.py"
    file.write_text(f"print({str(tmp_path)!r})\n")
    return str(file)


def estimator(script: str, engine: SageMakerEngine, **more: Any) -> PyTorch:
    return PyTorch(
        script, **{"role": "Trainer", "instance_type": "ml.m5.xlarge", "image_uri": IMAGE, "engine": engine, **more}
    )


def keys(s3: Any, bucket: str = BUCKET) -> list[str]:
    return [item["Key"] for item in s3.list_objects_v2(Bucket=bucket).get("Contents", ())]


def test_a_roles_name_and_the_default_bucket_are_looked_up(script: str, engine: SageMakerEngine, face: Face) -> None:
    """No output_path, role by name. Expected: IAM's ARN, v2's bucket, made if need be, in every place."""
    jobs = ScriptedJobs().on(face)
    estimator(script, engine).fit(wait=False, job_name="digits")
    (asked,) = jobs.created
    assert asked["RoleArn"] == "arn:aws:iam::123456789012:role/Trainer"
    assert asked["OutputDataConfig"]["S3OutputPath"] == f"s3://{BUCKET}/"
    assert "default-bucket" not in str(asked) and "000000000000" not in str(asked)
    assert f"s3://{BUCKET}/hdp-code/" in asked["HyperParameters"]["sagemaker_submit_directory"]


def test_what_is_sent_is_what_was_planned(script: str, engine: SageMakerEngine, face: Face) -> None:
    """With an ARN and a bucket of the user's nothing is a stand-in. Expected: the plan's own request, to the letter."""
    jobs = ScriptedJobs().on(face)
    made = estimator(script, engine, role="arn:aws:iam::123456789012:role/Trainer", output_path="s3://mine/out")
    engine.aws.client("s3").create_bucket(Bucket="mine", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    planned = made.plan(job_name="same").request.training_job
    made.fit(wait=False, job_name="same")
    assert jobs.created == [planned]


def test_code_is_uploaded_once_for_two_fits(
    script: str, engine: SageMakerEngine, face: Face, s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two jobs of the same code and runtime. Expected: each object is put once, but for each job's own secret."""
    ScriptedJobs().on(face)
    sent: list[str] = []
    engine.aws.client("s3").meta.events.register("before-call.s3.PutObject", lambda params, **_: sent.append(
        params["url_path"] if "url_path" in params else params["url"]
    ))  # fmt: skip
    made = estimator(script, engine, distribution=HDP)
    made.fit(wait=False, job_name="first")
    once = list(sent)
    made.fit(wait=False, job_name="second")
    assert sum("hdp-code" in path for path in once) == 1
    assert [path.partition("hdp-")[2] for path in sent[len(once) :]] == ["secret/second/secret"]


def test_the_secret_is_the_jobs_own_and_goes_with_it(script: str, engine: SageMakerEngine, face: Face, s3: Any) -> None:
    """Its object is there while the job runs, differs by job, and is removed when the end is seen."""
    jobs = ScriptedJobs().on(face)
    made = estimator(script, engine, distribution=HDP)
    first, second = (made.fit(wait=False, job_name=name) for name in ("one", "two"))
    contents = [s3.get_object(Bucket=BUCKET, Key=f"hdp-secret/{n}/secret")["Body"].read() for n in ("one", "two")]
    assert len(set(contents)) == 2 and all(len(content) == 64 for content in contents)
    assert contents[0].decode() not in str(jobs.created)
    assert "hdp-secret/one/secret" in keys(s3)
    assert first.status == "InProgress" and "hdp-secret/one/secret" in keys(s3)
    jobs.end("one", "Completed")
    assert first.status == "Completed" and "hdp-secret/one/secret" not in keys(s3)
    assert second.status == "InProgress" and "hdp-secret/two/secret" in keys(s3)


def test_an_object_that_is_not_ours_is_never_removed(engine: SageMakerEngine, face: Face, s3: Any) -> None:
    """Somebody else's job has a channel that is called as ours, with a secret in it. Expected: it stays."""
    s3.create_bucket(Bucket="theirs", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    s3.put_object(Bucket="theirs", Key="keys/secret", Body=b"theirs")
    source = {"S3DataType": "S3Prefix", "S3Uri": "s3://theirs/keys/"}
    channel = {"ChannelName": "hdp_secret", "DataSource": {"S3DataSource": source}}
    jobs = ScriptedJobs().on(face)
    jobs.add("theirs", InputDataConfig=[channel])
    jobs.end("theirs", "Completed")
    assert TrainingJob.attach("theirs", engine).status == "Completed"
    assert keys(s3, "theirs") == ["keys/secret"]


def test_credentials_that_expired_are_refused_at_the_start(script: str, engine: SageMakerEngine, face: Face) -> None:
    """CreateTrainingJob says ExpiredToken, twice. Expected: after one renewal, an error with the remedy."""
    ScriptedJobs().on(face)
    face.inject("CreateTrainingJob", Fault(2, "ExpiredTokenException", "The security token included is expired"))
    with pytest.raises(EngineError, match=r"create_training_job was refused: ExpiredToken(.|\n)*`aws sso login`"):
        estimator(script, engine).fit(wait=False, job_name="expired")


def test_a_create_that_is_refused_leaves_no_secret(script: str, engine: SageMakerEngine, face: Face, s3: Any) -> None:
    """The quota is too small. Expected: the service's words, the remedy, and no secret left on S3."""
    ScriptedJobs().on(face)
    message = "The account-level service limit 'ml.m5.xlarge for training job usage' is 0 Instances"
    face.inject("CreateTrainingJob", Fault(1, "ResourceLimitExceeded", message))
    with pytest.raises(EngineError, match=r"service limit 'ml.m5.xlarge.*\n.*Service Quotas"):
        estimator(script, engine, distribution=HDP).fit(wait=False, job_name="limited")
    assert "hdp-secret/limited/secret" not in keys(s3)


def test_a_create_that_was_throttled_to_the_end_leaves_no_secret(
    script: str, engine: SageMakerEngine, face: Face, s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every call is answered, and none makes the job. Expected: the service's words, and no secret left on S3."""
    ScriptedJobs().on(face)
    face.inject("CreateTrainingJob", Fault(10_000, "ThrottlingException", "Rate exceeded"))
    monkeypatch.setattr(engine, "_brief", Patience(timedelta(seconds=0.3), first_seconds=0.05))
    with pytest.raises(EngineError, match="create_training_job was refused: ThrottlingException: Rate exceeded"):
        estimator(script, engine, distribution=HDP).fit(wait=False, job_name="slow")
    assert "hdp-secret/slow/secret" not in keys(s3)


def test_a_second_job_of_a_name_leaves_the_firsts_secret(
    script: str, engine: SageMakerEngine, face: Face, s3: Any
) -> None:
    """The first one may still be about to fetch it, or does so again after an interruption. Expected: as it was."""
    ScriptedJobs().on(face)
    made = estimator(script, engine, distribution=HDP)
    made.fit(wait=False, job_name="twice")
    first = s3.get_object(Bucket=BUCKET, Key="hdp-secret/twice/secret")["Body"].read()
    with pytest.raises(SpecError, match="job_name='twice' is taken"):
        made.fit(wait=False, job_name="twice")
    assert s3.get_object(Bucket=BUCKET, Key="hdp-secret/twice/secret")["Body"].read() == first


def test_a_lost_answer_makes_no_second_job(script: str, engine: SageMakerEngine, face: Face) -> None:
    """The job is made, but the connection breaks before the answer. Expected: found by its name, and made once."""
    jobs = ScriptedJobs().on(face)
    face.inject("CreateTrainingJob", Fault(1, lost=True))
    job = estimator(script, engine).fit(wait=False, job_name="lost")
    assert (job.status, len(jobs.created), face.calls["CreateTrainingJob"]) == ("InProgress", 1, 1)


def test_a_server_error_that_made_no_job_is_tried_again(script: str, engine: SageMakerEngine, face: Face) -> None:
    """500 twice, throttled twice. Expected: one job, at the fifth call."""
    jobs = ScriptedJobs().on(face)
    face.inject("CreateTrainingJob", Fault(2, "InternalFailure", "sorry", 500))
    face.inject("CreateTrainingJob", Fault(2, "ThrottlingException", "Rate exceeded"))
    estimator(script, engine).fit(wait=False, job_name="stormy")
    assert (len(jobs.created), face.calls["CreateTrainingJob"]) == (1, 5)


def test_a_name_that_another_job_has_is_refused(script: str, engine: SageMakerEngine, face: Face) -> None:
    jobs = ScriptedJobs().on(face)
    jobs.add("taken")
    with pytest.raises(SpecError, match="job_name='taken' is taken by an earlier job of this account and region"):
        estimator(script, engine).fit(wait=False, job_name="taken")


def test_a_name_of_another_job_is_not_ours_after_a_lost_answer(
    script: str, engine: SageMakerEngine, face: Face
) -> None:
    """Somebody else's job of this name came first, and our first call had no answer. Expected: still refused."""
    jobs = ScriptedJobs().on(face)
    jobs.add("taken", HyperParameters={"theirs": "1"})
    face.inject("CreateTrainingJob", Fault(1, "InternalFailure", "sorry", 500))
    with pytest.raises(SpecError, match="job_name='taken' is taken"):
        estimator(script, engine).fit(wait=False, job_name="taken")


def test_a_dry_run_sends_nothing(script: str, engine: SageMakerEngine, face: Face, moto: str, s3: Any) -> None:
    """fit(dry_run=True) without credentials or network would do: no call of any service, and the plan comes back."""
    ScriptedJobs().on(face)

    def refuse(**_: Any) -> None:
        raise AssertionError("a dry run called a service")

    for service in ("s3", "sts", "iam", "sagemaker", "logs"):
        engine.aws.client(service).meta.events.register("before-send", refuse)
    plan = estimator(script, engine, distribution=HDP).fit({"training": "s3://b/x/"}, dry_run=True, job_name="dry")
    assert plan.request.name == "dry" and not face.calls


def test_a_users_session_decides_region_and_keys(script: str, face: Face) -> None:
    """boto_session of another region and key. Expected: its region's bucket, its key in the signatures."""
    import boto3

    ScriptedJobs().on(face)
    session = boto3.Session("other-key", "secret", region_name="us-east-1")
    made = PyTorch(script, role="Trainer", instance_type="ml.m5.xlarge", image_uri=IMAGE, boto_session=session)
    plan = made.plan(job_name="elsewhere")
    assert plan.request.training_job["HyperParameters"]["sagemaker_region"] == '"us-east-1"'
    made.fit(wait=False, job_name="elsewhere")
    assert set(face.keys) == {"other-key"}
    attached = TrainingJob.attach("elsewhere", engine="sagemaker", boto_session=session)
    assert attached.describe()["OutputDataConfig"]["S3OutputPath"] == "s3://sagemaker-us-east-1-123456789012/"


def test_a_session_for_this_machine_is_refused(script: str) -> None:
    with pytest.raises(SpecError, match="boto_session is for the sagemaker engine, and this is local; leave it out"):
        PyTorch(script, boto_session=object())


def test_a_profile_that_does_not_exist_is_a_fault(script: str, account: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(SpecError, match=r"profile \(nobody\) could not be found; check AWS_PROFILE"):
        PyTorch(script, role="Trainer", instance_type="ml.m5.xlarge", image_uri=IMAGE)


def test_the_region_of_a_profile_counts(
    script: str, account: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As boto3's users expect, and offline: the plan has it."""
    config = tmp_path / "config"
    config.write_text("[profile far]\nregion = ap-south-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_PROFILE", "far")
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    plan = PyTorch(script, role="Trainer", instance_type="ml.m5.xlarge", image_uri=IMAGE).plan()
    assert plan.request.training_job["HyperParameters"]["sagemaker_region"] == '"ap-south-1"'


def test_an_unknown_engine_option_is_refused(script: str, account: str) -> None:
    with pytest.raises(SpecError, match=r"engine_options\.runtme is unknown; did you mean 'runtime'"):
        Estimator(IMAGE, "Trainer", 1, "ml.m5.xlarge", engine_options={"runtme": "image"})


def test_an_outage_while_fit_waits_leaves_the_handle(
    script: str, engine: SageMakerEngine, face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made, and then nothing answers for longer than patience. Expected: the way back, and a handle that works."""
    ScriptedJobs().on(face)
    monkeypatch.setattr(engine, "_long", Patience(timedelta(seconds=0.3), first_seconds=0.05))
    face.inject("DescribeTrainingJob", Fault(10_000, "InternalFailure", "sorry", 500))
    made = estimator(script, engine)
    with pytest.raises(EngineError, match=r"job out runs on\. Take it up again: TrainingJob\.attach\('out', engine="):
        made.fit(job_name="out", logs=None)
    face.faults.clear()
    assert made.latest_training_job is not None and made.latest_training_job.status == "InProgress"
