"""The process that owns one running job: ``python -m hdp.estimator.engines.local.supervisor JOBDIR READY_FD``.

It has one thread, and ends as soon as it has recorded the job's end. SIGTERM means "stop the job" and becomes a
readable pipe. Its agents are killed by the kernel when it ends in any way. Everything that goes wrong ends as the job's
FailureReason; what can't even be recorded is noticed by whoever looks next (`store.noticed`).
"""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from hdp.contract.errors import HdpError, JobNotFound
from hdp.contract.files import new_run_folder
from hdp.estimator.engines.local import checkpoints, logfiles, networks, processes, state, store, supervision, trees
from hdp.estimator.engines.local.finish import clip, collect_reports, finish
from hdp.estimator.engines.local.home import JobDir
from hdp.estimator.engines.local.localjob import LocalJob
from hdp.estimator.engines.local.networks import HostNetwork
from hdp.estimator.engines.local.publish import why
from hdp.estimator.engines.local.start import start_agents
from hdp.estimator.engines.local.state import JobState
from hdp.estimator.engines.local.verdict import Verdict, judge
from hdp.estimator.engines.local.watch import Limits, ProcessAgent, Watch

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
    store.update(job.folder, lambda s: supervision.started(_identified(s, agents)))
    limits = Limits(float(job.options.stop_timeout_seconds), job.max_runtime)
    watch = Watch(agents, limits, stop_fd, on_stop=lambda reason: supervision.record_stop(job, reason, limits))
    watch.run()
    processes.kill_job(job.folder.secret)
    network.count()
    reports = collect_reports(job)
    exit_codes = {end.host: end.exit_code for end in watch.ends}
    started = trees.ranks_started(job.folder, job.hosts)
    store.update(job.folder, lambda s: supervision.ended(s, exit_codes, reports, started))
    tails = {end.host: logfiles.tail(job.folder.log(end.host)) for end in watch.ends if end.exit_code != 0}
    return judge(watch.ends, reports, tails, watch.stop, job.max_runtime)


def _identified(current: JobState, agents: Mapping[str, ProcessAgent]) -> JobState:
    hosts = (replace(host, agent=processes.identify(agents[host.name].process.pid)) for host in current.hosts)
    return replace(current, hosts=tuple(hosts))


def main(argv: list[str]) -> None:
    """Detach from whoever started this, take the job over, say so on READY_FD, run it."""
    supervision.detached(argv, _job_of, supervise)


def _job_of(folder: JobDir) -> LocalJob:
    return LocalJob.of(folder, store.read_request(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
