"""What every supervisor of this machine does, whatever its hosts are: taking a job over, and its record."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from hdp.contract.outcome import HostReport
from hdp.estimator.engines.local import processes, state, store
from hdp.estimator.engines.local.home import JobDir
from hdp.estimator.engines.local.localjob import Job
from hdp.estimator.engines.local.state import JobState
from hdp.estimator.engines.local.watch import Limits, StopReason

AnyJob = TypeVar("AnyJob", bound=Job)


def detached(argv: list[str], job_of: Callable[[JobDir], AnyJob], supervise: Callable[[AnyJob, int], None]) -> None:
    """A supervisor's main program. argv: the job's folder and READY_FD.

    Detaches from whoever started this, reads the job by `job_of`, takes it over, says so on READY_FD, and calls
    ``supervise(job, stop_fd)``; `stop_fd` becomes readable at the first SIGTERM.
    """
    folder, ready_fd = JobDir(Path(argv[0])), int(argv[1])
    if os.fork():
        os._exit(0)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    stop_fd = _stop_pipe()
    job = job_of(folder)
    store.update(folder, _take_over)
    os.write(ready_fd, b"ok")
    os.close(ready_fd)
    supervise(job, stop_fd)
    # Not by returning: whoever reads that the job has ended may count its processes, and taking down an interpreter
    # with pydantic and boto3 in it takes a moment.
    logging.shutdown()
    os._exit(0)


def started(current: JobState) -> JobState:
    """The hosts run."""
    now = time.time()
    how_many = "1 host" if len(current.hosts) == 1 else f"{len(current.hosts)} hosts"
    return replace(state.advance(current, state.TRAINING, f"Training on {how_many}", now), training_started=now)


def record_stop(job: Job, reason: StopReason, limits: Limits) -> None:
    """Record that the hosts were told to stop, unless it is because one of them has failed."""
    if reason is StopReason.PEER_FAILED:
        return
    why_so = "Stop requested" if reason is StopReason.REQUEST else "MaxRuntimeInSeconds is over"
    message = f"{why_so}; ranks have {limits.stop_timeout:g} s to write a checkpoint"
    store.update(job.folder, lambda s: state.advance(s, state.STOPPING, message, time.time()))


def ended(
    current: JobState, exit_codes: Mapping[str, int], reports: Mapping[str, HostReport], started: float | None
) -> JobState:
    """The hosts have ended. started: Unix seconds when all ranks ran; None where they never did."""
    hosts = tuple(replace(host, exit_code=exit_codes.get(host.name)) for host in current.hosts)
    notes = tuple(f"{host}: {note}" for host, report in reports.items() for note in report.notes)
    return replace(
        current,
        hosts=hosts,
        ranks_started=started,
        training_ended=time.time(),
        reports=tuple(reports.values()),
        notes=(*current.notes, *notes),
    )


def _stop_pipe() -> int:
    readable, writable = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return readable


def _take_over(current: JobState) -> JobState:
    if current.stage.terminal:  # whoever started us has ended, or has given up waiting, and the job was closed
        sys.exit(f"job {current.name} has ended as {current.stage.status} before its supervisor was there")
    return replace(current, supervisor=processes.current())
