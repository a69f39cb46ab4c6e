"""Processes by PID *and* start time, and by the job they belong to (Linux ``/proc``)."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from hdp.contract import env
from hdp.contract.trackers import TIDY_SECONDS, is_tracker

_DEAD_STATES = ("Z", "X", "x")


@dataclass(frozen=True)
class ProcessId:
    """One process of one machine, for ever: PIDs are given out again, this isn't."""

    pid: int
    start_time: int
    """Clock ticks from boot to the start of the process: field 22 of ``/proc/<pid>/stat``."""
    boot: str
    """The kernel's boot id: after a reboot, ticks start again."""
    machine: str
    """Its machine id, or its host name where it has none."""
    pid_namespace: str
    """Inode of the PID namespace: in another one the PID means another process."""


def current() -> ProcessId:
    """This process."""
    return identify(os.getpid())


def identify(pid: int) -> ProcessId:
    """The process that has `pid` now. Raises ProcessLookupError where there is none."""
    found = _stat(pid)
    if found is None:
        raise ProcessLookupError(f"no process has the PID {pid}")
    return ProcessId(pid, found[1], _boot(), _machine(), _pid_namespace())


def can_judge(process: ProcessId) -> bool:
    """Whether this process can tell if `process` lives: same PID namespace, or the machine has rebooted since."""
    if process.boot == _boot():
        return process.pid_namespace == _pid_namespace()
    return process.machine == _machine()


def alive(process: ProcessId) -> bool:
    """Whether `process` runs. Zombies don't. One that can't be judged from here is taken as alive."""
    if not can_judge(process):
        return True
    found = _stat(process.pid) if process.boot == _boot() else None
    return found is not None and found[0] not in _DEAD_STATES and found[1] == process.start_time


def send(process: ProcessId, signum: signal.Signals) -> bool:
    """Send a signal to `process` and to nobody else. Returns whether it was alive."""
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not alive(process) or not can_judge(process):
            return False
        signal.pidfd_send_signal(fd, signum)
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)
    return True


def wait(process: ProcessId, timeout: float) -> bool:
    """Wait up to `timeout` seconds for the end of `process`. Returns whether it has ended."""
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return True
    try:
        return not alive(process) or bool(select.select([fd], [], [], timeout)[0])
    finally:
        os.close(fd)


def of_job(secret: Path) -> list[ProcessId]:
    """Every process of this user that was started by the agents of the job whose secret is in this file.

    Agents get the file's path in their environment, and whatever they start inherits it.
    """
    marker = os.fsencode(f"{env.SECRET_FILE.name}={secret}")
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid() and marker in _environ(entry.path):
            with contextlib.suppress(ProcessLookupError):
                found.append(identify(int(entry.name)))
    return [process for process in found if alive(process)]


def of_network(namespaces: Collection[str]) -> list[ProcessId]:
    """Every process of this user in one of the network namespaces, which are named as in ``/proc/<pid>/ns/net``."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # gone, or somebody else's
                if str(Path(entry.path, "ns/net").readlink()) in namespaces:
                    found.append(identify(int(entry.name)))
    return [process for process in found if alive(process)]


def kill_job(secret: Path) -> Sequence[ProcessId]:
    """SIGKILL every process of the job; see `kill_all`."""
    return kill_all(lambda: of_job(secret))


def kill_all(look: Callable[[], Sequence[ProcessId]], rounds: int = 20) -> Sequence[ProcessId]:
    """SIGKILL what `look` finds, again until it finds nothing; helpers that tidy up get a moment for it.

    Returns those that were found.
    """
    killed: dict[int, ProcessId] = {}
    for _ in range(rounds):
        found = look()
        if not found:
            break
        killed.update({process.pid: process for process in found})
        helpers = [process for process in found if is_tracker(process.pid)]
        _kill([process for process in found if process not in helpers])
        tidy = time.monotonic() + TIDY_SECONDS
        _kill([process for process in helpers if not wait(process, max(0.0, tidy - time.monotonic()))])
        time.sleep(0.01)
    return tuple(killed.values())


def _kill(doomed: Sequence[ProcessId]) -> None:
    for process in doomed:
        send(process, signal.SIGKILL)
    for process in doomed:
        wait(process, 0.5)


def _stat(pid: int) -> tuple[str, int] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name (field 2) is in parentheses and may hold anything, even parentheses and spaces.
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])


def _environ(entry: str) -> list[bytes]:
    try:
        return Path(entry, "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _machine() -> str:
    try:
        machine_id = Path("/etc/machine-id").read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        machine_id = ""
    return machine_id or socket.gethostname()


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
