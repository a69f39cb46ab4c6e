"""The processes of a running local job by their part: supervisor, agents, servers, ranks. Found in /proc."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import belongings

from hdp.estimator.engines.local.home import JobDir

PARTS = ("rank", "agent", "server", "supervisor")


@dataclass(frozen=True)
class Process:
    """One process of a job."""

    part: str
    """One of `PARTS`."""
    pid: int
    place: int
    """A rank's number in the job; a host's index for its agent and its server; 0 for the supervisor."""
    host: str = ""

    def __str__(self) -> str:
        where = f" on {self.host}" if self.host else ""
        return f"{self.part} {self.place}{where}" if self.part == "rank" else self.part + where

    @property
    def expected_reason(self) -> str:
        """What the reason of the job's failure must match when this process is killed."""
        return {
            "rank": rf"rank {self.place} on {self.host} failed \(killed by SIGKILL\)",
            "agent": rf"host {self.host} failed",
            "server": rf"host {self.host} failed.*the reduction server of this host ended \(killed by SIGKILL\)",
            "supervisor": rf"the job's supervisor \(pid {self.pid}\) ended|the supervisor of job \S+ didn't start",
        }[self.part]


def find(job: JobDir, part: str, place: int) -> Process | None:
    """The process that runs now, or None."""
    found = (PARTS_FOUND[part](pid) for pid in belongings.job_pids(job))
    return next((process for process in found if process is not None and process.place == place), None)


def _supervisor(pid: int) -> Process | None:
    """The process that the client starts leads its session; it forks the supervisor, and is gone a moment later."""
    is_one = _runs(pid, "hdp.estimator.engines.local.supervisor") and _session(pid) != pid
    return Process("supervisor", pid, 0) if is_one else None


def _agent(pid: int) -> Process | None:
    """The helper that makes its namespaces is the agent too: it becomes it."""
    arguments = belongings.arguments(pid)
    return _of_host("agent", pid) if arguments[-2:] == ["-m", "hdp.runtime.launch.agent"] else None


def _server(pid: int) -> Process | None:
    arguments = belongings.arguments(pid)
    return _of_host("server", pid) if arguments[-2:] == ["-m", "hdp.collectives.server"] else None


def _rank(pid: int) -> Process | None:
    """A rank leads its session; what it has forked looks the same otherwise."""
    environ = belongings.environment(pid)
    if not _runs(pid, "hdp.runtime.launch.rank_main") or _session(pid) != pid or "RANK" not in environ:
        return None
    return Process("rank", pid, int(environ["RANK"]), f"algo-{int(environ['GROUP_RANK']) + 1}")


def _of_host(part: str, pid: int) -> Process | None:
    host = Path(belongings.environment(pid).get("HDP_RUN_DIR", "")).name
    return Process(part, pid, int(host.rpartition("-")[2]) - 1, host) if host else None


def _runs(pid: int, module: str) -> bool:
    return belongings.arguments(pid)[1:3] == ["-m", module]


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


PARTS_FOUND: dict[str, Callable[[int], Process | None]] = {
    "rank": _rank,
    "agent": _agent,
    "server": _server,
    "supervisor": _supervisor,
}
