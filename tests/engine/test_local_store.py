"""Jobs on disk: names are taken once, changes are never lost, a dead keeper is noticed."""

from __future__ import annotations

import errno
import stat
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from engine_support import request

from hdp.contract.errors import EngineError, JobNotFound, SpecError
from hdp.contract.files import write_json
from hdp.estimator.engines.local import home as home_module
from hdp.estimator.engines.local import processes, store
from hdp.estimator.engines.local.home import Home, home_from


def test_only_the_user_can_see_a_job(home: Home) -> None:
    """Expected: 0700 for the folder, 0600 for the secret, which has 32 random bytes or more."""
    job = store.Store(home).create(request("digits"))
    assert stat.S_IMODE(job.path.stat().st_mode) == 0o700
    assert stat.S_IMODE(job.secret.stat().st_mode) == 0o600
    assert len(job.secret.read_bytes()) >= 32


def test_every_job_has_another_secret(home: Home) -> None:
    jobs = [store.Store(home).create(request(name)) for name in ("one", "two")]
    assert jobs[0].secret.read_bytes() != jobs[1].secret.read_bytes()


def test_a_taken_name_is_refused_with_what_to_do(home: Home) -> None:
    """The same name twice. Expected: SpecError that names it and the command that frees it; the first job stays."""
    store.Store(home).create(request("digits", num_hosts=3))
    with pytest.raises(SpecError, match=r"'digits' is taken by an earlier job.*hdp clean digits --all"):
        store.Store(home).create(request("digits"))
    assert store.read_request(home.job("digits")).training_job["ResourceConfig"]["InstanceCount"] == 3
    assert [folder.name for folder in home.jobs.iterdir()] == ["digits"]


def test_one_of_many_at_once_gets_the_name(home: Home) -> None:
    """Eight threads create "digits". Expected: one succeeds, seven get SpecError."""
    home.make()
    outcomes: list[str] = []

    def create() -> None:
        try:
            store.Store(home).create(request("digits"))
            outcomes.append("made")
        except SpecError:
            outcomes.append("taken")

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["made"] + ["taken"] * 7


def test_updates_from_several_processes_all_arrive(home: Home) -> None:
    """Three processes add 20 notes each. Expected: 60 notes."""
    job = store.Store(home).create(request("digits"))
    code = (
        "import sys; from pathlib import Path; from dataclasses import replace\n"
        "from hdp.estimator.engines.local import store; from hdp.estimator.engines.local.home import JobDir\n"
        "job = JobDir(Path(sys.argv[1]))\n"
        "for i in range(20): store.update(job, lambda s: replace(s, notes=(*s.notes, sys.argv[2])))\n"
    )
    workers = [subprocess.Popen([sys.executable, "-c", code, str(job.path), str(i)]) for i in range(3)]
    assert [worker.wait() for worker in workers] == [0, 0, 0]
    assert sorted(store.read(job).notes) == sorted(str(i) for i in range(3) for _ in range(20))


def test_an_unknown_name_brings_near_ones(home: Home) -> None:
    store.Store(home).create(request("digits-two"))
    with pytest.raises(JobNotFound, match=r"no job is called 'digit-two'.*did you mean 'digits-two'"):
        store.Store(home).find("digit-two")


def test_a_name_that_nothing_comes_near_may_be_elsewhere(home: Home) -> None:
    """As of somebody who attaches to a job on SageMaker, and leaves the engine out."""
    with pytest.raises(JobNotFound, match=r"one on SageMaker needs engine='sagemaker' \(--engine sagemaker\)"):
        store.Store(home).find("digits")


@pytest.mark.parametrize("name", ["../digits", ".", "", "a/b", ".new-x"])
def test_a_name_never_leaves_the_folder(home: Home, name: str) -> None:
    with pytest.raises(JobNotFound):
        store.Store(home).find(name)


def test_a_dead_client_is_noticed(home: Home) -> None:
    """The client made the folder and ended before a supervisor was there. Expected: Failed, naming its PID."""
    job = store.Store(home).create(request("digits"))
    gone = replace(processes.current(), start_time=1)
    store.update(job, lambda s: replace(s, creator=gone))
    seen = store.Store(home).look("digits")
    assert seen.stage.status == "Failed"
    assert seen.failure_reason == f"the client (pid {gone.pid}) ended before the job's supervisor had started"


def test_a_dead_supervisor_is_noticed_and_recorded(home: Home) -> None:
    """Expected: Failed with PID, time and log path, on disk too."""
    job = store.Store(home).create(request("digits"))
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with child:
        supervisor = processes.identify(child.pid)
        store.update(job, lambda s: replace(s, supervisor=supervisor))
        assert store.Store(home).look("digits").stage.status == "InProgress"
    store.Store(home).look("digits")
    reason = store.read(job).failure_reason
    assert reason is not None
    assert f"the job's supervisor (pid {child.pid}) ended at {time.strftime('%Y-%m-')}" in reason
    assert reason.endswith(f"without recording an outcome (killed?); its log: {job.supervisor_log}")


def test_a_job_of_another_machine_is_left_alone(home: Home) -> None:
    """A shared home: the supervisor's boot id and machine are others. Expected: still InProgress."""
    job = store.Store(home).create(request("digits"))
    elsewhere = replace(processes.current(), pid=1, start_time=1, boot="another", machine="another")
    store.update(job, lambda s: replace(s, supervisor=elsewhere))
    assert store.Store(home).look("digits").stage.status == "InProgress"


def test_a_job_from_before_the_reboot_has_failed(home: Home) -> None:
    """This very process, but of another boot of this machine. Expected: Failed."""
    job = store.Store(home).create(request("digits"))
    store.update(job, lambda s: replace(s, supervisor=replace(processes.current(), boot="before")))
    assert store.Store(home).look("digits").stage.status == "Failed"


def test_a_damaged_record_says_which_and_what_to_do(home: Home) -> None:
    job = store.Store(home).create(request("digits"))
    job.state.write_text("{")
    with pytest.raises(EngineError, match=r"state.json can't be read as a job's state.*hdp clean digits --all"):
        store.Store(home).look("digits")


def test_the_outcome_is_recorded_on_a_full_disk(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first write of state.json finds the disk full. Expected: the reserve is given up, the note is there."""
    job = store.Store(home).create(request("digits"))
    real, calls = write_json, []

    def full_while_reserved(path: Path, value: object) -> None:
        calls.append(path)
        if job.reserve.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, value)  # type: ignore[arg-type]  # passed through

    monkeypatch.setattr(store, "write_json", full_while_reserved)
    store.update(job, lambda s: replace(s, notes=("kept",)))
    assert store.read(job).notes == ("kept",)
    assert calls == [job.state, job.state]


def test_a_damaged_record_hides_no_other_job(home: Home) -> None:
    store.Store(home).create(request("one")).state.write_text("{}")
    store.Store(home).create(request("two"))
    assert [job.name for job in store.Store(home).look_all()] == ["two"]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"HDP_HOME": "/a/b"}, "/a/b"),
        ({"XDG_STATE_HOME": "/x"}, "/x/hdp"),
        ({"XDG_STATE_HOME": "relative"}, str(Path("~/.local/state/hdp").expanduser())),
        ({}, str(Path("~/.local/state/hdp").expanduser())),
    ],
)
def test_where_the_home_is(environ: dict[str, str], expected: str) -> None:
    assert str(home_from(environ).path) == expected


def test_a_home_that_cannot_be_made_says_what_to_set(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EngineError, match="set HDP_HOME to a folder that you can write to"):
        home_module.Home(tmp_path / "file" / "hdp").make()
