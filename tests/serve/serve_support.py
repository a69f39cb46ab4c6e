"""What the tests of `hdp serve` share: a real one in a process of its own, and job requests for it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hdp.contract.errors import EngineError
from hdp.estimator.engines.base import JobRequest
from hdp.estimator.engines.local import processes, store
from hdp.estimator.engines.local.home import Home, JobDir

ROLE = "arn:aws:iam::000000000000:role/Trainer"
IMAGE = "000000000000.dkr.ecr.eu-west-1.amazonaws.com/train:1"
GROUP = "/aws/sagemaker/TrainingJobs"
KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "eu-west-1"}


@dataclass(frozen=True)
class Served:
    """A running `hdp serve`."""

    endpoint: str
    home: Path
    process: subprocess.Popen[str]

    def client(self, service: str) -> Any:
        """An unmodified boto3 client that talks to it. Nothing is tried twice, so that every answer is seen."""
        import boto3
        from botocore.config import Config

        return boto3.client(
            service,
            endpoint_url=self.endpoint,
            region_name=KEYS["AWS_DEFAULT_REGION"],
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
            config=Config(retries={"total_max_attempts": 1}),
        )


def environment(s3_endpoint: str | None = None) -> dict[str, str]:
    """This process's environment, with keys, a region, and where S3 and the services beside it are."""
    others = {"AWS_ENDPOINT_URL": s3_endpoint} if s3_endpoint else {}
    clean = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
    return {**clean, **KEYS, **others, "AWS_EC2_METADATA_DISABLED": "true", "PYTHONUNBUFFERED": "1"}


@contextlib.contextmanager
def serving(home: Path, s3_endpoint: str | None = None, *options: str) -> Iterator[Served]:
    """`hdp serve` at a free port, for the jobs in `home`. Ended at the end; its jobs aren't."""
    command = [sys.executable, "-m", "hdp.estimator.cli", "serve", "--port", "0", *options]
    log = home.with_name(f"{home.name}-serve.log")
    with log.open("ab") as errors:
        process = subprocess.Popen(
            command,
            env={**environment(s3_endpoint), "HDP_HOME": str(home)},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        yield Served(_endpoint(process), home, process)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def _endpoint(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"AWS_ENDPOINT_URL_CLOUDWATCH_LOGS=(\S+)", line):
            return found[1]
    raise AssertionError(f"hdp serve ended with {process.wait()} and named no endpoint")


def archive(files: Mapping[str, str]) -> bytes:
    """A code archive."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(textwrap.dedent(text).encode())
            tar.addfile(member, io.BytesIO(textwrap.dedent(text).encode()))
    return raw.getvalue()


def job(name: str, code: str, hosts: int = 1, **more: Any) -> dict[str, Any]:
    """Arguments of CreateTrainingJob. code: URI of the archive with train.py."""
    own = {"sagemaker_program": "train.py", "sagemaker_submit_directory": code, "sagemaker_job_name": name}
    return {
        "TrainingJobName": name,
        "RoleArn": ROLE,
        "AlgorithmSpecification": {"TrainingImage": IMAGE, "TrainingInputMode": "File"},
        "HyperParameters": {key: json.dumps(value) for key, value in own.items()},
        "OutputDataConfig": {"S3OutputPath": "s3://bucket/out"},
        "ResourceConfig": {"InstanceType": "ml.p4d.24xlarge", "InstanceCount": hosts, "VolumeSizeInGB": 30},
        "StoppingCondition": {"MaxRuntimeInSeconds": 600},
        **more,
    }


def wait_for(describe: Callable[[], dict[str, Any]], *statuses: str, seconds: float = 90) -> list[dict[str, Any]]:
    """Every description until TrainingJobStatus or SecondaryStatus is one of `statuses`."""
    seen = [describe()]
    deadline = time.monotonic() + seconds
    while not {seen[-1]["TrainingJobStatus"], seen[-1]["SecondaryStatus"]} & set(statuses):
        assert time.monotonic() < deadline, f"still {seen[-1]['SecondaryStatus']} after {seconds} s"
        time.sleep(0.05)
        seen.append(describe())
    return seen


ENDED = ("Completed", "Failed", "Stopped")


def end_all(home: Home) -> None:
    """Kill every process of every job below `home`."""
    for name in store.Store(home).names():
        with contextlib.suppress(EngineError):
            supervisor = store.read(home.job(name)).supervisor
            if supervisor is not None and processes.send(supervisor, signal.SIGKILL):
                processes.wait(supervisor, 5.0)
        processes.kill_job(home.job(name).secret)


def written(home: Path, name: str, logs: dict[str, str]) -> JobDir:
    """A job that is on record, with these logs."""
    folder = store.Store(Home(home)).create(JobRequest(job(name, "s3://bucket/code/x.tar.gz", len(logs)), {}))
    for host, text in logs.items():
        folder.log(host).write_text(text)
    return folder
