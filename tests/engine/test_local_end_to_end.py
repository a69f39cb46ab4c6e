"""Whole jobs: the real engine, supervisor and agent around tiny training scripts."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from engine_support import ROOTS, client_environment, left_over, script_request, texts, wait_for_end, wait_until

from hdp.contract.errors import JobNotFound, TrainingJobFailed, TrainingJobStopped
from hdp.estimator.engines.local import processes, store
from hdp.estimator.engines.local.engine import LocalEngine
from hdp.estimator.job import TrainingJob

sys.path.append(str(Path(__file__).parents[1]))
from own_moto import moto_server

TRAIN = """
    import os
    from pathlib import Path
    print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
    Path(os.environ["SM_MODEL_DIR"], "w" + os.environ["RANK"]).write_text("weights")
"""
SLEEP = """
    import time
    print("asleep", flush=True)
    time.sleep(100)
"""
CHECKPOINT = """
    import os, signal, sys, time
    from pathlib import Path
    def save(*_):
        Path(os.environ["SAGEMAKER_BASE_DIR"], "checkpoints", "rank" + os.environ["RANK"] + ".pt").write_text("x")
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
    print("ready", flush=True)
    time.sleep(100)
"""


def start(engine: LocalEngine, name: str, script: str, num_hosts: int = 1, **more: object) -> TrainingJob:
    engine.submit(script_request(engine, name, script, num_hosts, **more))
    return TrainingJob(engine, name)


def hdp(engine: LocalEngine, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, in another process."""
    command = [sys.executable, "-m", "hdp.estimator.cli", *arguments]
    environment = client_environment(engine.home.path)
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_two_hosts_train_and_leave_one_model(engine: LocalEngine, capsys: pytest.CaptureFixture[str]) -> None:
    """Each rank writes w<rank>. Expected: wait() returns, prefixes of host and rank, one archive with w0 and w1."""
    job = start(engine, "digits", TRAIN, num_hosts=2)
    job.wait()
    shown = capsys.readouterr().out.splitlines()
    assert "algo-1:0 | rank 0 of 2" in shown and "algo-2:1 | rank 1 of 2" in shown
    assert re.fullmatch(r"\d\d:\d\d:\d\d Completed - Training job completed", shown[-1])
    assert job.model_data is not None
    with tarfile.open(engine.home.job("digits").artifacts / "model.tar.gz") as archive:
        assert archive.getnames() == ["w0", "w1"]


def test_a_failed_script_names_rank_host_and_error(engine: LocalEngine) -> None:
    """Rank 1 raises after noise on stderr, rank 0 sleeps. Expected: the exception and the failure file say so."""
    script = """
        import os, sys, time
        print("ConnectionError: harmless", file=sys.stderr, flush=True)
        if os.environ["RANK"] == "1":
            raise ValueError("boom")
        time.sleep(100)
    """
    job = start(engine, "digits", script, num_hosts=2)
    with pytest.raises(TrainingJobFailed) as caught:
        job.wait(logs=None)
    message = str(caught.value)
    assert message.startswith("job digits failed: rank 1 on algo-2 failed (exit code 1): ValueError: boom")
    assert f"its logs: {engine.home.job('digits').logs}\nnext: hdp logs digits" in message
    assert len(caught.value.reason) <= 1024
    assert len(engine.home.job("digits").tree("algo-2").failure.read_text()) <= 1024
    assert left_over(engine, "digits") == []


def test_a_stopped_job_says_who_wrote_a_checkpoint(engine: LocalEngine) -> None:
    """Both ranks save on SIGTERM. Expected: Stopped, each rank's checkpoint and time in the record."""
    job = start(engine, "digits", CHECKPOINT, num_hosts=2)
    wait_until(lambda: texts(engine, "digits").count("ready") == 2)
    job.stop(wait=True)
    answer = job.describe()
    assert (answer["TrainingJobStatus"], answer["SecondaryStatus"]) == ("Stopped", "Stopped")
    ranks = answer["Hdp"]["ranks"]
    assert [(rank["rank"], rank["host"]) for rank in ranks] == [(0, "algo-1"), (1, "algo-2")]
    assert [list(map(os.path.basename, rank["checkpoints"])) for rank in ranks] == [["rank0.pt"], ["rank1.pt"]]
    assert all(0 <= rank["seconds_after_stop"] < 20 and not rank["killed_at_deadline"] for rank in ranks)
    with pytest.raises(TrainingJobStopped, match=r"stopped by request\ncheckpoints: algo-1: .*rank0\.pt"):
        job.wait(logs=None)
    assert left_over(engine, "digits") == []


