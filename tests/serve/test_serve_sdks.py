"""SageMaker's own SDKs, each in an environment of its own, train the digits example through `hdp serve`."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serve_support import GROUP, Served, end_all, environment, serving

from hdp.estimator.engines.local import hostns
from hdp.estimator.engines.local.home import Home

pytest.importorskip("torch", reason="torch isn't installed: pip install 'hdp-train[torch]'")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/digits_torch"
TRUST = (
    '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "sts:AssumeRole", '
    '"Principal": {"Service": "sagemaker.amazonaws.com"}}]}'
)
NO_TELEMETRY = 'SchemaVersion: "1.0"\nSageMaker:\n  PythonSDK:\n    Modules:\n      TelemetryOptOut: true\n'


def interpreter(version: str, remedy: str) -> str:
    """The Python of the environment that $HDP_SAGEMAKER_V2 or _V3 names, else of the one below build."""
    folder = os.environ.get(f"HDP_SAGEMAKER_{version.upper()}", str(ROOT / f"build/sagemaker-{version}"))
    python = Path(folder, "bin/python")
    if not python.exists():
        pytest.skip(f"no SageMaker SDK {version} in {folder}: {remedy}")
    return str(python)


@pytest.fixture(scope="module")
def data(s3_endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The digits in the bucket, and a role."""
    import boto3

    sys.path.insert(0, str(EXAMPLE))
    from prepare import prepare

    folder = tmp_path_factory.mktemp("digits")
    prepare(folder)
    s3, iam = boto3.client("s3"), boto3.client("iam")
    for path in folder.rglob("*.npz"):
        s3.upload_file(str(path), "bucket", f"digits/{path.relative_to(folder)}")
    iam.create_role(RoleName="Trainer", AssumeRolePolicyDocument=TRUST)
    yield
    s3.close()
    iam.close()


def run(python: str, script: str, served: Served, s3_endpoint: str, tmp_path: Path) -> tuple[str, dict[str, str]]:
    """What the script printed, and its result."""
    (tmp_path / "config.yaml").write_text(NO_TELEMETRY)
    leading = {
        "AWS_ENDPOINT_URL_SAGEMAKER": served.endpoint,
        "AWS_ENDPOINT_URL_CLOUDWATCH_LOGS": served.endpoint,
        "SAGEMAKER_USER_CONFIG_OVERRIDE": str(tmp_path / "config.yaml"),
        "SAGEMAKER_VALIDATE_ROLE": "false",  # v3 asks IAM for what moto's can't answer
    }
    command = [python, "-I", str(Path(__file__).with_name(script)), str(EXAMPLE)]
    environ = {**environment(s3_endpoint), **leading}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=580, check=False)
    result = re.search(r"^RESULT (.*)$", done.stdout, re.MULTILINE)
    assert done.returncode == 0 and result, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout + done.stderr, json.loads(result[1])


def objects(prefix: str) -> list[str]:
    import boto3

    s3 = boto3.client("s3")
    found = [entry["Key"] for entry in s3.list_objects_v2(Bucket="bucket", Prefix=prefix).get("Contents", [])]
    s3.close()
    return found


def test_v2s_pytorch_estimator_trains(
    data: None, sagemaker: Any, served: Served, s3_endpoint: str, tmp_path: Path
) -> None:
    """`fit` with SMDDP's distribution on two hosts: logs followed, accuracy 0.95, the same weights, `attach`."""
    python = interpreter("v2", "sh tools/sdk.sh makes it")
    printed, result = run(python, "sdk_v2.py", served, s3_endpoint, tmp_path)
    name = result["name"]
    assert result["model"] == result["attached"] == f"s3://bucket/{name}/output/model.tar.gz"
    assert f"{name}/output/model.tar.gz" in objects(name)
    (accuracy,) = re.findall(r"\[algo-1:0\] test accuracy ([0-9.]+)", printed)
    assert float(accuracy) >= 0.95
    weights = re.findall(r"\[(algo-\d:\d)\] weights sha256 (\w+)", printed)
    assert sorted(rank for rank, _ in weights) == ["algo-1:0", "algo-2:1"] and len({w for _, w in weights}) == 1
    assert "Completed - Training job completed" in printed and "Billable seconds" in printed
    described = sagemaker.describe_training_job(TrainingJobName=name)
    assert described["HyperParameters"]["sagemaker_distributed_dataparallel_enabled"] == "true"
    assert sagemaker.list_tags(ResourceArn=described["TrainingJobArn"])["Tags"] == [{"Key": "team", "Value": "vision"}]


def test_v3s_model_trainer_trains(
    data: None, sagemaker: Any, logs: Any, served: Served, s3_endpoint: str, tmp_path: Path
) -> None:
    """`train` with torchrun on two hosts: its own drivers run, and both hosts have the same weights."""
    python = interpreter("v3", "python -m venv DIR; DIR/bin/pip install 'sagemaker>=3'; export HDP_SAGEMAKER_V3=DIR")
    if shutil.which("torchrun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}") is None:
        pytest.skip("torchrun isn't in PATH, which v3's driver calls")
    _, result = run(python, "sdk_v3.py", served, s3_endpoint, tmp_path)
    assert result["model"] == f"s3://bucket/v3/{result['name']}/output/model.tar.gz"
    assert f"v3/{result['name']}/output/model.tar.gz" in objects("v3/")
    events = logs.filter_log_events(
        logGroupName=GROUP, logStreamNamePrefix=f"{result['name']}/", filterPattern='"weights sha256"'
    )["events"]
    weights = [event["message"].split()[-1] for event in events]
    assert len(weights) == 2 and len(set(weights)) == 1
    entry_point = sagemaker.describe_training_job(TrainingJobName=result["name"])["AlgorithmSpecification"]
    assert entry_point["ContainerEntrypoint"] == ["/bin/bash"]


def test_what_our_own_client_carries_runs(
    data: None, s3_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The uploaded wheel starts in hosts that see /opt/ml as a container does: 2 x 2 ranks, the same weights on all.

    The same job, under the runtime that is here, gives these weights too.
    """
    from hdp.estimator import PyTorch

    if hostns.probe().means == "none":
        pytest.skip(f"hosts can't have an /opt/ml of their own: {hostns.probe().reason}")
    weights = set()
    for options in (("--run-carried",), ()):
        home = tmp_path / f"home{len(options)}"
        with serving(home, s3_endpoint, *options) as here:
            monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
            for service in ("SAGEMAKER", "CLOUDWATCH_LOGS"):
                monkeypatch.setenv(f"AWS_ENDPOINT_URL_{service}", here.endpoint)
            estimator = PyTorch(
                entry_point="train.py", source_dir=str(EXAMPLE), role="Trainer",
                image_uri="000000000000.dkr.ecr.eu-west-1.amazonaws.com/train:1",
                instance_type="ml.c5.xlarge", instance_count=2,
                distribution={"hdp": {"enabled": True, "processes_per_host": 2}}, hyperparameters={"max-steps": 20},
            )  # fmt: skip
            channels = {name: f"s3://bucket/digits/{name}/" for name in ("training", "test")}
            job = estimator.fit(channels, logs=None)
            log = [line.text for line in job.engine.logs(job.name, {}).lines]
        said = [line.split()[-1] for line in log if "weights sha256" in line]
        assert len(said) == 4, log
        weights.update(said)
        assert any("start.py" in line for line in log) is bool(options)
        end_all(Home(home))
    assert len(weights) == 1
