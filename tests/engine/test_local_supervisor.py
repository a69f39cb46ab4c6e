"""The real engine and supervisor around stand-ins for the agent: what happens when hosts misbehave."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import descriptors
import pytest
from engine_support import left_over, request, statuses, texts, wait_for_end, wait_until

from hdp.contract.errors import EngineError, SpecError
from hdp.estimator.engines.local import processes, state, store
from hdp.estimator.engines.local.cleaning import Cleaning
from hdp.estimator.engines.local.engine import LocalEngine

Agent = Callable[[str], str]
HELLO = 'print(f"{time.time():.6f} [{host}] hello", flush=True)\n'
WRITE_MODEL = '(root / "model" / f"{host}.txt").write_text(host)\n'


def run(engine: LocalEngine, name: str, python: str, num_hosts: int = 1, **more: object) -> dict[str, object]:
    options = {"python": python, **more.pop("options", {})}  # type: ignore[dict-item]  # a test's shorthand
    engine.submit(request(name, num_hosts, options, **more))
    return wait_for_end(engine, name)


def test_a_job_goes_through_its_stages(engine: LocalEngine, agent: Agent) -> None:
    """Two hosts that write a model each. Expected: all stages in order, one archive with both files."""
    answer = run(engine, "digits", agent(HELLO + WRITE_MODEL), num_hosts=2)
    assert statuses(answer) == ["Starting", "Training", "Uploading", "Completed"]
    with tarfile.open(engine.home.job("digits").artifacts / "model.tar.gz") as archive:
        assert archive.getnames() == ["algo-1.txt", "algo-2.txt"]
    assert answer["ModelArtifacts"] == {
        "S3ModelArtifacts": f"file://{str(engine.home.path).replace(' ', '%20').replace('ä', '%C3%A4')}"
        "/jobs/digits/artifacts/model.tar.gz"
    }


def test_submit_returns_when_the_supervisor_is_on_record(engine: LocalEngine, agent: Agent) -> None:
    engine.submit(request("digits", options={"python": agent("time.sleep(30)")}))
    supervisor = store.read(engine.home.job("digits")).supervisor
    assert supervisor is not None and processes.alive(supervisor)
    assert os.getsid(supervisor.pid) != os.getsid(0)


def test_nothing_of_the_client_is_inherited(engine: LocalEngine, agent: Agent) -> None:
    """Expected: the supervisor's standard input is /dev/null, its output its log, and it has no other file of ours."""
    with (engine.home.path.parent / "clients-file").open("w") as ours:
        os.set_inheritable(ours.fileno(), True)
        engine.submit(request("digits", options={"python": agent("time.sleep(30)")}))
        job = engine.home.job("digits")
        supervisor = store.read(job).supervisor
        assert supervisor is not None
        files = descriptors.targets(supervisor.pid).values()
    assert "/dev/null" in files and str(job.supervisor_log) in files
    assert ours.name not in files


def test_a_host_that_dies_without_a_word_fails_the_job(engine: LocalEngine, agent: Agent) -> None:
    """SIGKILL after one line. Expected: Failed, naming host, signal and the last words."""
    answer = run(engine, "digits", agent(HELLO + "os.kill(os.getpid(), signal.SIGKILL)"))
    assert answer["TrainingJobStatus"] == "Failed"
    assert answer["FailureReason"] == (
        "host algo-1 failed (killed by SIGKILL): its agent ended without a report\nlast lines of its log:\nhello"
    )


def test_an_interpreter_without_hdp_says_so(engine: LocalEngine, tmp_path: Path) -> None:
    """`python` is one that can't import anything of ours. Expected: the reason has the interpreter's own words."""
    python = tmp_path / "bare-python"
    python.write_text('#!/bin/sh\necho "bare-python: No module named $2" >&2\nexit 1\n')
    python.chmod(0o755)
    answer = run(engine, "digits", str(python))
    assert "bare-python: No module named hdp.runtime.launch.agent" in str(answer["FailureReason"])


def test_time_is_up(engine: LocalEngine, agent: Agent) -> None:
    """MaxRuntimeInSeconds is 1. Expected: Stopped with SageMaker's secondary status; the model is kept."""
    python = agent(WRITE_MODEL + "time.sleep(60)")
    answer = run(engine, "digits", python, StoppingCondition={"MaxRuntimeInSeconds": 1})
    assert (answer["TrainingJobStatus"], answer["SecondaryStatus"]) == ("Stopped", "MaxRuntimeExceeded")
    assert "ModelArtifacts" in answer and "FailureReason" not in answer


