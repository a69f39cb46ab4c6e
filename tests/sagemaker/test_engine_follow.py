"""Following a job through storms, expired credentials and lost connections; jobs and logs by script, over HTTP."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from aws_face import Face, Fault
from scripted_jobs import ScriptedJobs
from scripted_logs import ScriptedLogs
from typer.testing import CliRunner

from hdp.contract.errors import EngineError, JobNotFound, TrainingJobFailed, TrainingJobStopped
from hdp.estimator import TrainingJob
from hdp.estimator.cli.app import app
from hdp.estimator.engines.base import Pace
from hdp.estimator.engines.sagemaker.engine import SageMakerEngine

STREAM = "digits/algo-1-1700000000"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks follow each other fast."""
    monkeypatch.setattr(SageMakerEngine, "pace", lambda self: Pace(0.1, 1.0))
    monkeypatch.setattr("hdp.estimator.engines.sagemaker.cloudwatch._LOOK_AGAIN_SECONDS", 0.05)


@pytest.fixture
def scripted(face: Face) -> tuple[ScriptedJobs, ScriptedLogs]:
    """One job, "digits", that runs, and its log with one line."""
    jobs, logs = ScriptedJobs().on(face), ScriptedLogs()
    face.scripts |= {"DescribeLogStreams": logs.describe, "GetLogEvents": logs.events}
    step = {"Status": "Training", "StartTime": time.time() - 50, "StatusMessage": "Training image download completed"}
    jobs.add("digits", SecondaryStatusTransitions=[step], TrainingStartTime=time.time() - 50)
    logs.say(STREAM, int(time.time() * 1000) - 9000, "[algo-1:0] first line")
    return jobs, logs


@pytest.fixture
def later() -> Any:
    """Does things in a moment, in a thread."""
    timers: list[threading.Timer] = []

    def run(seconds: float, what: Callable[[], object]) -> None:
        timers.append(threading.Timer(seconds, what))
        timers[-1].start()

    yield run
    for timer in timers:
        timer.join()


def attached(engine: SageMakerEngine) -> TrainingJob:
    return TrainingJob.attach("digits", engine)


def ends(scripted: tuple[ScriptedJobs, ScriptedLogs], status: str, **more: Any) -> Callable[[], None]:
    jobs, logs = scripted

    def end() -> None:
        logs.say(STREAM, int(time.time() * 1000), "[algo-1:0] last line")
        jobs.end("digits", status, **more)

    return end


