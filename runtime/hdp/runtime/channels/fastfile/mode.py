"""The agent's side of a FastFile channel: mounts, starts the mount process, watches it, and takes the mount away."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hdp.contract import advice
from hdp.contract.errors import ChannelError
from hdp.contract.files import write_json
from hdp.runtime.channels.fastfile import mounting, stats, wire
from hdp.runtime.launch.failure import split_status
from hdp.runtime.launch.linux import Children

log = logging.getLogger(__name__)

_MODULE = "hdp.runtime.channels.fastfile.process"
#: From the end of its stdin to SIGKILL. It has nothing to save but a line of numbers.
_END_SECONDS = 3.0
_TROUBLES = 20
#: glibc would map and unmap each 8 MiB part, and the kernel zero it each time: 0.3 s of processor time a GiB. With
#: arenas for each of 64 threads there are holes in all of them: 16 readers took 704 to 766 MiB, with one arena 544.
_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(64 << 20), "MALLOC_ARENA_MAX": "1"}
_TAIL_LINES = 10
#: proc(5), /proc/PID/stat: which field has the flags, counted from the state; include/linux/sched.h has their bits. A
#: thread gets this one before it gives back its files, so that all have it when readers hear of the end.
_FLAGS, _PF_EXITING = 6, 0x4


class Mount:
    """One mounted channel. It is there when this returns."""

    def __init__(
        self, task: wire.Task, children: Children, stopped: Callable[[], bool], report: Path | None = None
    ) -> None:
        """report: where its numbers go at the end. Raises ChannelError."""
        self._task = task
        self._children = children
        self._report = report
        self._target = Path(task.target)
        self._ready = threading.Event()
        self._ending = False
        self._lost: str | None = None
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._troubles: list[str] = []
        self._numbers: Mapping[str, float] | None = None
        self._stopped_once = threading.Lock()
        self.well_at = time.time()
        """When the process was last heard of."""
        fd = mounting.mount(self._target, children.spawn)
        try:
            self._process = self._spawn(fd)
        except BaseException:
            mounting.unmount(self._target, children.spawn)
            raise
        finally:
            os.close(fd)  # only the process has it now: when it ends, whoever reads gets an error
        self._listener = threading.Thread(target=self._listen, name=f"hdp-mount-{task.channel}", daemon=True)
        self._listener.start()
        self._begin(stopped)
        self._task = replace(task, entries=())  # a million of them take 300 MB

    @property
    def pid(self) -> int:
        """The mount process."""
        return self._process.pid

    def failure(self) -> str | None:
        """Why the channel can't be read any more."""
        if self._lost is None and not self._ending and self._has_ended():
            self._listener.join(1.0)
        return self._lost

    def troubles(self) -> list[str]:
        """Objects that could not be read, and why; the first ones."""
        return list(self._troubles)

    def numbers(self) -> Mapping[str, float]:
        """What it has counted so far (`stats.Numbers`), as of half a second ago, or of its end."""
        return self._numbers or {}

    def stop(self) -> None:
        """Take the mount away and end the process. May be called twice."""
        if not self._stopped_once.acquire(blocking=False):
            return
        self._ending = True
        mounting.unmount(self._target, self._children.spawn)
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._listener.join(_END_SECONDS)
        if self._listener.is_alive():
            log.warning("channel %s: the mount process did not end within %g s; it is killed", self._task.channel,
                        _END_SECONDS)  # fmt: skip
            self._process.send_signal(signal.SIGKILL)
            self._listener.join(_END_SECONDS)
        self._leave_numbers()

    def _spawn(self, fd: int) -> subprocess.Popen[bytes]:
        # A session of its own: a Ctrl-C on a terminal must not take the data away before the ranks have ended.
        environ = {**os.environ, **_ALLOCATOR}
        command = [sys.executable, "-m", _MODULE, "--fd", str(fd), "--target", str(self._target)]
        return self._children.spawn(
            command, env=environ, pass_fds=[fd], start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def _begin(self, stopped: Callable[[], bool]) -> None:
        assert self._process.stdin is not None
        try:
            with contextlib.suppress(BrokenPipeError):
                for line in self._task.lines():
                    self._process.stdin.write(line)
                self._process.stdin.flush()
            while not self._ready.wait(0.05):
                if stopped():
                    break
            if self._lost is not None:
                raise ChannelError(self._lost)
            if self._ready.is_set():
                mounting.read_far_ahead(self._target)
        except BaseException:
            self.stop()
            raise

    def _listen(self) -> None:
        """The listener's thread: until the process has ended."""
        assert self._process.stdout is not None
        refused = None
        for raw in self._process.stdout:
            text = raw.decode(errors="replace").rstrip("\n")
            event = wire.read_event(text)
            if event is None:
                self._tail.append(text)
            elif event["event"] == "refused":
                refused = str(event["text"])
            else:
                self._hear(event)
        code = self._children.wait(self._process)
        self._process.stdout.close()
        if not self._ending:
            mounting.unmount(self._target, self._children.spawn)
            self._lost = refused or self._how_lost(code)
        self._ready.set()

    def _hear(self, event: Mapping[str, Any]) -> None:
        self.well_at = time.time()
        if event["event"] == "ready":
            self._ready.set()
        elif event["event"] == "numbers":
            self._numbers = event["values"]
        elif event["event"] == "trouble":
            log.error("channel %s: %s", self._task.channel, event["text"])
            if len(self._troubles) < _TROUBLES:
                self._troubles.append(event["text"])
        else:
            log.log(event["level"], "channel %s: %s", self._task.channel, event["text"])

    def _how_lost(self, returncode: int) -> str:
        code, by_signal = split_status(returncode)
        how = f"killed by {by_signal}" if by_signal else f"exit code {code}"
        last = "".join(f"\n{line}" for line in self._tail)
        return f"its mount process ended ({how}), so its files can't be read any more{last}"

    def _has_ended(self) -> bool:
        """Whether it has, or the kernel is at it: a rank may die of it before the process can be waited for."""
        try:
            stat = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="utf-8", errors="replace")
            return bool(int(stat.rpartition(")")[2].split()[_FLAGS]) & _PF_EXITING)
        except OSError:
            return self._was_waited_for()

    def _was_waited_for(self) -> bool:
        try:
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def _leave_numbers(self) -> None:
        if self._numbers is None:
            return
        for line in (stats.line(self._numbers), *advice.after(self._numbers)):
            log.info("channel %s: %s", self._task.channel, line)
        if self._report is not None:
            try:
                self._report.parent.mkdir(parents=True, exist_ok=True)
                write_json(self._report, {"channel": self._task.channel, "from": self._task.base, **self._numbers})
            except OSError as exc:
                log.warning("channel %s: its numbers can't be kept: %s", self._task.channel, exc)