def test_a_rank_that_ignores_the_stop_is_killed_at_its_deadline(engine: LocalEngine) -> None:
    script = """
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("ready", flush=True)
        time.sleep(100)
    """
    job = start(engine, "digits", script, options={"stop_timeout_seconds": 1})
    wait_until(lambda: "ready" in texts(engine, "digits"))
    job.stop(wait=True)
    rank = job.describe()["Hdp"]["ranks"][0]
    assert (rank["killed_at_deadline"], rank["signal"]) == (True, "SIGKILL")


def test_the_job_outlives_its_client(engine: LocalEngine) -> None:
    """A client that waits is killed. Expected: the job is seen, followed, attached to and stopped by others."""
    client = (
        "import sys; from engine_support import *; from hdp.estimator.job import TrainingJob\n"
        "engine = LocalEngine(); engine.submit(script_request(engine, 'digits', sys.argv[1]))\n"
        "TrainingJob(engine, 'digits').wait()\n"
    )
    environment = client_environment(engine.home.path)
    command = [sys.executable, "-c", client, CHECKPOINT]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any("ready" in line for line in process.stdout)
        process.kill()
    assert re.search(r"digits +InProgress", hdp(engine, "jobs").stdout)
    assert "algo-1:0 | ready" in hdp(engine, "logs", "digits").stdout
    assert TrainingJob.attach("digits").status == "InProgress"
    stopped = hdp(engine, "stop", "digits", "--wait")
    assert (stopped.stdout, stopped.returncode) == ("job digits: Stopped\n", 0)


def test_a_follower_sees_the_log_to_its_end(engine: LocalEngine) -> None:
    """`hdp logs -f` from another process while the job prints for two seconds. Expected: every line, once."""
    script = """
        import time
        for i in range(20):
            print("line", i, flush=True)
            time.sleep(0.1)
    """
    start(engine, "digits", script)
    followed = hdp(engine, "logs", "-f", "digits")
    lines = [line for line in followed.stdout.splitlines() if line.startswith("algo-1:0 | ")]
    assert lines == [f"algo-1:0 | line {i}" for i in range(20)]


def test_a_killed_supervisor_leaves_a_failed_job_and_no_process(engine: LocalEngine) -> None:
    """SIGKILL to the supervisor of two hosts. Expected: no process of the job within 5 s; Failed with its reason."""
    job = start(engine, "digits", SLEEP, num_hosts=2)
    wait_until(lambda: texts(engine, "digits").count("asleep") == 2)
    assert len(left_over(engine, "digits")) >= 4
    supervisor = store.read(engine.home.job("digits")).supervisor
    assert supervisor is not None
    processes.send(supervisor, signal.SIGKILL)
    wait_until(lambda: left_over(engine, "digits") == [], 5)
    with pytest.raises(TrainingJobFailed, match=rf"the job's supervisor \(pid {supervisor.pid}\) ended at .*killed"):
        job.wait(logs=None)


def test_a_killed_agent_fails_the_job(engine: LocalEngine) -> None:
    """SIGKILL to algo-2's agent. Expected: Failed, naming algo-2; no process left."""
    job = start(engine, "digits", SLEEP, num_hosts=2)
    wait_until(lambda: texts(engine, "digits").count("asleep") == 2)
    agent = store.read(engine.home.job("digits")).hosts[1].agent
    assert agent is not None
    processes.send(agent, signal.SIGKILL)
    with pytest.raises(TrainingJobFailed, match="algo-2"):
        job.wait(logs=None)
    assert left_over(engine, "digits") == []


def test_ctrl_c_leaves_the_job_running_and_says_how_to_come_back(engine: LocalEngine) -> None:
    """SIGINT to a client that waits. Expected: it ends by KeyboardInterrupt with the commands; the job goes on."""
    job = start(engine, "digits", CHECKPOINT)
    waiter = "from hdp.estimator.job import TrainingJob; TrainingJob.attach('digits').wait()"
    environment = client_environment(engine.home.path)
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", waiter]
    # A shell that starts the tests in the background has SIGINT ignored, which children inherit.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True, preexec_fn=heed) as process:
        assert process.stdout is not None
        assert any("ready" in line for line in process.stdout)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert "job digits goes on without you. Follow it: hdp logs -f digits   Stop it: hdp stop digits" in out
    assert "KeyboardInterrupt" in err
    assert job.status == "InProgress"