def shown(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What was printed, without the clock times of transitions."""
    return [line.split(" ", 1)[1] if line[2:3] == ":" else line for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    "fault",
    [
        Fault(6, "ThrottlingException", "Rate exceeded"),
        Fault(6, "InternalFailure", "sorry", 500),
        Fault(6, "ServiceUnavailable", "later", 503),
        Fault(3, lost=True),
    ],
    ids=["throttled", "500", "503", "lost"],
)
def test_a_storm_does_not_lose_the_job(
    fault: Fault,
    scripted: tuple[ScriptedJobs, ScriptedLogs],
    engine: SageMakerEngine,
    face: Face,
    later: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each call about the job fails several times while it runs. Expected: every line and step once, and the end."""
    job = attached(engine)
    for operation in ("DescribeTrainingJob", "GetLogEvents", "DescribeLogStreams"):
        face.inject(operation, Fault(fault.times, fault.code, fault.message, fault.status, fault.lost))
    later(0.5, ends(scripted, "Completed"))
    job.wait()
    lines = shown(capsys)
    assert lines[:2] == ["algo-1:0 | first line", "Training - Training image download completed"] or lines[:2] == [
        "Training - Training image download completed",
        "algo-1:0 | first line",
    ]
    assert lines[2:] == ["algo-1:0 | last line", "Completed - now Completed"]
    assert not any(fault.times for fault in face.faults["DescribeTrainingJob"])


def test_credentials_that_expire_are_read_again(
    scripted: tuple[ScriptedJobs, ScriptedLogs],
    engine: SageMakerEngine,
    face: Face,
    later: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The service says ExpiredToken; the environment has new keys by then. Expected: the new ones are used."""
    job = attached(engine)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "renewed")
    face.inject("DescribeTrainingJob", Fault(1, "ExpiredTokenException", "The security token included is expired"))
    later(0.3, ends(scripted, "Completed"))
    job.wait(logs=None)
    assert face.keys[0] == "testing" and face.keys[-1] == "renewed"


def test_credentials_that_stay_expired_for_a_while_are_waited_for(
    scripted: tuple[ScriptedJobs, ScriptedLogs],
    engine: SageMakerEngine,
    face: Face,
    later: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Six calls say ExpiredToken. Expected: a warning that says what to do, and then the job's end."""
    job = attached(engine)
    face.inject("DescribeTrainingJob", Fault(6, "ExpiredTokenException", "The security token included is expired"))
    later(0.3, ends(scripted, "Completed"))
    with caplog.at_level(logging.WARNING):
        job.wait(logs=None)
    assert "says that the credentials have expired (renew them, e.g. with `aws sso login`)" in caplog.text


def test_an_outage_that_lasts_says_how_to_come_back(
    scripted: tuple[ScriptedJobs, ScriptedLogs], engine: SageMakerEngine, face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No answer at all, with less patience. Expected: an error that has the last one, and the way back to the job."""
    job = attached(engine)
    monkeypatch.setattr(engine, "_long", engine._brief.__class__(engine._brief.total / 20, 0.05, 0.2))
    face.inject("DescribeTrainingJob", Fault(10_000, "ThrottlingException", "Rate exceeded"))
    with pytest.raises(
        EngineError, match=r"Rate exceeded(.|\n)*job digits runs on\. Take it up again: TrainingJob\.att"
    ):
        job.wait(logs=None)


def test_a_line_that_comes_after_the_end_is_shown(
    scripted: tuple[ScriptedJobs, ScriptedLogs],
    engine: SageMakerEngine,
    later: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The service knows of the end before the log has arrived. Expected: the late line, behind the end.

    By the service's clock the end is yet to come, so that all of the time for late lines is left when waiting begins.
    """
    jobs, logs = scripted
    jobs.end("digits", "Completed", TrainingEndTime=time.time() + 60)
    job = attached(engine)
    later(0.4, lambda: logs.say(STREAM, int(time.time() * 1000), "[algo-1:0] late"))
    job.wait()
    assert shown(capsys)[-1] == "algo-1:0 | late"


def test_a_late_line_is_shown_though_the_services_clock_is_behind(
    scripted: tuple[ScriptedJobs, ScriptedLogs],
    engine: SageMakerEngine,
    later: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The job ends while it is followed, a minute ago as the service says. Expected: the line after it."""
    jobs, logs = scripted
    job = attached(engine)
    later(0.2, lambda: jobs.end("digits", "Completed", TrainingEndTime=time.time() - 60))
    later(0.4, lambda: logs.say(STREAM, int(time.time() * 1000), "[algo-1:0] late"))
    job.wait()
    assert shown(capsys)[-1] == "algo-1:0 | late"


def test_following_again_goes_on_from_where_it_was(
    scripted: tuple[ScriptedJobs, ScriptedLogs],
    engine: SageMakerEngine,
    later: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Ctrl-C, then `wait(resume=True)` by another engine. Expected: the first line once; then only what is new."""
    job = attached(engine)

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("hdp.estimator.following.time.sleep", interrupted)
        with pytest.raises(KeyboardInterrupt):
            job.wait()
    first = shown(capsys)
    assert "algo-1:0 | first line" in first
    assert (
        "job digits goes on without you, and costs money. Follow it: hdp logs -f digits --resume --engine" in first[-1]
    )
    assert "Stop it: hdp stop digits --engine sagemaker" in first[-1]
    ends(scripted, "Completed")()
    TrainingJob.attach("digits", SageMakerEngine()).wait(resume=True)
    assert shown(capsys) == ["algo-1:0 | last line", "Completed - now Completed"]


def test_a_stopped_job_is_no_success(scripted: tuple[ScriptedJobs, ScriptedLogs], engine: SageMakerEngine) -> None:
    """stop() of a handle, then wait. Expected: TrainingJobStopped; stopping again is fine."""
    job = attached(engine)
    job.stop()
    with pytest.raises(TrainingJobStopped, match="job digits was stopped: now Stopped"):
        job.wait(logs=None)
    job.stop()


def test_time_that_was_up_is_named_with_the_remedy(
    scripted: tuple[ScriptedJobs, ScriptedLogs], engine: SageMakerEngine
) -> None:
    """SecondaryStatus MaxRuntimeExceeded, and checkpoints were asked for. Expected: why, where they are, what to do."""
    config = {"S3Uri": "s3://b/checkpoints", "LocalPath": "/opt/ml/checkpoints"}
    ends(scripted, "Stopped", SecondaryStatus="MaxRuntimeExceeded", CheckpointConfig=config)()
    with pytest.raises(TrainingJobStopped) as caught:
        attached(engine).wait(logs=None)
    assert "MaxRuntimeExceeded: now Stopped" in str(caught.value)
    assert "checkpoints, if it wrote some: s3://b/checkpoints" in str(caught.value)
    assert "what to do: the time was up: raise max_run" in str(caught.value)


def test_a_failure_has_the_first_cause_and_the_tail_of_its_ranks_log(
    scripted: tuple[ScriptedJobs, ScriptedLogs], engine: SageMakerEngine
) -> None:
    """Our runtime names rank 3 on algo-2; both ranks there have said things. Expected: the lines of rank 3 alone."""
    _, logs = scripted
    for i in range(40):
        logs.say("digits/algo-2-1700000000", 1000 + i, f"[algo-2:{2 + i % 2}] step {i}")
    reason = "AlgorithmError: rank 3 on algo-2 failed (exit code 1): RuntimeError: CUDA out of memory, exit code: 1"
    ends(scripted, "Failed", FailureReason=reason)()
    with pytest.raises(TrainingJobFailed) as caught:
        attached(engine).wait(logs=None)
    text = str(caught.value)
    assert caught.value.reason == reason
    assert "the last lines of rank 3 on algo-2:\n  step 11\n  step 13\n" in text and "  step 39\n" in text
    assert "step 38" not in text
    assert "what to do: memory ran out, probably" in text
    assert "next: hdp logs digits --engine sagemaker" in text


def test_a_job_of_another_client_is_taken_up(
    scripted: tuple[ScriptedJobs, ScriptedLogs], engine: SageMakerEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the console makes it: no hyperparameters, no channels, no transitions, no script of ours, plain log lines."""
    jobs, logs = scripted
    job = jobs.add("theirs", SecondaryStatus="Starting")
    logs.say("theirs/algo-1-1700000000", 5, "[1,mpirank:2,algo-1]<stdout>:loss: 0.25")
    logs.say("theirs/algo-1-1700000000", 6, "plain")
    job["AlgorithmSpecification"]["MetricDefinitions"] = [{"Name": "loss", "Regex": "loss: ([0-9.]+)"}]
    theirs = TrainingJob.attach("theirs", engine)
    theirs.logs()
    assert shown(capsys) == ["algo-1:2 | loss: 0.25", "algo-1 | plain"]
    assert [(m.metric_name, m.value, m.rank) for m in theirs.metric_values()] == [("loss", 0.25, 2)]
    assert theirs.model_data == "s3://b/theirs/output/model.tar.gz"
    assert "InProgress (Starting)" in theirs._repr_html_()


def test_a_job_that_does_not_exist_is_named_with_the_region(engine: SageMakerEngine, face: Face) -> None:
    ScriptedJobs().on(face)
    with pytest.raises(JobNotFound, match="no training job is called 'nobody' in region eu-west-1; `hdp jobs --all"):
        TrainingJob.attach("nobody", engine)
    with pytest.raises(JobNotFound, match="'bad_name' can't be a job's name"):
        TrainingJob.attach("bad_name", engine)


def test_logs_that_may_not_be_read_do_not_end_the_waiting(
    scripted: tuple[ScriptedJobs, ScriptedLogs],
    engine: SageMakerEngine,
    face: Face,
    later: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """AccessDenied by CloudWatch. Expected: one warning, and the job is followed to its end."""
    job = attached(engine)
    face.inject("DescribeLogStreams", Fault(1000, "AccessDeniedException", "not authorized to perform: logs:Describe"))
    later(0.4, ends(scripted, "Completed"))
    with caplog.at_level(logging.WARNING):
        job.wait()
    assert caplog.text.count("the log of job digits can't be shown") == 1


def test_all_jobs_are_listed_newest_first(face: Face, engine: SageMakerEngine) -> None:
    """250 jobs, a hundred a page. Expected: all of them, in order."""
    jobs = ScriptedJobs().on(face)
    for i in range(250):
        jobs.add(f"job-{i}")["CreationTime"] = 1_700_000_000 + i
    assert [row["TrainingJobName"] for row in engine.list()] == [f"job-{i}" for i in reversed(range(250))]


def command(*arguments: str) -> str:
    done = CliRunner().invoke(app, [*arguments, "--engine", "sagemaker"])
    assert done.exit_code == 0, done.output
    return done.output


def test_the_command_line_shows_such_jobs(scripted: tuple[ScriptedJobs, ScriptedLogs]) -> None:
    """`hdp jobs`, `hdp describe`, `hdp logs`, the latter also with --resume. Expected: name and cost; the line once."""
    assert "digits  InProgress" in command("jobs")
    assert "so far x 1 x ml.m5.xlarge; about $0.00" in command("describe", "digits")
    assert command("logs", "digits") == "algo-1:0 | first line\n"
    assert command("logs", "digits", "--resume") == ""


def test_the_command_line_stops_such_jobs(scripted: tuple[ScriptedJobs, ScriptedLogs]) -> None:
    """Expected: what was done, and the ways to watch it with the engine's name."""
    said = command("stop", "digits")
    assert "watch it: hdp logs -f digits --engine sagemaker" in said
    assert scripted[0].jobs["digits"]["TrainingJobStatus"] == "Stopped"


def test_ctrl_c_leaves_the_job_running(scripted: tuple[ScriptedJobs, ScriptedLogs], face: Face) -> None:
    """SIGINT to a process that waits, while the log's calls are throttled for good. Expected: it ends, and says the way
    back; no StopTrainingJob was called.
    """
    waiter = "from hdp.estimator import TrainingJob; TrainingJob.attach('digits', engine='sagemaker').wait()"
    process = subprocess.Popen(
        [sys.executable, "-c", waiter], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        while "first line" not in process.stdout.readline():
            assert process.poll() is None
        scripted[1].say(STREAM, int(time.time() * 1000), "[algo-1:0] more")
        face.inject("GetLogEvents", Fault(100_000, "ThrottlingException", "Rate exceeded"))
        before = face.calls["GetLogEvents"]
        while face.calls["GetLogEvents"] < before + 3:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert "hdp logs -f digits --resume --engine sagemaker" in out and "StopTrainingJob" not in face.calls
