"""The process that owns one running job: ``python -m hdp.estimator.engines.docker.supervisor JOBDIR READY_FD``.

As the local engine's, but its hosts are containers, which don't end with it: what it leaves when it is killed is
removed by whoever looks at the job next (`removal`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from dataclasses import replace

from hdp.contract.errors import HdpError, JobNotFound
from hdp.contract.uris import local_path
from hdp.estimator.engines.docker import daemon, explain, removal
from hdp.estimator.engines.docker.container import Ended
from hdp.estimator.engines.docker.dockerjob import DockerJob, daemon_of
from hdp.estimator.engines.docker.environment import INTERFACE
from hdp.estimator.engines.docker.hosts import start_hosts
from hdp.estimator.engines.docker.options import DockerOptions
from hdp.estimator.engines.local import logfiles, state, store, supervision, trees
from hdp.estimator.engines.local.finish import clip, collect_reports, finish
from hdp.estimator.engines.local.home import JobDir
from hdp.estimator.engines.local.publish import why
from hdp.estimator.engines.local.state import HostState, JobState
from hdp.estimator.engines.local.verdict import Verdict, judge
from hdp.estimator.engines.local.watch import Limits, Watch

LOG = logging.getLogger(__name__)


def supervise(job: DockerJob, stop_fd: int) -> None:
    """Run the job to its end and record how it ended."""
    try:
        verdict = _run(job, daemon_of(job.folder) or daemon.DEFAULT, stop_fd)
    except Exception as exc:
        LOG.exception("job %s", job.folder.name)
        reason = str(exc) if isinstance(exc, HdpError) else why(exc)
        verdict = Verdict(state.FAILED, clip(f"the docker engine couldn't run the job: {reason}"))
    LOG.info("%s", removal.end(job.folder) or "nothing was left in the daemon")
    try:
        finish(job, verdict)
    except JobNotFound as exc:
        LOG.warning("%s, so its end can't be recorded: %s", exc, verdict.message)


def _run(job: DockerJob, where: str, stop_fd: int) -> Verdict:
    _lay(job)
    with daemon.connected(where) as client:
        agents = start_hosts(job, client, where)
    store.update(job.folder, lambda s: supervision.started(_with_hosts(s, job)))
    limits = Limits(float(job.options.stop_timeout_seconds), job.max_runtime)
    watch = Watch(agents, limits, stop_fd, on_stop=lambda reason: supervision.record_stop(job, reason, limits))
    watch.run()
    return _judged(job, watch, {host: agent.ended or Ended(-9) for host, agent in agents.items()})


def _lay(job: DockerJob) -> None:
    """The hosts' trees. What CheckpointConfig names is mounted, so the trees need no link to it."""
    if uri := (job.training_job.get("CheckpointConfig") or {}).get("S3Uri"):
        local_path(uri).mkdir(mode=0o700, parents=True, exist_ok=True)
    trees.lay(job.folder, {**job.training_job, "CheckpointConfig": {}}, INTERFACE)


def _with_hosts(current: JobState, job: DockerJob) -> JobState:
    return replace(current, hosts=tuple(HostState(host, job.container(host)) for host in job.hosts))


def _judged(job: DockerJob, watch: Watch, ended: Mapping[str, Ended]) -> Verdict:
    starved = {host for host, end in ended.items() if end.out_of_memory}
    reports = explain.with_memory(collect_reports(job), starved, job.options)
    reports = explain.without_hearsay(reports, {host for host in ended if host not in reports})
    exit_codes = {end.host: end.exit_code for end in watch.ends}
    started = trees.ranks_started(job.folder, job.hosts)
    store.update(job.folder, lambda s: supervision.ended(s, exit_codes, reports, started))
    told = {
        host: explain.explanation(end, job.options, job.image, host in reports)
        for host, end in ended.items()
        if host not in reports or end.exit_code == explain.STOPPED
    }
    if silent := [end.host for end in watch.ends if end.exit_code == 0 and end.host not in reports]:
        return Verdict(state.FAILED, clip(f"host {silent[0]} failed: {told[silent[0]]}"))
    tails = {end.host: logfiles.tail(job.folder.log(end.host)) for end in watch.ends if end.exit_code != 0}
    return judge(watch.ends, reports, tails, watch.stop, job.max_runtime, told)


def main(argv: list[str]) -> None:
    """Detach from whoever started this, take the job over, say so on READY_FD, run it."""
    supervision.detached(argv, _job_of, supervise)


def _job_of(folder: JobDir) -> DockerJob:
    request = store.read_request(folder)
    return DockerJob(folder, request.training_job, DockerOptions.model_validate(dict(request.engine_options)))


if __name__ == "__main__":
    main(sys.argv[1:])
