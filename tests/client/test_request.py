"""The request: what each argument becomes, whole."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from hdp.contract.hyperparameters import decode
from hdp.contract.launch import LaunchSpec, from_hyperparameters
from hdp.estimator import Estimator, PyTorch, SpecError, TensorFlow, TrainingInput, naming

from .conftest import IMAGE, ROLE, MemoryEngine

ARCHIVE = "s3://bucket/code/sourcedir.tar.gz"


def training_job(estimator: Estimator, *args: Any, **kwargs: Any) -> dict[str, Any]:
    return dict(estimator.plan(*args, **kwargs).request.training_job)


def test_golden_request_of_the_tensorflow_example(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """4 x ml.p4d.24xlarge, FastFile, mpi 8: v2's request, less its unasked debugger and profiler.

    v2 finds the image by itself, sends an empty custom_mpi_options, and /opt/ml/model as model_dir under mpi.
    """
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    estimator = TensorFlow(
        entry_point="train_tf.py",
        source_dir=ARCHIVE,
        role=ROLE,
        instance_type="ml.p4d.24xlarge",
        instance_count=4,
        framework_version="2.9.1",
        py_version="py39",
        image_uri=IMAGE,
        output_path="s3://bucket/",
        distribution={"mpi": {"enabled": True, "processes_per_host": 8}},
    )
    data = TrainingInput("s3://bucket/cifar10-tfrecord/", input_mode="FastFile")
    assert training_job(estimator, data, job_name="data-parallel-example") == {
        "TrainingJobName": "data-parallel-example",
        "RoleArn": ROLE,
        "AlgorithmSpecification": {
            "TrainingInputMode": "FastFile",
            "TrainingImage": IMAGE,
            "EnableSageMakerMetricsTimeSeries": True,
        },
        "OutputDataConfig": {"S3OutputPath": "s3://bucket/"},
        "StoppingCondition": {"MaxRuntimeInSeconds": 86400},
        "ResourceConfig": {"VolumeSizeInGB": 30, "InstanceCount": 4, "InstanceType": "ml.p4d.24xlarge"},
        "InputDataConfig": [
            {
                "ChannelName": "training",
                "InputMode": "FastFile",
                "DataSource": {
                    "S3DataSource": {
                        "S3DataType": "S3Prefix",
                        "S3Uri": "s3://bucket/cifar10-tfrecord/",
                        "S3DataDistributionType": "FullyReplicated",
                    }
                },
            }
        ],
        "HyperParameters": {
            "model_dir": '"/opt/ml/model"',
            "sagemaker_mpi_enabled": "true",
            "sagemaker_mpi_num_of_processes_per_host": "8",
            "sagemaker_mpi_custom_mpi_options": '""',
            "sagemaker_program": '"train_tf.py"',
            "sagemaker_submit_directory": f'"{ARCHIVE}"',
            "sagemaker_container_log_level": "20",
            "sagemaker_job_name": '"data-parallel-example"',
            "sagemaker_region": '"us-west-2"',
        },
    }


def test_golden_request_of_a_local_job(project: Path, engine: MemoryEngine) -> None:
    """Nothing but a script: no image, no output path, no region, a stand-in for the role."""
    estimator = PyTorch("train.py", engine=engine, hyperparameters={"lr": 0.1})
    made = training_job(estimator, job_name="first-job")
    archive = made["HyperParameters"].pop("sagemaker_submit_directory")
    assert archive.startswith('"file:///bundles/')
    assert made == {
        "TrainingJobName": "first-job",
        "RoleArn": "arn:aws:iam::000000000000:role/local",
        "AlgorithmSpecification": {"TrainingInputMode": "File"},
        "OutputDataConfig": {},
        "StoppingCondition": {"MaxRuntimeInSeconds": 86400},
        "ResourceConfig": {"VolumeSizeInGB": 30, "InstanceCount": 1, "InstanceType": "local"},
        "HyperParameters": {
            "lr": "0.1",
            "sagemaker_program": '"train.py"',
            "sagemaker_container_log_level": "20",
            "sagemaker_job_name": '"first-job"',
        },
    }


def test_every_argument_reaches_its_field(project: Path) -> None:
    """The arguments of table A1, one call: each field of the request that it should be in."""
    estimator = PyTorch(
        "train.py",
        source_dir=ARCHIVE,
        role=ROLE,
        image_uri=IMAGE,
        instance_type="ml.g5.xlarge",
        instance_count=2,
        volume_size=100,
        volume_kms_key="key-1",
        training_plan="arn:aws:sagemaker:us-west-2:123456789012:training-plan/p",
        instance_placement_config={"EnableMultipleJobs": True},
        max_run=3600,
        max_wait=7200,
        use_spot_instances=True,
        max_retry_attempts=3,
        checkpoint_s3_uri="s3://bucket/checkpoints",
        checkpoint_local_path="/opt/ml/checkpoints",
        input_mode="Pipe",
        output_path="s3://bucket/out",
        output_kms_key="key-2",
        disable_output_compression=True,
        tags={"team": "vision"},
        subnets=["subnet-1", "subnet-2"],
        security_group_ids=("sg-1",),
        encrypt_inter_container_traffic=True,
        environment={"LEVEL": "debug"},
        metric_definitions=[{"Name": "loss", "Regex": "loss=(.*)"}],
        enable_sagemaker_metrics=False,
        tensorboard_output_config={"S3OutputPath": "s3://bucket/tb"},
        container_entry_point=["python"],
        container_arguments=["-u"],
        training_repository_access_mode="Vpc",
        training_repository_credentials_provider_arn="arn:aws:lambda:us-west-2:123456789012:function:f",
        enable_remote_debug=True,
        enable_session_tag_chaining=True,
        enable_infra_check=False,
        container_log_level=10,
        model_uri="s3://bucket/model.tar.gz",
    )
    made = training_job(estimator, "s3://bucket/data/", job_name="all")
    assert made["ResourceConfig"] == {
        "InstanceType": "ml.g5.xlarge",
        "InstanceCount": 2,
        "VolumeSizeInGB": 100,
        "VolumeKmsKeyId": "key-1",
        "TrainingPlanArn": "arn:aws:sagemaker:us-west-2:123456789012:training-plan/p",
        "InstancePlacementConfig": {"EnableMultipleJobs": True},
    }
    assert made["StoppingCondition"] == {"MaxRuntimeInSeconds": 3600, "MaxWaitTimeInSeconds": 7200}
    assert made["OutputDataConfig"] == {
        "S3OutputPath": "s3://bucket/out",
        "KmsKeyId": "key-2",
        "CompressionType": "NONE",
    }
    assert made["AlgorithmSpecification"] == {
        "TrainingImage": IMAGE,
        "TrainingInputMode": "Pipe",
        "EnableSageMakerMetricsTimeSeries": False,
        "MetricDefinitions": [{"Name": "loss", "Regex": "loss=(.*)"}],
        "ContainerEntrypoint": ["python"],
        "ContainerArguments": ["-u"],
        "TrainingImageConfig": {
            "TrainingRepositoryAccessMode": "Vpc",
            "TrainingRepositoryAuthConfig": {
                "TrainingRepositoryCredentialsProviderArn": "arn:aws:lambda:us-west-2:123456789012:function:f"
            },
        },
    }
    assert made["InputDataConfig"][1] == {
        "ChannelName": "model",
        "DataSource": {
            "S3DataSource": {
                "S3DataType": "S3Prefix",
                "S3Uri": "s3://bucket/model.tar.gz",
                "S3DataDistributionType": "FullyReplicated",
            }
        },
        "InputMode": "File",
        "ContentType": "application/x-sagemaker-model",
    }
    assert made["HyperParameters"]["sagemaker_container_log_level"] == "10"
    expected = {
        "CheckpointConfig": {"S3Uri": "s3://bucket/checkpoints", "LocalPath": "/opt/ml/checkpoints"},
        "RetryStrategy": {"MaximumRetryAttempts": 3},
        "Tags": [{"Key": "team", "Value": "vision"}],
        "VpcConfig": {"Subnets": ["subnet-1", "subnet-2"], "SecurityGroupIds": ["sg-1"]},
        "Environment": {"LEVEL": "debug"},
        "TensorBoardOutputConfig": {"S3OutputPath": "s3://bucket/tb"},
        "EnableManagedSpotTraining": True,
        "EnableInterContainerTrafficEncryption": True,
        "RemoteDebugConfig": {"EnableRemoteDebug": True},
        "SessionChainingConfig": {"EnableSessionTagChaining": True},
        "InfraCheckConfig": {"EnableInfraCheck": False},
    }
    assert {k: made[k] for k in expected} == expected


def test_a_warm_pool_reaches_its_field(project: Path) -> None:
    """keep_alive_period_in_seconds (not with spot)."""
    estimator = Estimator(IMAGE, ROLE, 1, "ml.m5.xlarge", keep_alive_period_in_seconds=600)
    assert training_job(estimator)["ResourceConfig"]["KeepAlivePeriodInSeconds"] == 600


def test_an_image_alone_gets_the_users_hyperparameters_only(project: Path) -> None:
    """No script: none of the launcher's script hyperparameters, values as plain text."""
    estimator = Estimator(IMAGE, ROLE, 1, "ml.m5.xlarge", hyperparameters={"depth": 3, "mode": "fast"})
    assert training_job(estimator)["HyperParameters"] == {"depth": "3", "mode": "fast"}


