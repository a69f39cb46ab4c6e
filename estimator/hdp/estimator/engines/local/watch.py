"""Waits for a job's agents, in one thread: their ends, a signal to stop, and deadlines.

A stop has a reason. Whatever it is, every agent gets SIGTERM, forwards it to its ranks, and has its time for them and
for its own report; then its whole process group is killed. When a host has failed that time is short: the others know
of it, or have no ranks yet.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

#: What an agent needs beyond the ranks' own deadline: reap, hear the others' end, report, exit.
AGENT_MARGIN_SECONDS = 20.0
#: Agents tell each other of a failure and end by themselves, within 45 s; this is for one that doesn't.
PEER_GRACE_SECONDS = 60.0
#: The same after an agent that was killed, which told nobody. Those that were in contact with it have noticed already;
#: one that waits for it to come would wait for the whole start timeout.
KILLED_PEER_GRACE_SECONDS = 1.0
#: From SIGTERM to SIGKILL when a host has failed: what an agent gives its ranks then (5 s), and to report and exit.
PEER_FAILED_KILL_SECONDS = 8.0


class StopReason(Enum):
    """Why the agents were told to stop."""

    REQUEST = "request"
    MAX_RUNTIME = "max runtime"
    PEER_FAILED = "a host failed"


@dataclass(frozen=True)
class AgentEnd:
    """How an agent ended. ``time`` is Unix seconds; ``exit_code`` is negative for a signal."""

    host: str
    exit_code: int
    time: float


@dataclass(frozen=True)
class Stop:
    """When, by Unix seconds, and why the agents were told to stop."""

    reason: StopReason
    time: float


@dataclass(frozen=True)
class Limits:
    """Deadlines in seconds."""

    stop_timeout: float
    max_runtime: float | None


class Agent(Protocol):
    """One host's agent, as far as it is watched."""

    def end_fd(self) -> int:
        """A descriptor that becomes readable at the agent's end. Whoever asks closes it, after `wait`."""
        ...

    def wait(self) -> int:
        """Its exit code, negative for a signal, once `end_fd` is readable."""
        ...

    def terminate(self) -> None:
        """Send SIGTERM, if it still runs."""
        ...

    def kill(self) -> None:
        """Kill it and what it has started, if it still runs."""
        ...


@dataclass(frozen=True)
class ProcessAgent:
    """An agent that is a child of this process, and leads its process group."""

    process: subprocess.Popen[bytes]

    def end_fd(self) -> int:
        """As `Agent`."""
        return os.pidfd_open(self.process.pid)

    def wait(self) -> int:
        """As `Agent`."""
        return self.process.wait()

    def terminate(self) -> None:
        """As `Agent`."""
        self._signal(signal.SIGTERM, os.kill)

    def kill(self) -> None:
        """As `Agent`."""
        self._signal(signal.SIGKILL, os.killpg)

    def _signal(self, number: signal.Signals, send: Callable[[int, int], None]) -> None:
        # It isn't reaped before `wait`, so the number can't mean another process or group.
        with contextlib.suppress(ProcessLookupError):
            if self.process.returncode is None:
                send(self.process.pid, number)


@dataclass
class Watch:
    """One wait for all agents of a job."""

    agents: Mapping[str, Agent]
    limits: Limits
    stop_fd: int
    """Becomes readable when somebody wants the job to stop."""
    on_stop: Callable[[StopReason], None]
    ends: list[AgentEnd] = field(default_factory=list)
    stop: Stop | None = None
    _deadlines: dict[str, float] = field(default_factory=dict)
    _running: dict[int, str] = field(default_factory=dict)
    """End descriptor to host."""

    def run(self) -> None:
        """Return when every agent has ended; `ends` and `stop` say how."""
        poll = select.poll()
        poll.register(self.stop_fd, select.POLLIN)
        for host, agent in self.agents.items():
            fd = agent.end_fd()
            self._running[fd] = host
            poll.register(fd, select.POLLIN)
        if self.limits.max_runtime is not None:
            self._deadlines["max runtime"] = time.monotonic() + self.limits.max_runtime
        while self._running:
            for fd, _ in poll.poll(self._poll_timeout_ms()):
                poll.unregister(fd)
                self._readable(fd)
            self._due()

    def _readable(self, fd: int) -> None:
        if fd == self.stop_fd:
            self._begin_stop(StopReason.REQUEST)
            return
        host = self._running.pop(fd)
        self.ends.append(AgentEnd(host, self.agents[host].wait(), time.time()))
        os.close(fd)
        if self.ends[-1].exit_code != 0 and self.stop is None:
            grace = KILLED_PEER_GRACE_SECONDS if self.ends[-1].exit_code < 0 else PEER_GRACE_SECONDS
            self._deadlines["peers"] = min(self._deadlines.get("peers", math.inf), time.monotonic() + grace)

    def _due(self) -> None:
        now = time.monotonic()
        due = [name for name, deadline in self._deadlines.items() if deadline <= now]
        for name in due:
            del self._deadlines[name]
            {
                "max runtime": lambda: self._begin_stop(StopReason.MAX_RUNTIME),
                "peers": lambda: self._begin_stop(StopReason.PEER_FAILED),
                "kill": self._kill,
            }[name]()

    def _begin_stop(self, reason: StopReason) -> None:
        if self.stop is not None or not self._running:
            return
        self.stop = Stop(reason, time.time())
        self._deadlines = {"kill": time.monotonic() + self._stop_seconds(reason)}
        for host in self._running.values():
            self.agents[host].terminate()
        self.on_stop(reason)

    def _stop_seconds(self, reason: StopReason) -> float:
        if reason is StopReason.PEER_FAILED:
            return PEER_FAILED_KILL_SECONDS
        return self.limits.stop_timeout + AGENT_MARGIN_SECONDS

    def _kill(self) -> None:
        for host in self._running.values():
            self.agents[host].kill()

    def _poll_timeout_ms(self) -> int | None:
        if not self._deadlines:
            return None
        return max(0, int((min(self._deadlines.values()) - time.monotonic()) * 1000) + 1)
