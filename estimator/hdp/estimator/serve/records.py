"""What the API changes about a job: its tags, and the few things that UpdateTrainingJob may change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hdp.contract.files import read_json, write_json
from hdp.estimator.engines.local import store
from hdp.estimator.engines.local.home import JobDir


@dataclass(frozen=True)
class Record:
    """One job's."""

    tags: Mapping[str, str] = field(default_factory=dict)
    updates: Mapping[str, Any] = field(default_factory=dict)
    """Members of DescribeTrainingJob's answer, over those of the request."""


def read(job: JobDir) -> Record:
    """The job's record; until something is changed, its tags are those of its request."""
    if job.service.exists():
        kept = read_json(job.service)
        return Record(dict(kept["tags"]), kept["updates"])
    request = store.read_request(job).training_job
    return Record({tag["Key"]: tag["Value"] for tag in request.get("Tags") or ()})


def with_tags(job: JobDir, change: Callable[[dict[str, str]], Mapping[str, str]]) -> Record:
    """Replace the job's tags by ``change(tags)``. Returns the new record."""
    return _changed(job, lambda record: replace(record, tags=change(dict(record.tags))))


def with_updates(job: JobDir, updates: Mapping[str, Any]) -> Record:
    """Add `updates` to those that there are. Returns the new record."""
    return _changed(job, lambda record: replace(record, updates={**record.updates, **updates}))


def _changed(job: JobDir, change: Callable[[Record], Record]) -> Record:
    with store.locked(job):
        after = change(read(job))
        write_json(job.service, {"tags": list(after.tags.items()), "updates": dict(after.updates)})
    return after
