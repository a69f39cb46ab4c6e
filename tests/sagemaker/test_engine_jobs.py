"""Real jobs by the SageMaker engine: `hdp serve` runs them, moto keeps their objects, and a face between can fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aws_face import Face, Fault
from scripted_jobs import IMAGE
from serve_support import Served

from hdp.contract.errors import TrainingJobFailed, TrainingJobStopped
from hdp.estimator import PyTorch, TrainingJob
from hdp.estimator.engines.base import Pace
from hdp.estimator.engines.local.home import Home
from hdp.estimator.engines.sagemaker.engine import SageMakerEngine

TRAIN = """
import os
import sys
import time

import numpy as np

import hdp.collectives as hc

mode = sys.argv[-1]
comm = hc.init()
rank = int(os.environ["RANK"])
total = hc.allreduce(np.full(4, rank + 1.0), comm.world).wait()
print(f"sum {total[3]:.0f}", flush=True)
if mode == "fail" and rank == 1:
    raise ValueError("no such luck")
while mode == "loop":
    time.sleep(0.05)
open(os.path.join(os.environ["SM_MODEL_DIR"], f"rank-{rank}.txt"), "w").write("done")
"""
BUCKET = "sagemaker-eu-west-1-123456789012"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SageMakerEngine, "pace", lambda self: Pace(0.2, 1.0))


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("code") / "train.py"
    file.write_text(TRAIN)
    return str(file)


def estimator(script: str, engine: SageMakerEngine, mode: str) -> PyTorch:
    """Two hosts of one rank each, whose sum over ranks is 3. mode: the script's last argument."""
    return PyTorch(
        script,
        role="Trainer",
        instance_type="ml.m5.xlarge",
        instance_count=2,
        image_uri=IMAGE,
        engine=engine,
        distribution={"hdp": {"enabled": True, "processes_per_host": 1}},
        hyperparameters={"mode": mode},
    )


@pytest.fixture
def stormy(jobs: Face) -> Iterator[Face]:
    """`hdp serve` behind a storm: from its creation on, calls about jobs are throttled, fail, or say ExpiredToken."""
    for operation in ("DescribeTrainingJob", "DescribeLogStreams", "GetLogEvents"):
        jobs.inject(operation, Fault(2))
        jobs.faults[operation][-1] = Fault(3, "ThrottlingException", "Rate exceeded")
        jobs.inject(operation, Fault(3, "InternalFailure", "sorry", 500))
    jobs.inject("DescribeTrainingJob", Fault(2, "ExpiredTokenException", "The security token included is expired"))
    yield jobs


def test_a_job_trains_through_a_storm(
    script: str, engine: SageMakerEngine, stormy: Face, s3: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Throttled, 500, expired, and then fine. Expected: all ranks meet, every line once, steps, model, no secret."""
    job = estimator(script, engine, "train").fit(job_name="storm")
    shown = capsys.readouterr().out.splitlines()
    assert sorted(line for line in shown if "sum" in line) == ["algo-1:0 | sum 3", "algo-2:1 | sum 3"]
    steps = [line.split(" ")[1] for line in shown if line[2:3] == ":"]
    assert steps == ["Starting", "Downloading", "Training", "Uploading", "Completed"]
    assert job.model_data == f"s3://{BUCKET}/storm/output/model.tar.gz"
    keys = [item["Key"] for item in s3.list_objects_v2(Bucket=BUCKET)["Contents"]]
    assert "storm/output/model.tar.gz" in keys and "hdp-secret/storm/secret" not in keys
    assert job.cost().final and job.cost().hosts == {"ml.m5.xlarge": 2}
    assert not [fault for faults in stormy.faults.values() for fault in faults if fault.times]
    assert "storm" in [row["TrainingJobName"] for row in engine.list()]


def test_a_failed_job_says_which_rank_and_why(script: str, engine: SageMakerEngine, jobs: Face) -> None:
    """Rank 1 raises. Expected: its own exception, host and last lines, though rank 0 fails with it."""
    with pytest.raises(
        TrainingJobFailed, match=r"rank 1 on algo-2 failed \(exit code 1\): ValueError: no such luck"
    ) as e:
        estimator(script, engine, "fail").fit(job_name="failing", logs=None)
    assert "the last lines of rank 1 on algo-2:" in str(e.value) and "  sum 3" in str(e.value)


def test_a_job_is_attached_followed_and_stopped(
    script: str, engine: SageMakerEngine, jobs: Face, serve: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    """Started without waiting; 118 hosts more write logs; another client follows and stops. Expected: all 120 hosts."""
    estimator(script, engine, "loop").fit(wait=False, job_name="looping")
    job = TrainingJob.attach("looping", SageMakerEngine())
    _wait_for(lambda: "sum 3" in _log(job))
    logs = Home(serve.home).job("looping").logs
    now = time.time()
    for host in range(3, 121):
        lines = [f"{now + i + host / 1000:.6f} [algo-{host}:{host}] event {i}\n" for i in range(3)]
        Path(logs, f"algo-{host}.log").write_text("".join(lines))
    stopper = threading.Timer(3.0, job.stop)
    stopper.start()
    with pytest.raises(TrainingJobStopped, match="job looping was stopped"):
        job.wait()
    stopper.join()
    shown = capsys.readouterr().out.splitlines()
    events = [line for line in shown if "| event" in line]
    assert events == [f"algo-{h}:{h} | event {i}" for i in range(3) for h in range(3, 121)]


def _log(job: TrainingJob) -> str:
    from hdp.estimator.metrics import log_lines

    return "\n".join(line.text for line in log_lines(job.engine, job.name))


def _wait_for(condition: Any, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"still not so after {seconds} s"
        time.sleep(0.2)
