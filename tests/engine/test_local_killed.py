"""What the engine does about processes that were killed: whom it tells, how long it waits, whom it names."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from engine_support import request
from test_local_settings import settings
from test_local_watch import DEAF, SLEEP, watching

from hdp.contract.outcome import HostReport
from hdp.estimator.engines.local import processes, state, store, trees, watch
from hdp.estimator.engines.local.engine import LocalEngine
from hdp.estimator.engines.local.verdict import judge
from hdp.estimator.engines.local.watch import AgentEnd, Limits, Stop, StopReason

KILLED = "import os; os.kill(os.getpid(), 9)"


def test_a_host_that_waits_for_a_killed_one_is_ended_at_once() -> None:
    """a is killed before it told anybody; b would wait for a minute. Expected: b gets SIGTERM a second later."""
    with watching(Limits(20, None), a=KILLED, b=SLEEP) as (watch_, _, told):
        start = time.monotonic()
        watch_.run()
        assert [(end.host, end.exit_code) for end in watch_.ends] == [("a", -signal.SIGKILL), ("b", -signal.SIGTERM)]
        assert told == [StopReason.PEER_FAILED]
        assert watch.KILLED_PEER_GRACE_SECONDS <= time.monotonic() - start < 5


def test_a_host_that_ignores_that_is_killed_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job has 1,000 s for a checkpoint when it is stopped. Expected: not when a host was killed."""
    monkeypatch.setattr(watch, "KILLED_PEER_GRACE_SECONDS", 0.0)
    monkeypatch.setattr(watch, "PEER_FAILED_KILL_SECONDS", 0.2)
    with watching(Limits(1000, None), a=KILLED, b=DEAF) as (watch_, _, _):
        watch_.run()
        assert [end.exit_code for end in watch_.ends] == [-signal.SIGKILL, -signal.SIGKILL]


def test_the_deadlines_of_a_killed_host_fit_into_ten_seconds() -> None:
    assert watch.KILLED_PEER_GRACE_SECONDS + watch.PEER_FAILED_KILL_SECONDS <= 9.0


def test_a_host_that_was_told_to_stop_is_not_why() -> None:
    """algo-1 ended first, as it was told; algo-2 had been killed, but was reaped later. Expected: algo-2 is named."""
    ends = [AgentEnd("algo-1", 143, 9.0), AgentEnd("algo-2", -9, 10.0)]
    reports = {"algo-1": HostReport("algo-1", stopped=True)}
    found = judge(ends, reports, {}, Stop(StopReason.PEER_FAILED, 8.0), None)
    assert (found.stage, found.message) == (
        state.FAILED,
        "host algo-2 failed (killed by SIGKILL): its agent ended without a report",
    )


def test_whoever_reads_that_a_job_has_ended_finds_no_process_of_it(engine: LocalEngine) -> None:
    """The supervisor has recorded the end and takes half a second to exit. Expected: describe() waits for it."""
    job = store.Store(engine.home).create(request("digits"))
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.5)"]) as supervisor:
        identity = processes.identify(supervisor.pid)
        store.update(job, lambda s: state.fail(replace(s, supervisor=identity), "boom", time.time()))
        assert processes.alive(identity)
        assert engine.describe("digits")["TrainingJobStatus"] == "Failed"
        assert not processes.alive(identity)


NAMED = """
import multiprocessing, os, time
semaphore = multiprocessing.get_context("spawn").Semaphore()
print(semaphore._semlock.name, flush=True)
time.sleep(1000)
"""


def test_what_killed_processes_had_in_dev_shm_is_removed(tmp_path: Path) -> None:
    """A process of the job with a named semaphore, and the tracker of it. Expected: both ended, and so is the name."""
    environment = {**os.environ, "HDP_SECRET_FILE": str(tmp_path / "secret")}
    command = [sys.executable, "-c", NAMED]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        name = Path("/dev/shm") / process.stdout.readline().decode().strip().replace("/", "sem.")
        assert name.exists()
        assert len(processes.kill_job(tmp_path / "secret")) == 2
        assert not name.exists() and processes.of_job(tmp_path / "secret") == []


def test_temporary_files_go_where_they_are_removed_with_the_job() -> None:
    """The run folder is in the usual place for temporary things. Expected: TMPDIR is in it, or where the user says."""
    own = settings(run_dir=Path("/scratch/hdp-1/algo-1"))
    assert trees.agent_environment(own, {}, {"TMPDIR": "/scratch"})["TMPDIR"] == "/scratch/hdp-1/algo-1/tmp"
    assert trees.agent_environment(own, {"TMPDIR": "/big"}, {"TMPDIR": "/scratch"})["TMPDIR"] == "/big"


def test_temporary_files_stay_on_the_disk_that_was_chosen_for_them() -> None:
    """The run folder is elsewhere, since TMPDIR is long; or sockets wouldn't fit. Expected: TMPDIR as it was."""
    long = "/scratch/" + 60 * "x"
    for run_dir in ("/tmp/hdp-1/algo-1", f"{long}/hdp-1/algo-1"):
        own = settings(run_dir=Path(run_dir))
        assert trees.agent_environment(own, {}, {"TMPDIR": long})["TMPDIR"] == long
