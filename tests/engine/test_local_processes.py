"""Processes are known by PID and start time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from engine_support import wait_until

from hdp.estimator.engines.local import processes


def test_this_process_is_alive() -> None:
    assert processes.alive(processes.current())


def test_the_start_time_is_field_22() -> None:
    """ps prints the age in seconds. Expected: start ticks + age equal the uptime, to 2 s."""
    age = int(subprocess.run(["ps", "-o", "etimes=", str(os.getpid())], capture_output=True, check=True).stdout)
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    started = processes.current().start_time / os.sysconf("SC_CLK_TCK")
    assert abs(uptime - started - age) < 2


def test_a_pid_that_was_given_out_again_is_not_ours() -> None:
    assert not processes.alive(replace(processes.current(), start_time=processes.current().start_time - 1))


def test_a_zombie_is_dead() -> None:
    """A child has ended and nobody has reaped it. Expected: not alive."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    identity = processes.identify(child.pid)
    with child:
        child.kill()
        assert processes.wait(identity, 10)
        assert Path(f"/proc/{child.pid}/stat").read_text().split()[2] == "Z"
        assert not processes.alive(identity)


def test_a_signal_never_reaches_another_process() -> None:
    """This PID with another start time gets SIGKILL. Expected: refused, and this test goes on."""
    assert not processes.send(replace(processes.current(), start_time=1), signal.SIGKILL)


def test_a_name_with_parentheses_and_spaces_is_read(tmp_path: Path) -> None:
    """comm is ``a) S (b``. Expected: alive."""
    program = tmp_path / "a) S (b"
    program.symlink_to("/bin/sleep")
    child = subprocess.Popen([str(program), "30"])
    try:
        assert processes.alive(processes.identify(child.pid))
    finally:
        child.kill()
        child.wait()


def test_all_processes_of_a_job_are_killed_and_no_others(tmp_path: Path) -> None:
    """Two shells with the job's secret in their environment, one with another job's. Expected: one survives."""
    mine, other = tmp_path / "mine" / "secret", tmp_path / "mine" / "secret2"
    children = [
        subprocess.Popen(["sleep", "30"], env={"HDP_SECRET_FILE": str(secret), "PATH": os.environ["PATH"]})
        for secret in (mine, mine, other)
    ]
    try:
        wait_until(lambda: len(processes.of_job(mine)) == 2)
        assert {p.pid for p in processes.kill_job(mine)} == {children[0].pid, children[1].pid}
        assert [children[0].wait(), children[1].wait(), children[2].poll()] == [-9, -9, None]
    finally:
        for child in children:
            child.kill()
            child.wait()