def test_without_a_network_code_comes_as_a_channel(project: Path) -> None:
    """As in v2: enable_network_isolation puts the archive into the channel `code`."""
    estimator = Estimator(
        IMAGE, ROLE, 1, "ml.m5.xlarge", entry_point="train.py", source_dir=ARCHIVE, enable_network_isolation=True
    )
    made = training_job(estimator)
    assert made["EnableNetworkIsolation"] is True
    assert made["InputDataConfig"][0]["ChannelName"] == "code"
    assert made["InputDataConfig"][0]["DataSource"]["S3DataSource"]["S3Uri"] == ARCHIVE
    assert decode(made["HyperParameters"]["sagemaker_submit_directory"]) == "/opt/ml/input/data/code/sourcedir.tar.gz"


@pytest.mark.parametrize(
    ("distribution", "launch"),
    [
        (None, LaunchSpec()),
        ({}, LaunchSpec()),
        ({"hdp": {"enabled": False, "processes_per_host": 2}}, LaunchSpec()),
        ({"hdp": {"enabled": True, "processes_per_host": 2}}, LaunchSpec("hdp", 2)),
        (
            {"mpi": {"enabled": True, "processes_per_host": 8, "custom_mpi_options": "-x A=1"}},
            LaunchSpec("mpi", 8, "-x A=1"),
        ),
        ({"torch_distributed": {"enabled": True}}, LaunchSpec("torch_distributed")),
        ({"smdistributed": {"dataparallel": {"enabled": True}}}, LaunchSpec("smdistributed")),
        ({"multi_worker_mirrored_strategy": {"enabled": True}}, LaunchSpec("multi_worker_mirrored_strategy")),
        ({"mpi": {"enabled": False}, "hdp": {"enabled": True}}, LaunchSpec("hdp")),
    ],
)
def test_a_distribution_arrives_in_the_container(
    distribution: dict[str, Any] | None, launch: LaunchSpec, project: Path, engine: MemoryEngine
) -> None:
    """Encoded into the request, decoded by the runtime's function."""
    made = training_job(PyTorch("train.py", engine=engine, distribution=distribution))
    assert from_hyperparameters({k: decode(v) for k, v in made["HyperParameters"].items()}) == launch


