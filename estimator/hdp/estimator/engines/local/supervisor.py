"""The process that owns one running job: ``python -m hdp.estimator.engines.local.supervisor JOBDIR READY_FD``.

It has one thread, and ends as soon as it has recorded the job's end. SIGTERM means "stop the job" and becomes a
readable pipe. Its agents are killed by the kernel when it ends in any way. Everything that goes wrong ends as the job's
FailureReason; what can't even be recorded is noticed by whoever looks next (`store.noticed`).
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from hdp.contract.errors import HdpError, JobNotFound
from hdp.contract.files import new_run_folder
from hdp.contract.outcome import HostReport
from hdp.estimator.engines.local import checkpoints, logfiles, networks, processes, state, store, trees
from hdp.estimator.engines.local.finish import clip, collect_reports, finish
from hdp.estimator.engines.local.home import JobDir
from hdp.estimator.engines.local.localjob import LocalJob
from hdp.estimator.engines.local.networks import HostNetwork
from hdp.estimator.engines.local.publish import why
from hdp.estimator.engines.local.start import start_agents
from hdp.estimator.engines.local.state import JobState
from hdp.estimator.engines.local.verdict import Verdict, judge
from hdp.estimator.engines.local.watch import Limits, StopReason, Watch

LOG = logging.getLogger(__name__)


def supervise(job: LocalJob, stop_fd: int) -> None:
    """Run the job to its end and record how it ended."""
    run_dir = new_run_folder()
    try:
        with networks.made(job) as network:
            verdict = _run(job, run_dir, stop_fd, network)
    except Exception as exc:
        LOG.exception("job %s", job.folder.name)
        reason = str(exc) if isinstance(exc, HdpError) else why(exc)
        verdict = Verdict(state.FAILED, clip(f"the local engine couldn't run the job: {reason}"))
    processes.kill_job(job.folder.secret)
    shutil.rmtree(run_dir, ignore_errors=True)
    try:
        finish(job, verdict)
    except JobNotFound as exc:
        LOG.warning("%s, so its end can't be recorded: %s", exc, verdict.message)


def _run(job: LocalJob, run_dir: Path, stop_fd: int, network: HostNetwork) -> Verdict:
    trees.lay(job.folder, job.training_job, network.interface)
    checkpoints.fetch(job.folder, job.training_job)
    agents = start_agents(job, run_dir, network)
    store.update(job.folder, lambda s: _started(s, agents))
    limits = Limits(float(job.options.stop_timeout_seconds), job.max_runtime)
    watch = Watch(agents, limits, stop_fd, on_stop=lambda reason: _record_stop(job, reason))
    watch.run()
    processes.kill_job(job.folder.secret)
    network.count()
    reports = collect_reports(job)
    exit_codes = {end.host: end.exit_code for end in watch.ends}
    started = trees.ranks_started(job.folder, job.hosts)
    store.update(job.folder, lambda s: _ended(s, exit_codes, reports, started))
    tails = {end.host: logfiles.tail(job.folder.log(end.host)) for end in watch.ends if end.exit_code != 0}
    return judge(watch.ends, reports, tails, watch.stop, job.max_runtime)


def _started(current: JobState, agents: Mapping[str, subprocess.Popen[bytes]]) -> JobState:
    now = time.time()
    hosts = tuple(replace(host, agent=processes.identify(agents[host.name].pid)) for host in current.hosts)
    how_many = "1 host" if len(hosts) == 1 else f"{len(hosts)} hosts"
    current = state.advance(current, state.TRAINING, f"Training on {how_many}", now)
    return replace(current, hosts=hosts, training_started=now)


def _record_stop(job: LocalJob, reason: StopReason) -> None:
    if reason is StopReason.PEER_FAILED:
        return
    why_so = "Stop requested" if reason is StopReason.REQUEST else "MaxRuntimeInSeconds is over"
    message = f"{why_so}; ranks have {job.options.stop_timeout_seconds} s to write a checkpoint"
    store.update(job.folder, lambda s: state.advance(s, state.STOPPING, message, time.time()))


def _ended(
    current: JobState, exit_codes: Mapping[str, int], reports: Mapping[str, HostReport], started: float | None
) -> JobState:
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
    """A file descriptor that becomes readable at the first SIGTERM."""
    readable, writable = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return readable


def _take_over(current: JobState) -> JobState:
    if current.stage.terminal:  # whoever started us has ended, or has given up waiting, and the job was closed
        sys.exit(f"job {current.name} has ended as {current.stage.status} before its supervisor was there")
    return replace(current, supervisor=processes.current())


def main(argv: list[str]) -> None:
    """Detach from whoever started this, take the job over, say so on READY_FD, run it."""
    folder, ready_fd = JobDir(Path(argv[0])), int(argv[1])
    if os.fork():
        os._exit(0)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    stop_fd = _stop_pipe()
    job = LocalJob.of(folder, store.read_request(folder))
    store.update(folder, _take_over)
    os.write(ready_fd, b"ok")
    os.close(ready_fd)
    supervise(job, stop_fd)
    # Not by returning: whoever reads that the job has ended may count its processes, and taking down an interpreter
    # with pydantic and boto3 in it takes a moment.
    logging.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
