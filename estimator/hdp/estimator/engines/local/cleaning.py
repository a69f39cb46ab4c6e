"""Frees the disk space that ended jobs hold. A job that runs is never touched."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from hdp.contract.errors import EngineError, JobNotFound
from hdp.estimator.engines.docker import dockerjob
from hdp.estimator.engines.local import leftovers, store
from hdp.estimator.engines.local.home import JobDir
from hdp.estimator.engines.local.state import COMPLETED, JobState
from hdp.estimator.engines.local.store import Store

#: A bundle or an unfinished folder that is younger may belong to a job that is just being submitted.
_YOUNG = timedelta(hours=1)


@dataclass(frozen=True)
class Cleaning:
    """What to clean."""

    names: tuple[str, ...] = ()
    """Only these jobs; empty: all."""
    older_than: timedelta = timedelta(0)
    """Only jobs that ended at least so long ago."""
    whole_jobs: bool = False
    """Remove the jobs altogether, with record, logs and artifacts, and bundles that no job uses any more."""
    dry_run: bool = False
    """Count, remove nothing."""


@dataclass(frozen=True)
class Cleaned:
    """What happened to one job, or (with a name in parentheses) to what belongs to none."""

    name: str
    freed_bytes: int
    what: str
    """In words, e.g. "host trees removed"."""


def clean(jobs: Store, what: Cleaning) -> Sequence[Cleaned]:
    """Clean the jobs that `what` selects.

    Without ``whole_jobs``, the hosts' working trees go; record, logs and artifacts stay, and so do the checkpoints of
    jobs that didn't complete, and trees whose files could not be archived, unless the job is named.
    Raises JobNotFound for a name that isn't there.
    """
    names = what.names or jobs.names()
    done = [_clean_job(jobs.find(name) if what.names else jobs.home.job(name), what) for name in names]
    leftovers = [*_unfinished(jobs), *(_unused_bundles(jobs) if what.whole_jobs else ())]
    freed = sum(_remove(path, what.dry_run) for path in leftovers)
    rows = [row for row in done if row is not None] + ([Cleaned("(leftovers)", freed, "removed")] if freed else [])
    return rows if what.dry_run or not dockerjob.daemons_of(jobs.home) else [*rows, *_strays(jobs)]


def _strays(jobs: Store) -> list[Cleaned]:
    """What is left in a Docker daemon of jobs whose folders are gone."""
    from hdp.estimator.engines.docker import removal

    return [Cleaned(f"({name})", 0, text) for name, text in removal.sweep(jobs.home).items()]


def _clean_job(job: JobDir, what: Cleaning) -> Cleaned | None:
    try:
        before, current = store.read(job), store.noticed(job)
    except JobNotFound:
        return None
    except EngineError:
        # A damaged record: only a request to remove this very job gets rid of it.
        if not (what.whole_jobs and what.names):
            return Cleaned(job.name, 0, "kept: its record can't be read")
        return Cleaned(job.name, _remove(job.path, what.dry_run), "removed")
    if not current.stage.terminal:
        return Cleaned(job.name, 0, "kept: it is running")
    if time.time() - current.modified < what.older_than.total_seconds():
        return None
    ended = [] if before.stage.terminal else list(current.notes[len(before.notes) :])
    if not what.dry_run:
        ended.append(leftovers.end(job, current))
        store.remove_run_folder(current)
    row = _remove_job(job, what) if what.whole_jobs else _free_trees(job, current, what)
    return _with(row, job.name, [line for line in ended if line])


def _with(row: Cleaned | None, name: str, ended: Sequence[str]) -> Cleaned | None:
    """`row`, and which processes were ended before."""
    if not ended:
        return row
    row = row or Cleaned(name, 0, "")
    return replace(row, what="; ".join([*ended, *filter(None, [row.what])]))


def _remove_job(job: JobDir, what: Cleaning) -> Cleaned:
    """Take the job's name away first, so that nobody sees half a job."""
    if what.dry_run:
        return Cleaned(job.name, _size(job.path), "would be removed")
    doomed = job.path.with_name(f"{store.UNFINISHED}{job.name}-{secrets.token_hex(4)}")
    with store.locked(job):
        job.path.rename(doomed)
    return Cleaned(job.name, _remove(doomed, dry_run=False), "removed")


def _free_trees(job: JobDir, current: JobState, what: Cleaning) -> Cleaned | None:
    if current.artifacts.unarchived and not what.names:
        return Cleaned(job.name, 0, "kept: its files couldn't be archived; name the job to free them")
    freed = sum(_remove(path, what.dry_run) for path in _disposable(job, keep_checkpoints=current.stage != COMPLETED))
    return Cleaned(job.name, freed, "host trees " + ("would be " * what.dry_run) + "removed") if freed else None


def _disposable(job: JobDir, keep_checkpoints: bool) -> Iterator[Path]:
    for tree in sorted(job.hosts.iterdir()) if job.hosts.exists() else ():
        if tree.is_dir():
            yield from (p for p in sorted(tree.iterdir()) if not (keep_checkpoints and p.name == "checkpoints"))
    yield from (p for p in (job.reserve,) if p.exists())
    yield from (p for p in (job.checkpoints,) if p.exists() and not keep_checkpoints)


def _unfinished(jobs: Store) -> list[Path]:
    if not jobs.home.jobs.exists():
        return []
    return [p for p in jobs.home.jobs.glob(f"{store.UNFINISHED}*") if _is_old(p)]


def _unused_bundles(jobs: Store) -> list[Path]:
    used = set()
    for name in jobs.names():
        with contextlib.suppress(Exception):
            hyperparameters = store.read_request(jobs.home.job(name)).training_job.get("HyperParameters", {})
            used.add(str(hyperparameters.get("sagemaker_submit_directory", "")))
    bundles = jobs.home.bundles.glob("*.tar.gz") if jobs.home.bundles.exists() else ()
    return [p for p in bundles if _is_old(p) and not any(p.name in uri for uri in used)]


def _is_old(path: Path) -> bool:
    return time.time() - path.stat().st_mtime > _YOUNG.total_seconds()


def _remove(path: Path, dry_run: bool) -> int:
    """Remove a file, a link or a folder. Returns the bytes that it held on disk."""
    held = _size(path)
    if dry_run:
        return held
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
    return held


def _size(path: Path) -> int:
    """Bytes on disk below `path`. Links aren't followed; a file with several names counts once."""
    seen: dict[tuple[int, int], int] = {}
    for entry in [path, *(Path(folder, name) for folder, ds, fs in os.walk(path) for name in [*ds, *fs])]:
        with contextlib.suppress(FileNotFoundError):
            status = entry.lstat()
            seen[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(seen.values())