@pytest.mark.parametrize(
    ("model_dir", "distribution", "sent"),
    [
        (None, None, "s3://bucket/out/job-1/model"),
        (None, {"mpi": {"enabled": True}}, "/opt/ml/model"),
        ("s3://bucket/elsewhere", None, "s3://bucket/elsewhere"),
        (False, None, None),
    ],
)
def test_model_dir_is_v2s(model_dir: Any, distribution: Any, sent: str | None, project: Path) -> None:
    """TensorFlow's --model_dir on SageMaker."""
    estimator = TensorFlow(
        "train.py",
        source_dir=ARCHIVE,
        role=ROLE,
        image_uri=IMAGE,
        instance_type="ml.p3.2xlarge",
        output_path="s3://bucket/out",
        model_dir=model_dir,
        distribution=distribution,
    )
    values = training_job(estimator, job_name="job-1")["HyperParameters"]
    assert (decode(values["model_dir"]) if "model_dir" in values else None) == sent


def test_a_region_is_not_sent_where_there_is_none(
    project: Path, engine: MemoryEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AWS_REGION is set, yet the job runs on this machine."""
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    assert "sagemaker_region" not in training_job(PyTorch("train.py", engine=engine))["HyperParameters"]


def test_engine_options_are_no_hyperparameters(project: Path, engine: MemoryEngine) -> None:
    """They travel beside the request, with the engine's defaults."""
    request = PyTorch("train.py", engine=engine, engine_options={"speed": 3}).plan().request
    assert request.engine_options == {"speed": 3}
    assert "speed" not in json.dumps(dict(request.training_job))


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        (
            "bad_name",
            "job_name='bad_name': a job's name has letters, digits and inner '-' only, and begins with no '-'; "
            "did you mean 'bad-name'?",
        ),
        ("x" * 64, f"job_name='{'x' * 64}' has 64 characters; at most 63: shorten it"),
        ("", "job_name='': a job's name has letters, digits and inner '-' only, and begins with no '-'"),
        ("-a", "job_name='-a': a job's name has letters, digits and inner '-' only, and begins with no '-'; did you"),
        ("../x", "job_name='../x': a job's name has letters, digits"),
        ("a\n", "job_name='a\\n': a job's name has letters, digits"),
        (3, "job_name is 3 (int); expected text"),
    ],
)
def test_a_bad_job_name_is_refused(name: Any, fault: str, project: Path, home: Path) -> None:
    """fit on the local engine: one line, no folder made."""
    with pytest.raises(SpecError) as raised:
        PyTorch("train.py").fit(job_name=name)
    assert len(raised.value.faults) == 1
    assert raised.value.faults[0].startswith(fault)
    assert not home.exists()


