"""`hdp serve`, an S3 server beside it, and unmodified boto3 clients; one of each for a module's tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serve_support import Served, archive, end_all, environment, serving

from hdp.estimator.engines.local.home import Home

sys.path.append(str(Path(__file__).parents[1]))
from own_moto import moto_server

TRAIN = """
    import json, os, sys, time
    from pathlib import Path

    host = os.environ["SM_CURRENT_HOST"]
    print("trained on", Path(os.environ["SM_CHANNEL_TRAINING"], "data.txt").read_text(), flush=True)
    print("type", json.loads(os.environ["SM_RESOURCE_CONFIG"])["current_instance_type"], flush=True)
    Path(os.environ["SM_MODEL_DIR"], f"{host}.bin").write_text(host)
"""
LOOP = """
    import signal, sys, time

    print("looping", flush=True)
    while True:
        time.sleep(0.1)
"""
RESUME = """
    import os
    from pathlib import Path

    folder = Path(os.environ["SM_CHECKPOINT_DIR"])
    before = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    print("found", before, flush=True)
    (folder / "deep").mkdir(exist_ok=True)
    (folder / "deep" / f"{os.environ['TRAINING_JOB_NAME']}.pt").write_text("weights")
"""
FAIL = """
    raise ValueError("no such luck")
"""


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    """A real S3 server (moto; STS and IAM are there too), with a bucket that has data and scripts."""
    import boto3

    with moto_server() as url, pytest.MonkeyPatch.context() as patch:
        for key, value in environment(url).items():
            if key.startswith("AWS_"):
                patch.setenv(key, value)
        s3 = boto3.client("s3")
        s3.create_bucket(Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
        s3.put_object(Bucket="bucket", Key="data/data.txt", Body=b"digits")
        for name, script in {"train": TRAIN, "loop": LOOP, "fail": FAIL, "resume": RESUME}.items():
            s3.put_object(Bucket="bucket", Key=f"code/{name}.tar.gz", Body=archive({"train.py": script}))
        yield url
        s3.close()


@pytest.fixture(scope="module")
def served(s3_endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`hdp serve` in a process of its own."""
    home = tmp_path_factory.mktemp("home")
    with serving(home, s3_endpoint) as running:
        yield running
    end_all(Home(home))


@pytest.fixture(scope="module")
def sagemaker(served: Served) -> Iterator[Any]:
    """boto3's client of SageMaker."""
    client = served.client("sagemaker")
    yield client
    client.close()


@pytest.fixture(scope="module")
def logs(served: Served) -> Iterator[Any]:
    """boto3's client of CloudWatch Logs."""
    client = served.client("logs")
    yield client
    client.close()