def test_attach_does_not_wait_and_knows_near_names(engine: LocalEngine) -> None:
    start(engine, "digits", SLEEP)
    assert repr(TrainingJob.attach("digits")) == "TrainingJob('digits', engine='local')"
    with pytest.raises(JobNotFound, match="did you mean 'digits'"):
        TrainingJob.attach("digit")


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Endpoint of an S3 server of our own, with the bucket "out"."""
    import boto3

    with moto_server() as url:
        for name, value in {"AWS_ENDPOINT_URL": url, "AWS_DEFAULT_REGION": "us-east-1"}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        boto3.client("s3").create_bucket(Bucket="out")
        yield "s3://out/models"


def test_artifacts_go_to_s3(engine: LocalEngine, s3: str, tmp_path: Path) -> None:
    import boto3

    job = start(engine, "digits", TRAIN, OutputDataConfig={"S3OutputPath": s3})
    job.wait(logs=None)
    assert job.model_data == "s3://out/models/digits/output/model.tar.gz"
    boto3.client("s3").download_file("out", "models/digits/output/model.tar.gz", str(tmp_path / "m.tar.gz"))
    with tarfile.open(tmp_path / "m.tar.gz") as archive:
        assert archive.getnames() == ["w0"]


def test_a_bucket_that_is_not_there_fails_the_job_and_keeps_the_model(engine: LocalEngine, s3: str) -> None:
    assert s3
    job = start(engine, "digits", TRAIN, OutputDataConfig={"S3OutputPath": "s3://no-such-bucket/x"})
    with pytest.raises(TrainingJobFailed, match=r"(?s)copied to s3://no-such-bucket/.*NoSuchBucket.*it is kept in"):
        job.wait(logs=None)
    assert (engine.home.job("digits").artifacts / "model.tar.gz").exists()


NOBODY = 65534


def python_for_nobody() -> tuple[str, dict[str, str]] | None:
    """An interpreter that an ordinary user can run, and the PYTHONPATH that it needs; None where there is none."""
    own = Path(sys.executable)
    same = shutil.which(f"python3.{sys.version_info.minor}", path="/usr/bin:/usr/local/bin")
    packages = os.pathsep.join([*ROOTS, *(p for p in sys.path if p.endswith("site-packages"))])
    for python, path in ((str(own), ""), (same, packages)):
        environment = {"PATH": os.environ["PATH"], **({"PYTHONPATH": path} if path else {})}
        command = [python or "false", "-c", "import pydantic, hdp.estimator.engines.local.engine, hdp.runtime"]
        try:
            done = subprocess.run(command, user=NOBODY, group=NOBODY, env=environment, cwd="/", check=False)
        except OSError:
            continue
        if python and done.returncode == 0:
            return python, environment
    return None


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests already run as an ordinary user")
@pytest.mark.parametrize("namespaces", ["auto", "off"])
def test_an_ordinary_user_runs_jobs(namespaces: str, home: object) -> None:
    """Uid 65534 with a home of its own, two hosts. Expected: Completed, the model is its own, no process left."""
    found = python_for_nobody()
    if found is None:
        pytest.skip("no interpreter with our packages can be run by an ordinary user on this machine")
    python, environment = found
    client = (
        "import os, sys; from engine_support import *\n"
        "from hdp.estimator.job import TrainingJob\n"
        "engine = LocalEngine(); options = {'namespaces': sys.argv[2]}\n"
        "engine.submit(script_request(engine, 'digits', sys.argv[1], 2, options=options))\n"
        "TrainingJob(engine, 'digits').wait()\n"
        "print('left', left_over(engine, 'digits'), os.getuid(), os.path.exists('/opt/ml'))\n"
    )
    folder = Path(subprocess.run(["mktemp", "-d", "-p", "/var/tmp"], capture_output=True, text=True).stdout.strip())
    os.chown(folder, NOBODY, NOBODY)
    paths = os.pathsep.join(filter(None, [str(Path(__file__).parent), environment.get("PYTHONPATH")]))
    try:
        done = subprocess.run(
            [python, "-c", client, TRAIN, namespaces],
            user=NOBODY, group=NOBODY, extra_groups=[], cwd="/", capture_output=True, text=True, check=False,
            env={**environment, "PYTHONPATH": paths, "HDP_HOME": str(folder / "hdp"), "PYTHONDONTWRITEBYTECODE": "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert "algo-2:1 | rank 1 of 2" in done.stdout
        assert f"left [] {NOBODY} {Path('/opt/ml').exists()}" in done.stdout
        assert (folder / "hdp/jobs/digits/artifacts/model.tar.gz").stat().st_uid == NOBODY
    finally:
        shutil.rmtree(folder)


def test_where_the_time_goes_is_described(engine: LocalEngine) -> None:
    """Expected: transitions follow each other without a gap; the last one has ended."""
    start(engine, "digits", TRAIN)
    steps = wait_for_end(engine, "digits")["SecondaryStatusTransitions"]
    assert [step["EndTime"] for step in steps[:-1]] == [step["StartTime"] for step in steps[1:]]
    assert steps[-1]["EndTime"] == steps[-1]["StartTime"]
