"""Ends the ranks of a host: SIGTERM, a deadline, SIGKILL, and a look at what they save meanwhile."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from hdp.runtime.launch import linux
from hdp.runtime.launch.checkpoints import SAMPLE_SECONDS, CheckpointWatch
from hdp.runtime.launch.reactor import Reactor
from hdp.runtime.launch.supervisor import Supervisor

log = logging.getLogger(__name__)

#: A rank's processes are looked up this often; it takes a walk through all of /proc.
_PROCESSES_SECONDS = 0.5
#: From SIGKILL to the end, which a process in the kernel's hands (a dead network file system) may never reach.
_KILLED_SECONDS = 5.0


def stop_ranks(reactor: Reactor, supervisor: Supervisor, checkpoints: Path, seconds: float) -> CheckpointWatch:
    """Send SIGTERM to the ranks, SIGKILL after `seconds`. Returns what was written below `checkpoints` meanwhile."""
    watch = CheckpointWatch(checkpoints, time.time())
    log.info("SIGTERM to the ranks; SIGKILL in %g s", seconds)
    supervisor.ask_to_stop()
    _sample_until_ended(reactor, supervisor, watch, seconds)
    if not supervisor.ended:
        log.warning("ranks that still run after %g s are killed", seconds)
        supervisor.kill()
        reactor.run_until(lambda: supervisor.ended, _KILLED_SECONDS)
    return watch


def _sample_until_ended(reactor: Reactor, supervisor: Supervisor, watch: CheckpointWatch, seconds: float) -> None:
    processes, looked = supervisor.processes(), time.monotonic()

    def sample() -> None:
        nonlocal processes, looked
        if time.monotonic() - looked > _PROCESSES_SECONDS:
            processes, looked = supervisor.processes(), time.monotonic()
        watch.sample({rank: linux.with_children(pids) for rank, pids in processes.items()})

    timer = reactor.every(SAMPLE_SECONDS, sample)
    reactor.run_until(lambda: supervisor.ended, seconds)
    timer.cancel()
