"""What an agent does about processes that were killed: no folder is left, and nobody is waited for in vain."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from runtime_cluster import MakeCluster

from hdp.contract.outcome import Failure
from hdp.runtime.launch.coordination import Coordination, failure_message
from hdp.runtime.launch.news import News
from hdp.runtime.launch.timing import Timing

LITTER = """
import os, signal, tempfile
print("made", tempfile.mkdtemp(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_rank_had_in_its_temporary_folder_is_removed(make_cluster: MakeCluster) -> None:
    """The rank makes a temporary folder and is SIGKILLed. Expected: it was in the run folder, which is gone."""
    cluster = make_cluster(LITTER)
    for host in cluster.hosts:
        host.environ.pop("TMPDIR", None)
    assert cluster.run() == [1]
    made = next(line.rpartition("made ")[2] for line in cluster.log().splitlines() if "made " in line)
    assert made.startswith(f"{cluster.run_dir}/algo-1/tmp/")
    assert list(cluster.run_dir.iterdir()) == []


NAMED = """
import multiprocessing, os, signal, time
semaphore = multiprocessing.get_context("spawn").Semaphore()
print("made", semaphore._semlock.name, flush=True)
if os.fork() == 0:
    time.sleep(1000)  # a worker, which the rank's death leaves alive
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_rank_had_in_dev_shm_is_removed(make_cluster: MakeCluster) -> None:
    """A named semaphore, as spawned workers have it. Expected: its tracker outlives the worker, and has removed it."""
    cluster = make_cluster(NAMED)
    assert cluster.run() == [1]
    name = next(line.rpartition("made /")[2] for line in cluster.log().splitlines() if "made " in line)
    deadline = time.monotonic() + 30  # the tracker needs a moment after the worker has ended
    while Path(f"/dev/shm/sem.{name}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert name.startswith("mp-") and not Path(f"/dev/shm/sem.{name}").exists()


def test_the_users_own_tmpdir_is_left_alone(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(LITTER)
    (cluster.base / "own").mkdir()
    cluster.hosts[0].environ["TMPDIR"] = str(cluster.base / "own")
    assert cluster.run() == [1]
    assert len(list((cluster.base / "own").iterdir())) == 1


def test_hosts_that_never_came_are_not_awaited_once_the_job_is_stopped() -> None:
    """algo-2 hasn't come when algo-1 is told to stop. Expected: nobody is to hear more of it."""
    coordination = Coordination(["algo-1", "algo-2"], {}, 600.0, 0.0)
    coordination.hello("algo-1", 1)
    assert coordination.awaited == ("algo-2",)
    coordination.message("algo-1", {"type": "stop"}, 1.0)
    assert (coordination.awaited, coordination.missing) == ((), ("algo-2",))


def test_a_stop_after_a_failure_gives_ranks_no_more_time() -> None:
    """Only who is stopped before anything has failed has the stop timeout for a checkpoint."""
    assert News(stop=1.0).stopped_first and News(stop=1.0, alarm=2.0).stopped_first
    assert not News(stop=2.0, alarm=1.0).stopped_first and not News(alarm=1.0).stopped_first


def test_a_failed_job_ends_within_ten_seconds_whatever_its_ranks_do() -> None:
    """From the failure to SIGTERM and SIGKILL. Expected: three seconds are left to report and to record."""
    assert Timing().grace + Timing().kill <= 7.0


@pytest.mark.parametrize("how", ["failed", "stopped"])
def test_a_host_that_comes_late_is_told_when_all_are_done(how: str) -> None:
    """algo-2 has failed, or stopped the job, and is done before algo-1 comes. Expected: algo-1 hears why, and, once it
    is done, that all are; without that it would wait for its whole deadline.
    """
    coordination = Coordination(["algo-1", "algo-2"], {}, 600.0, 0.0)
    coordination.hello("algo-2", 1)
    failure = Failure("algo-2", None, 1.0, exception="ContractError: broken")
    message = failure_message(failure) if how == "failed" else {"type": "stop"}
    coordination.message("algo-2", message, 1.0)
    assert (None, {"type": "all_done"}) in coordination.message("algo-2", {"type": "done", "ok": False}, 1.1)
    host, told = coordination.hello("algo-1", 1)[0]
    assert (host, told["type"]) == ("algo-1", "cause" if how == "failed" else "stop")
    assert (None, {"type": "all_done"}) in coordination.message("algo-1", {"type": "done", "ok": False}, 1.2)
