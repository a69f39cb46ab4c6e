"""The counters of what a job has count, and see what is left: without that, finding nothing would prove nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import belongings
import pytest

from hdp.estimator.engines.local import processes
from hdp.estimator.engines.local.home import Home

HOLDER = """
import mmap, os, socket, sys, time
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.ftruncate(file, 4096)
memory = mmap.mmap(file, 4096)
memfd = os.memfd_create("hdp-arena")
pair = socket.socketpair()
if os.fork() == 0:
    time.sleep(1000)
print(flush=True)
time.sleep(1000)
"""


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder for temporary things that nobody shares with this test."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_what_a_job_has_is_counted_and_what_is_left_is_seen(tmp_path: Path) -> None:
    """Two processes of the job, a memfd, two sockets, shared memory. Expected: seen, left while one lives, then not.

    The shared memory has a name, and stays until somebody removes that.
    """
    shared = Path("/dev/shm", f"hdp-test-{os.getpid()}")
    job = Home(tmp_path).job("digits")
    before = belongings.folders()
    environment = {"HDP_SECRET_FILE": str(job.secret)}
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(shared)], env=environment, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        had = belongings.of_job(job)
        counts = {kind: len(things) for kind, things in had.kinds().items()}
        expected = {"processes": 2, "memfds": 1, "sockets": 2, "folders": 1}
        assert {kind: counts[kind] for kind in expected} == expected
        parent.kill()
        parent.wait()
        left = belongings.left(job, had, before)
        assert {kind: len(things) for kind, things in left.items()} == {**expected, "processes": 1}
        for process in had.processes:
            processes.send(process, signal.SIGKILL)
            processes.wait(process, 5.0)
        assert belongings.left(job, had, before) == {"folders": [str(shared)]}
        shared.unlink()
        assert belongings.left(job, had, before) == {}


def test_a_folder_that_is_left_is_seen(tmp_path: Path) -> None:
    job, before = Home(tmp_path / "home").job("digits"), belongings.folders()
    had = belongings.of_job(job)
    (tmp_path / "hdp-0123").mkdir()
    assert belongings.left(job, had, before) == {"folders": [str(tmp_path / "hdp-0123")]}