def test_what_an_agent_leaves_running_is_ended_with_the_job(engine: LocalEngine, agent: Agent) -> None:
    """The agent starts a daemon in a session of its own and ends well. Expected: Completed, no process left."""
    daemon = "import subprocess; subprocess.Popen(['sleep', '60'], start_new_session=True, stdout=subprocess.DEVNULL)"
    answer = run(engine, "digits", agent(daemon))
    assert answer["TrainingJobStatus"] == "Completed"
    assert left_over(engine, "digits") == []


def test_a_killed_supervisor_takes_its_agents_with_it(engine: LocalEngine, agent: Agent) -> None:
    """SIGKILL to the supervisor. Expected: the agents end before anybody looks; then Failed with PID and log."""
    engine.submit(request("digits", 2, {"python": agent(HELLO + "time.sleep(60)")}))
    wait_until(lambda: len(texts(engine, "digits")) == 2)
    supervisor = store.read(engine.home.job("digits")).supervisor
    assert supervisor is not None and len(left_over(engine, "digits")) == 2
    processes.send(supervisor, signal.SIGKILL)
    wait_until(lambda: left_over(engine, "digits") == [], 5)
    answer = engine.describe("digits")
    assert answer["TrainingJobStatus"] == "Failed"
    assert str(answer["FailureReason"]).startswith(f"the job's supervisor (pid {supervisor.pid}) ended at 20")


def test_artifacts_go_to_the_output_path(engine: LocalEngine, agent: Agent, tmp_path: Path) -> None:
    python = agent(WRITE_MODEL + '(root / "output/data/log.csv").write_text("1,2")')
    answer = run(engine, "digits", python, OutputDataConfig={"S3OutputPath": f"file://{tmp_path}/out"})
    assert answer["ModelArtifacts"] == {"S3ModelArtifacts": f"file://{tmp_path}/out/digits/output/model.tar.gz"}
    with tarfile.open(tmp_path / "out/digits/output/output.tar.gz") as archive:
        assert archive.getnames() == ["log.csv"]


def test_artifacts_that_cannot_be_copied_are_kept(engine: LocalEngine, agent: Agent, tmp_path: Path) -> None:
    """The output path is below a file. Expected: Failed, the reason has the kept archive's path, and it is there."""
    (tmp_path / "file").touch()
    output = {"S3OutputPath": f"file://{tmp_path}/file/out"}
    answer = run(engine, "digits", agent(WRITE_MODEL), OutputDataConfig=output)
    kept = engine.home.job("digits").artifacts / "model.tar.gz"
    assert answer["TrainingJobStatus"] == "Failed"
    assert str(answer["FailureReason"]).startswith(
        "training itself ended as Completed, but model.tar.gz couldn't be copied"
    )
    assert str(answer["FailureReason"]).endswith(f"it is kept in {kept}")
    assert kept.exists()


def test_a_disk_that_is_full_when_archiving_is_the_reason(engine: LocalEngine, agent: Agent) -> None:
    """The archive is written to /dev/full. Expected: Failed, the reason has the remedy and where the files are."""
    part = engine.home.job("digits").artifacts / ".model.tar.gz.part"
    answer = run(engine, "digits", agent(f'{WRITE_MODEL}Path({str(part)!r}).symlink_to("/dev/full")'))
    reason = str(answer["FailureReason"])
    assert "model.tar.gz couldn't be written: the disk is full" in reason and "`hdp clean` frees" in reason
    assert reason.endswith(f"the files are kept in {engine.home.job('digits').hosts}")
    assert engine.clean(Cleaning())[0].what.startswith("kept: its files couldn't be archived")


def test_output_of_a_failed_job_is_kept(engine: LocalEngine, agent: Agent) -> None:
    """Expected: an output archive, no model archive."""
    python = agent('(root / "output/data/log.csv").write_text("1,2")\n' + WRITE_MODEL + "sys.exit(1)")
    answer = run(engine, "digits", python)
    assert [file.name for file in engine.home.job("digits").artifacts.iterdir()] == ["output.tar.gz"]
    assert "ModelArtifacts" not in answer


