"""After the hosts have ended: their reports, then the archives of what they left."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from hdp.contract.errors import ContractError, EngineError
from hdp.contract.files import FAILURE_MAX_CHARS, read_json
from hdp.contract.outcome import HostReport
from hdp.contract.outcome import from_json as report_from_json
from hdp.estimator.engines.local import archives, checkpoints, state, store
from hdp.estimator.engines.local.archives import Listing
from hdp.estimator.engines.local.localjob import Job
from hdp.estimator.engines.local.publish import destination, publish, why
from hdp.estimator.engines.local.state import JobState
from hdp.estimator.engines.local.verdict import Verdict

LOG = logging.getLogger(__name__)


def collect_reports(job: Job) -> dict[str, HostReport]:
    """What each host's agent reported; a host without a report that can be read is left out."""
    reports = {}
    for host in job.hosts:
        try:
            reports[host] = report_from_json(read_json(job.folder.tree(host).report))
        except (ContractError, KeyError, TypeError, AttributeError) as exc:
            LOG.warning("%s left no report that can be read: %s", host, exc)
    return reports


def finish(job: Job, verdict: Verdict) -> None:
    """Archive what the hosts left and record the job's last stage."""
    before = store.read(job.folder)
    if before.training_started is not None:
        if before.stage == state.TRAINING:
            store.update(job.folder, lambda s: state.advance(s, state.UPLOADING, "Archiving", time.time()))
        verdict = _archive_all(job, verdict, before.training_started)
    store.update(job.folder, lambda s: _closed(s, verdict))
    LOG.info("job %s: %s", job.folder.name, verdict.stage)


def clip(text: str) -> str:
    """`text` as it fits into a FailureReason."""
    return text if len(text) <= FAILURE_MAX_CHARS else text[: FAILURE_MAX_CHARS - 3] + "..."


def _closed(current: JobState, verdict: Verdict) -> JobState:
    if verdict.stage == state.FAILED:
        return replace(state.fail(current, verdict.message, time.time()), first_cause=verdict.first_cause)
    return state.advance(current, verdict.stage, verdict.message, time.time())


def _archive_all(job: Job, verdict: Verdict, started: float) -> Verdict:
    """Make and publish the archives, and take checkpoints to S3.

    A fault in it makes the job Failed; if it was so already, it is a note. started: Unix seconds.
    """
    kinds = ("output",) if verdict.stage == state.FAILED else ("output", "model")
    faults = [fault for kind in kinds if (fault := _archive_one(job, kind))]
    faults += [fault for fault in [checkpoints.keep(job.folder, job.training_job, started)] if fault]
    if not faults:
        return verdict
    if verdict.stage == state.FAILED:
        store.update(job.folder, lambda s: replace(s, notes=(*s.notes, *faults)))
        return verdict
    return Verdict(state.FAILED, clip(f"training itself ended as {verdict.stage.status}, but {'; '.join(faults)}"))


def _listing(job: Job, kind: str) -> Listing:
    """What goes into the archive: what the hosts have in ``output/data``, or in ``model``."""
    trees = {host: job.folder.tree(host) for host in job.hosts}
    if kind == "output":
        return archives.by_host({host: tree.output_data for host, tree in trees.items()})
    return archives.merge({host: tree.model for host, tree in trees.items()})


def _archive_one(job: Job, kind: str) -> str | None:
    """Archive and publish, and record where it is; no output gives no archive. Returns what went wrong."""
    target = job.folder.artifacts / f"{kind}.tar.gz"
    try:
        listing = _listing(job, kind)
        if kind == "output" and not listing.members:
            return None
        archives.write(listing, target)
    except Exception as exc:
        LOG.exception("archive %s", kind)
        store.update(job.folder, lambda s: replace(s, artifacts=replace(s.artifacts, unarchived=True)))
        return f"{target.name} couldn't be written: {why(exc)}; the files are kept in {job.folder.hosts}"
    fault = None
    try:
        uri = publish(target, destination(job.output_path, job.folder.name, target.name) if job.output_path else None)
    except EngineError as exc:
        LOG.exception("publish %s", kind)
        uri, fault = publish(target, None), str(exc)
    store.update(job.folder, lambda s: _with_artifact(s, kind, uri, listing.notes))
    return fault


def _with_artifact(current: JobState, kind: str, uri: str, notes: tuple[str, ...]) -> JobState:
    old = current.artifacts
    artifacts = replace(old, model=uri) if kind == "model" else replace(old, output=uri)
    return replace(current, artifacts=artifacts, notes=(*current.notes, *(f"{kind}.tar.gz: {note}" for note in notes)))
