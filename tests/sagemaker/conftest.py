"""S3, STS and IAM by moto, `hdp serve` where jobs run, and a face before it that can be told to fail."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aws_face import Face, running

from hdp.estimator.engines.local.home import Home
from hdp.estimator.engines.sagemaker.asking import Patience
from hdp.estimator.engines.sagemaker.engine import SageMakerEngine

sys.path.append(str(Path(__file__).parents[1] / "serve"))
sys.path.append(str(Path(__file__).parents[1]))
from own_moto import moto_server
from serve_support import Served, end_all, serving

REGION = "eu-west-1"
KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_EC2_METADATA_DISABLED": "true"}
TRUST = (
    '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"sts:AssumeRole","Principal":{"Service":"%s"}}]}'
)
QUICK = Patience(timedelta(seconds=20), first_seconds=0.02, longest_seconds=0.1)
PATIENT = Patience(timedelta(seconds=90), first_seconds=0.02, longest_seconds=0.1, awaits_credentials=True)


@pytest.fixture(scope="session")
def moto() -> Iterator[str]:
    """URL of a real S3, STS and IAM server, with a role that SageMaker may take and one that it may not."""
    import boto3

    keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing", "region_name": REGION}
    with moto_server() as url:
        iam = boto3.client("iam", endpoint_url=url, **keys)
        iam.create_role(RoleName="Trainer", AssumeRolePolicyDocument=TRUST % "sagemaker.amazonaws.com")
        iam.create_role(RoleName="Lambda", AssumeRolePolicyDocument=TRUST % "lambda.amazonaws.com")
        iam.close()
        yield url


@pytest.fixture
def account(moto: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """An environment in which boto3 finds the account: keys, region, endpoint; and a home for our own files."""
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_SAGEMAKER"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**KEYS, "AWS_DEFAULT_REGION": REGION, "AWS_ENDPOINT_URL": moto}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    monkeypatch.setenv("HDP_HOME", str(tmp_path / "home"))
    return moto


@pytest.fixture
def s3(account: str) -> Iterator[Any]:
    """A client of the same S3."""
    import boto3

    client = boto3.client("s3")
    yield client
    client.close()


@pytest.fixture
def face(account: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Face]:
    """SageMaker and CloudWatch Logs by script."""
    with running() as made:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER", made.url)
        monkeypatch.setenv("AWS_ENDPOINT_URL_CLOUDWATCH_LOGS", made.url)
        yield made


@pytest.fixture
def engine(face: Face) -> SageMakerEngine:
    """The engine before `face`; it is patient for a job that runs, in small steps."""
    return SageMakerEngine(patience=(QUICK, PATIENT))


@pytest.fixture(scope="session")
def serve(moto: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`hdp serve`, in a process of its own."""
    home = tmp_path_factory.mktemp("served")
    with serving(home, moto) as running_serve:
        yield running_serve
    end_all(Home(home))


@pytest.fixture
def jobs(serve: Served, face: Face) -> Face:
    """SageMaker and CloudWatch Logs by `hdp serve`, where jobs really run, behind `face`."""
    face.upstream = serve.endpoint
    return face