def test_checkpoints_are_shared_at_the_place_that_was_named(engine: LocalEngine, agent: Agent, tmp_path: Path) -> None:
    """CheckpointConfig names a folder with a file in it. Expected: both hosts see it, and what they write is there."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "old.pt").write_text("old")
    python = agent('(root / "checkpoints" / host).write_text((root / "checkpoints" / "old.pt").read_text())')
    answer = run(engine, "digits", python, 2, CheckpointConfig={"S3Uri": f"file://{tmp_path}/kept"})
    assert answer["TrainingJobStatus"] == "Completed"
    assert sorted(file.name for file in (tmp_path / "kept").iterdir()) == ["algo-1", "algo-2", "old.pt"]


def test_jobs_at_the_same_time_have_their_own_addresses(engine: LocalEngine, agent: Agent) -> None:
    python = agent("time.sleep(30)")
    for name in ("one", "two"):
        engine.submit(request(name, 2, {"python": python}))
    wait_until(lambda: all(engine.describe(name)["Hdp"]["hosts"] for name in ("one", "two")))
    found = [host["address"] for name in ("one", "two") for host in engine.describe(name)["Hdp"]["hosts"]]
    assert len(set(found)) == 4


def test_a_bad_request_starts_nothing(engine: LocalEngine) -> None:
    """Three faults in request and options. Expected: all three in one SpecError, no job on disk."""
    bad = request("bad_name", 0, {"stop_timeout": 1})
    with pytest.raises(SpecError) as caught:
        engine.submit(bad)
    assert len(caught.value.faults) == 3
    assert not engine.home.jobs.exists()


def test_a_supervisor_that_cannot_start_is_an_error_with_its_words(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its interpreter runs, but the module isn't there. Expected: EngineError with the words; the job is Failed."""
    monkeypatch.setattr("hdp.estimator.engines.local.engine.SUPERVISOR_MODULE", "hdp.no_such_module")
    with pytest.raises(EngineError, match=r"the supervisor of job digits didn't start: .*No module named hdp\.no_such"):
        engine.submit(request("digits"))
    assert engine.describe("digits")["TrainingJobStatus"] == "Failed"


def test_stopping_an_ended_job_is_fine(engine: LocalEngine, agent: Agent) -> None:
    run(engine, "digits", agent("pass"))
    engine.stop("digits")
    assert engine.describe("digits")["TrainingJobStatus"] == "Completed"


def test_the_list_is_newest_first(engine: LocalEngine, agent: Agent) -> None:
    for name in ("one", "two"):
        run(engine, name, agent("pass"))
    assert [row["TrainingJobName"] for row in engine.list()] == ["two", "one"]


def test_the_secret_is_in_no_record(engine: LocalEngine, agent: Agent) -> None:
    """Search every file of the ended job. Expected: only `secret` has it."""
    run(engine, "digits", agent(HELLO))
    job = engine.home.job("digits")
    secret = job.secret.read_bytes()
    assert [p.name for p in job.path.rglob("*") if p.is_file() and secret in p.read_bytes()] == ["secret"]


def test_a_description_has_everything(engine: LocalEngine, agent: Agent) -> None:
    """A host that leaves a report as the agent does. Expected: ranks and checkpoints under Hdp, times in order."""
    rank = {"rank": 0, "exit_code": 0, "signal": None, "seconds_after_stop": 1.5, "killed_at_deadline": False}
    report = {
        "host": "algo-1",
        "ranks": [{**rank, "checkpoints": ["a.pt"]}],
        "failures": [],
        "first_cause": None,
        "stopped": True,
        "checkpoints": ["a.pt"],
        "notes": ["n"],
    }
    answer = run(engine, "digits", agent(f'(root / "output/hdp-report.json").write_text({json.dumps(report)!r})'))
    extras = answer["Hdp"]
    assert isinstance(extras, dict)
    assert extras["ranks"] == [{"host": "algo-1", **rank, "checkpoints": ["a.pt"]}]
    assert (extras["checkpoints"], extras["notes"]) == ({"algo-1": ["a.pt"]}, ["algo-1: n"])
    assert answer["CreationTime"] <= answer["TrainingStartTime"] <= answer["TrainingEndTime"]  # type: ignore[operator]
    assert answer["ResourceConfig"] == {"InstanceType": "local", "InstanceCount": 1, "VolumeSizeInGB": 30}
    assert time.time() - answer["LastModifiedTime"].timestamp() < 60  # type: ignore[attr-defined]


def socket_folder(engine: LocalEngine, name: str) -> Path:
    """The folder of the hosts' sockets, as the job's record has it."""
    folder = store.read(engine.home.job(name)).run_dir
    assert folder is not None
    return Path(folder)


USE_RUN_DIR = 'run = Path(os.environ["HDP_RUN_DIR"])\nrun.mkdir()\n(run / "server.sock").touch()\n'


