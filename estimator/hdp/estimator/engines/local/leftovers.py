"""Ends what still runs of a job that nobody supervises any more."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

from hdp.estimator.engines.docker import dockerjob
from hdp.estimator.engines.local import processes
from hdp.estimator.engines.local.home import JobDir
from hdp.estimator.engines.local.processes import ProcessId
from hdp.estimator.engines.local.state import JobState

#: A network's keeper ends within milliseconds of the supervisor, once it gets the processor and has killed its hosts.
KEEPER_SECONDS = 2.0


def end(job: JobDir, latest: JobState) -> str:
    """End all of the job's processes, or containers. Says what was ended; empty: nothing ran."""
    if dockerjob.record(job).exists():
        from hdp.estimator.engines.docker import removal

        return removal.end(job)
    killed = len(processes.kill_job(job.secret))
    ended = [f"{killed} process{'es' * (killed != 1)} of its hosts"] if killed else []
    keeper = latest.network.keeper if latest.network else None
    # It has seen the supervisor's end, and evicts what runs in the hosts, then ends: unless it is stopped or stuck.
    if keeper is not None and not processes.wait(keeper, KEEPER_SECONDS):
        ended += _end_network(keeper)
    return f"killed {', '.join(ended)}" if ended else ""


def _end_network(keeper: ProcessId) -> list[str]:
    """Kill what is in the hosts, then the keeper: while that lives, the kernel gives nobody else the hosts' numbers."""
    killed = processes.kill_all(lambda: processes.of_network(_held(keeper)))
    if processes.send(keeper, signal.SIGKILL):
        processes.wait(keeper, KEEPER_SECONDS)
    return [
        *([f"{len(killed)} without its mark in its network"] if killed else []),
        f"its network's keeper (pid {keeper.pid})",
    ]


def _held(keeper: ProcessId) -> set[str]:
    """The hosts' network namespaces, which the keeper holds open, as ``net:[number]``."""
    found, others = set(), set()
    with contextlib.suppress(OSError):
        others = {str(Path(f"/proc/{who}/ns/net").readlink()) for who in ("self", keeper.pid)}
        for link in Path(f"/proc/{keeper.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # one that it has closed meanwhile
                found.add(str(link.readlink()))
    return {name for name in found if name.startswith("net:[")} - others
