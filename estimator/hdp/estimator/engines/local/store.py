"""The jobs on disk: made whole or not at all, read without a lock, changed under one.

``state.json`` is replaced atomically, so readers need no lock; whoever changes it holds the flock on ``state.lock``
from reading to writing. A reader that finds a job's supervisor dead records it, under the same lock.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from hdp.contract.errors import EngineError, HdpError, JobNotFound, SpecError
from hdp.contract.files import JOB_NAME, PART_PREFIX, read_json, write_atomic, write_json
from hdp.contract.uris import local_path, scheme
from hdp.estimator.engines.base import JobRequest
from hdp.estimator.engines.local import leftovers, processes, state
from hdp.estimator.engines.local.home import Home, JobDir
from hdp.estimator.engines.local.publish import destination
from hdp.estimator.engines.local.state import JobState
from hdp.estimator.spelling import did_you_mean

LOG = logging.getLogger(__name__)
#: Enough for any state.json; see `JobDir.reserve`.
RESERVE_BYTES = 256 * 1024
SECRET_BYTES = 32
UNFINISHED = ".new-"
#: A supervisor exits at once when it has recorded the end, but it must get the processor for that.
EXIT_SECONDS = 2.0


@dataclass(frozen=True)
class Store:
    """The jobs below one home."""

    home: Home

    def create(self, request: JobRequest) -> JobDir:
        """Make the job's folder, with its request, secret and first state.

        Raises SpecError where the name is taken, EngineError where the folder can't be written.
        """
        self.home.make()
        target = self.home.job(request.name)
        try:
            unfinished = JobDir(Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=self.home.jobs)))
            try:
                _fill(unfinished, request)
                _take_name(unfinished, target)
            except BaseException:
                shutil.rmtree(unfinished.path, ignore_errors=True)
                raise
        except OSError as exc:
            raise EngineError(f"job {request.name} can't be recorded in {target.path}: {exc.strerror or exc}") from exc
        return target

    def find(self, name: str) -> JobDir:
        """Folder of the job `name`. Raises JobNotFound with the name that comes nearest, and as `names`."""
        job, names = self.home.job(name), self.names()
        if not JOB_NAME.fullmatch(name) or not job.state.exists():
            without_record = f"; the folder {job.path} has no job's record, and may be removed"
            hint = (
                without_record
                if name in names
                else did_you_mean(name, names)
                or "; `hdp jobs --all` lists those that there are; one on SageMaker needs engine='sagemaker' "
                "(--engine sagemaker)"
            )
            raise JobNotFound(f"no job is called {name!r} in {self.home.jobs}{hint}")
        return job

    def names(self) -> list[str]:
        """Names of all jobs. Raises EngineError: the folder of the jobs can't be read."""
        try:
            return sorted(entry.name for entry in os.scandir(self.home.jobs) if JOB_NAME.fullmatch(entry.name))
        except FileNotFoundError:
            return []
        except OSError as exc:
            raise EngineError(
                f"the jobs in {self.home.jobs} can't be read: {exc.strerror}; set HDP_HOME to the folder that has "
                "them, or to another one of your own"
            ) from exc

    def look(self, name: str) -> JobState:
        """The job's state; a supervisor that is gone is noticed. Raises JobNotFound."""
        return noticed(self.find(name))

    def look_all(self) -> list[JobState]:
        """States of all jobs, newest first; a record that can't be read is logged and left out."""
        found = []
        for name in self.names():
            try:
                found.append(self.look(name))
            except JobNotFound:
                continue
            except EngineError as exc:
                LOG.warning("%s", exc)
        return sorted(found, key=lambda job: job.created, reverse=True)


def read(job: JobDir) -> JobState:
    """The job's state as it is on disk. Raises JobNotFound where it was removed, EngineError where it is damaged."""
    try:
        return state.from_json(json.loads(job.state.read_text(encoding="utf-8")))
    except FileNotFoundError as exc:
        raise JobNotFound(f"job {job.name} was removed from {job.path}") from exc
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise EngineError(
            f"{job.state} can't be read as a job's state ({type(exc).__name__}: {exc}); "
            f"`hdp clean {job.name} --all` removes the job"
        ) from exc


def read_request(job: JobDir) -> JobRequest:
    """The job's request, as it was submitted. Raises JobNotFound where it was removed, ContractError where damaged."""
    if not job.request.exists():
        raise JobNotFound(f"job {job.name} was removed from {job.path}")
    value = read_json(job.request)
    return JobRequest(value["training_job"], value["engine_options"])