def test_63_characters_are_fine(project: Path, engine: MemoryEngine) -> None:
    """The limit itself."""
    assert training_job(PyTorch("train.py", engine=engine), job_name="x" * 63)["TrainingJobName"] == "x" * 63


def test_a_made_name_has_the_time_in_gmt() -> None:
    """<base>-YYYY-MM-DD-HH-MM-SS-mmm; 14:05 at +02:00 is 12:05."""
    when = datetime(2026, 1, 2, 14, 5, 6, 789000, tzinfo=timezone(timedelta(hours=2)))
    assert naming.dated("digits", when) == "digits-2026-01-02-12-05-06-789"


def test_a_long_base_is_cut_to_63() -> None:
    """No hyphen doubles at the cut."""
    when = datetime(2026, 1, 2, tzinfo=timezone.utc)
    made = naming.dated("a" * 38 + "-" + "b" * 40, when)
    assert made == "a" * 38 + "-2026-01-02-00-00-00-000"
    assert naming.fault(made) is None


@pytest.mark.parametrize(
    ("base", "image", "script", "name"),
    [
        ("My_base name", IMAGE, "train.py", "My-base-name"),
        (None, "123.dkr.ecr.us-west-2.amazonaws.com/team/train-cpu:1.0", "x.py", "train-cpu"),
        (None, None, "src/train_tf.py", "train-tf"),
        ("___", None, None, "job"),
    ],
)
def test_a_base_name_is_made_fit(base: str | None, image: str | None, script: str | None, name: str) -> None:
    """base_job_name, else the image's repository, else the script; without what a job name can't have."""
    assert naming.base_name(base, image, script) == name
