"""What only the Linux kernel can tell or do about processes: subreaper, death signal, descendants, groups."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hdp.contract import env
from hdp.contract.errors import LaunchError
from hdp.contract.trackers import TIDY_SECONDS, is_tracker

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends. Survives execve."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def die_with_agent() -> None:
    """For a process that the agent has just started: end with the agent, even if it is gone already."""
    agent = os.environ.pop(env.AGENT_PID.name, "")
    die_with_parent()
    if agent and os.getppid() != int(agent):
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, as PID 1 is of all."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def pass_on_no_rights() -> None:
    """What this process starts gets none of the rights that the local engine gave it (to mount FastFile channels)."""
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    unused = ctypes.c_ulong(0)
    if libc.prctl(option, ctypes.c_ulong(value), unused, unused, unused) != 0:
        raise LaunchError(f"prctl({option}) failed: {os.strerror(ctypes.get_errno())}; hdp needs Linux 5.3 or newer")


def send_signal(pid: int, number: int) -> None:
    """Signal a process, if it is still there and ours."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def kill_group(group: int, number: int = signal.SIGKILL) -> None:
    """Signal every process of a group, if there is one."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return


def bind(pid: int, cpus: Collection[int]) -> None:
    """Let a process run on these processors alone, if it is still there and they may be used here."""
    if set(cpus) != os.sched_getaffinity(0):
        with contextlib.suppress(OSError):
            os.sched_setaffinity(pid, cpus)


def descendants(pid: int) -> list[int]:
    """Process IDs of all processes below `pid`, zombies left out. A snapshot."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            state, parent, *_ = _stat(entry)
            if state and state not in "ZX":
                children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    todo = [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def members(leaders: Collection[int]) -> dict[int, list[int]]:
    """Session leader -> process IDs of its session and of all below it, zombies left out. A snapshot.

    What a leader starts stays in its session even where its parent has ended; what leaves the session is still below.
    """
    owner = {leader: leader for leader in leaders}
    living = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            state, parent, _, session = _stat(entry)
            if state and state not in "ZX":
                living[int(entry.name)] = parent
                if session in leaders:
                    owner[int(entry.name)] = session
    for pid in living:
        line = [pid]
        while line[-1] in living and line[-1] not in owner:
            line.append(living[line[-1]])
        if line[-1] in owner:
            owner.update(dict.fromkeys(line, owner[line[-1]]))
    return {leader: [pid for pid, of in owner.items() if of == leader and pid in living] for leader in leaders}


def with_children(pids: Iterable[int]) -> list[int]:
    """`pids` and all that is below them now. Much cheaper than a walk through /proc."""
    found = list(pids)
    for pid in found:  # grows meanwhile
        for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += [child for child in map(int, tasks.read_text().split()) if child not in found]
    return found


def group_alive(group: int) -> bool:
    """Whether a process that isn't a zombie is left in the process group."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            state, _, its_group, _ = _stat(entry)
            if its_group == group and state not in ("", "Z", "X"):
                return True
    return False


def _stat(entry: Path) -> tuple[str, int, int, int]:
    """State, parent, process group and session of /proc/<pid>; an empty state where it is gone."""
    try:
        # The name, in parentheses, may itself hold spaces and parentheses.
        fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
        return fields[0].decode(), int(fields[1]), int(fields[2]), int(fields[3])
    except (OSError, IndexError, ValueError):
        return "", 0, 0, 0


class Children:
    """Starts processes and reaps what this process has adopted.

    Whoever reaps "any child" would also take the exit status of a child that somebody waits for. So every process is
    started here, and the reaper passes over those it knows. Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._own: set[int] = set()

    def spawn(self, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start `command`, an argument vector; `options` as for subprocess.Popen."""
        with self._lock:
            process = subprocess.Popen(command, **options)
            self._own.add(process.pid)
        return process

    def spawn_tethered(
        self, command: Sequence[str], environ: Mapping[str, str], **options: Any
    ) -> subprocess.Popen[bytes]:
        """Start `command` so that it ends with this process, and with the thread that starts it."""
        tether = [sys.executable, "-m", "hdp.runtime.launch.tether", *command]
        return self.spawn(tether, env={**environ, env.AGENT_PID.name: str(os.getpid())}, **options)

    def wait(self, process: subprocess.Popen[bytes]) -> int:
        """Wait until `process` has ended. Returns its return code."""
        code = process.wait()
        self._own.discard(process.pid)
        return code

    def reap_adopted(self) -> None:
        """Collect the ended processes that were adopted, so that no zombies pile up."""
        with self._lock:
            if not _any_zombie():
                return
            for entry in _zombies_of(os.getpid()):
                if entry not in self._own:
                    try:
                        os.waitpid(entry, os.WNOHANG)
                    except ChildProcessError:
                        continue

    def kill_all(self, seconds: float = 5.0) -> list[int]:
        """SIGKILL everything below this process until nothing is left; helpers that tidy up get a moment for it.

        Returns whom it hit.
        """
        hit: list[int] = []
        tidy, deadline = time.monotonic() + TIDY_SECONDS, time.monotonic() + seconds
        while (left := descendants(os.getpid())) and time.monotonic() < deadline:
            doomed = [pid for pid in left if time.monotonic() >= tidy or not is_tracker(pid)]
            for pid in doomed:
                send_signal(pid, signal.SIGKILL)
            hit += [pid for pid in doomed if pid not in hit]
            time.sleep(0.01)
            self.reap_adopted()
        return hit


def _any_zombie() -> bool:
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def _zombies_of(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            state, parent, *_ = _stat(entry)
            if parent == pid and state == "Z":
                found.append(int(entry.name))
    return found