def update(job: JobDir, change: Callable[[JobState], JobState]) -> JobState:
    """Replace the job's state by ``change(state)``, under its lock. Returns the new one."""
    with locked(job):
        before = read(job)
        after = change(before)
        if after != before:
            _write_state(job, after)
        return after


@contextlib.contextmanager
def locked(job: JobDir) -> Iterator[None]:
    """Hold the job's lock. Raises JobNotFound where the job is gone."""
    try:
        fd = os.open(job.lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError as exc:
        raise JobNotFound(f"job {job.name} was removed from {job.path}") from exc
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def noticed(job: JobDir) -> JobState:
    """The job's state; where nobody answers for it any more, what is left of it is killed and it is Failed.

    Whoever reads that a job has ended finds no process of it.
    """
    current = read(job)
    if current.stage.terminal and current.supervisor is not None and processes.alive(current.supervisor):
        processes.wait(current.supervisor, EXIT_SECONDS)
    if current.stage.terminal or processes.alive(_keeper(current)):
        return current
    return update(job, lambda latest: _bury(job, latest))


def _bury(job: JobDir, latest: JobState) -> JobState:
    if latest.stage.terminal or processes.alive(_keeper(latest)):
        return latest
    ended = leftovers.end(job, latest)
    remove_run_folder(latest)
    remove_partial_files(job)
    if latest.training_ended is not None:  # what the hosts left is in their trees, and maybe nowhere else
        latest = replace(latest, artifacts=replace(latest.artifacts, unarchived=True))
    if ended:
        latest = replace(latest, notes=(*latest.notes, f"{ended} after its supervisor was gone"))
    return state.fail(latest, _epitaph(job, latest), time.time())


def remove_partial_files(job: JobDir) -> None:
    """Remove what a killed supervisor was just writing: archives, the record, copies at the output path."""
    folders = [job.artifacts, job.path]
    with contextlib.suppress(HdpError, ValueError, LookupError):
        output_path = read_request(job).training_job["OutputDataConfig"]["S3OutputPath"]
        if scheme(output_path) == "file":
            folders.append(local_path(destination(output_path, job.name, "")))
    for folder in folders:
        for part in (*folder.glob(".*.part"), *folder.glob(f"{PART_PREFIX}*")):
            part.unlink(missing_ok=True)


def remove_run_folder(job_state: JobState) -> None:
    """Remove the folder of the hosts' sockets; agents that were killed have left theirs in it."""
    if job_state.run_dir is not None:
        shutil.rmtree(job_state.run_dir, ignore_errors=True)


def _keeper(job_state: JobState) -> processes.ProcessId:
    return job_state.supervisor or job_state.creator


def _epitaph(job: JobDir, latest: JobState) -> str:
    if latest.supervisor is None:
        return f"the client (pid {latest.creator.pid}) ended before the job's supervisor had started"
    when = datetime.fromtimestamp(_last_sign(job)).astimezone().isoformat(" ", "seconds")
    return (
        f"the job's supervisor (pid {latest.supervisor.pid}) ended at {when}, or soon after, without recording "
        f"an outcome (killed?); its log: {job.supervisor_log}"
    )


def _last_sign(job: JobDir) -> float:
    files = [job.state, job.supervisor_log, *job.logs.glob("*.log")]
    return max((file.stat().st_mtime for file in files if file.exists()), default=time.time())


def _fill(job: JobDir, request: JobRequest) -> None:
    for folder in (job.logs, job.hosts, job.artifacts):
        folder.mkdir(mode=0o700)
    content = {"training_job": dict(request.training_job), "engine_options": dict(request.engine_options)}
    write_json(job.request, content)
    write_atomic(job.secret, secrets.token_hex(SECRET_BYTES))
    job.lock.touch(mode=0o600)
    job.reserve.write_bytes(bytes(RESERVE_BYTES))
    write_json(job.state, state.to_json(state.new(request.name, processes.current(), time.time())))


def _take_name(unfinished: JobDir, target: JobDir) -> None:
    """Give the finished folder its name: rename() never replaces a folder that isn't empty."""
    try:
        unfinished.path.rename(target.path)
    except OSError as exc:
        if exc.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        raise SpecError(
            [
                f"job_name={target.name!r} is taken by an earlier job; choose another name, leave it out to get one "
                f"with the time in it, or remove that job with `hdp clean {target.name} --all`"
            ]
        ) from exc


def _write_state(job: JobDir, value: JobState) -> None:
    content: dict[str, Any] = state.to_json(value)
    try:
        write_json(job.state, content)
    except OSError as exc:
        if exc.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        job.reserve.unlink(missing_ok=True)
        write_json(job.state, content)