def test_the_folder_of_sockets_is_private_short_and_gone_with_the_job(engine: LocalEngine, agent: Agent) -> None:
    """Two hosts that leave a file each in it. Expected: mode 0700, room for a socket's name, gone at the end."""
    engine.submit(request("digits", 2, {"python": agent(USE_RUN_DIR + HELLO + "time.sleep(1)")}))
    wait_until(lambda: len(texts(engine, "digits")) == 2)
    folder = socket_folder(engine, "digits")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert sorted(path.name for path in folder.iterdir()) == ["algo-1", "algo-2"]
    assert len(os.fsencode(folder / "algo-250" / "server.sock")) < 108
    assert wait_for_end(engine, "digits")["TrainingJobStatus"] == "Completed"
    assert not folder.exists()


def test_the_sockets_of_a_killed_supervisor_are_removed_by_whoever_looks(engine: LocalEngine, agent: Agent) -> None:
    """SIGKILL to the supervisor, and so to the agent. Expected: the folder is there until the job is looked at."""
    engine.submit(request("digits", options={"python": agent(USE_RUN_DIR + HELLO + "time.sleep(60)")}))
    wait_until(lambda: texts(engine, "digits") == ["hello"])
    supervisor, folder = store.read(engine.home.job("digits")).supervisor, socket_folder(engine, "digits")
    assert supervisor is not None
    processes.send(supervisor, signal.SIGKILL)
    assert processes.wait(supervisor, 5.0)
    assert (folder / "algo-1" / "server.sock").exists()
    assert engine.describe("digits")["TrainingJobStatus"] == "Failed"
    assert not folder.exists()


def test_a_folder_that_cannot_be_read_fails_the_job_with_its_name(
    engine: LocalEngine, agent: Agent, is_root: bool
) -> None:
    """model/ has a folder without permissions. Expected: Failed, saying so; it isn't left out in silence."""
    if is_root:
        pytest.skip("root reads every folder")
    answer = run(engine, "digits", agent('(root / "model/closed").mkdir(mode=0)'))
    (engine.home.job("digits").tree("algo-1").model / "closed").chmod(0o700)
    assert answer["TrainingJobStatus"] == "Failed"
    assert "model.tar.gz couldn't be written: PermissionError" in str(answer["FailureReason"])


def test_a_supervisor_that_comes_too_late_starts_nothing(engine: LocalEngine) -> None:
    """The job was closed before its supervisor was there. Expected: it says so and ends; the record stays."""
    job = store.Store(engine.home).create(request("digits"))
    store.update(job, lambda s: state.fail(s, "given up", time.time()))
    done = subprocess.run(
        [sys.executable, "-m", "hdp.estimator.engines.local.supervisor", str(job.path), "1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "job digits has ended as Failed before its supervisor was there" in done.stderr
    assert store.read(job).failure_reason == "given up"


def test_what_a_supervisor_was_writing_when_it_was_killed_is_removed(
    engine: LocalEngine, agent: Agent, tmp_path: Path
) -> None:
    """SIGKILL while it writes the archive to a pipe that nobody reads. Expected: no part of a file; the trees stay."""
    job = engine.home.job("digits")
    part, copy = job.artifacts / ".model.tar.gz.part", tmp_path / "out/digits/output/.hdp-part-x"
    copy.parent.mkdir(parents=True)
    copy.touch()
    python = agent(f"{WRITE_MODEL}os.mkfifo({str(part)!r})")
    engine.submit(
        request("digits", options={"python": python}, OutputDataConfig={"S3OutputPath": f"file://{tmp_path}/out"})
    )
    wait_until(lambda: engine.describe("digits")["SecondaryStatus"] == "Uploading")
    supervisor = store.read(job).supervisor
    assert supervisor is not None and part.exists()
    processes.send(supervisor, signal.SIGKILL)
    assert processes.wait(supervisor, 5.0)
    assert [row["TrainingJobStatus"] for row in engine.list()] == ["Failed"]
    assert (list(job.artifacts.iterdir()), copy.exists()) == ([], False)
    assert engine.clean(Cleaning())[0].what.startswith("kept: its files couldn't be archived")


def test_a_job_whose_folder_is_removed_leaves_nothing_behind(engine: LocalEngine, agent: Agent) -> None:
    """Somebody removes the running job's folder; then its agent ends. Expected: no process, no folder of sockets."""
    engine.submit(request("digits", options={"python": agent(USE_RUN_DIR + HELLO + "time.sleep(2)")}))
    wait_until(lambda: texts(engine, "digits") == ["hello"])
    supervisor, folder = store.read(engine.home.job("digits")).supervisor, socket_folder(engine, "digits")
    assert supervisor is not None and folder.exists()
    shutil.rmtree(engine.home.job("digits").path)
    assert processes.wait(supervisor, 20.0)
    assert not folder.exists()
    assert engine.list() == []
