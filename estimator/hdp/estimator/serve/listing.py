"""ListTrainingJobs: filters, order and pages. Pure, but for reading the jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hdp.estimator.engines.local.describe import summary
from hdp.estimator.engines.local.state import JobState
from hdp.estimator.serve.calls import Call, from_token, to_token
from hdp.estimator.serve.errors import validation

DEFAULT_PAGE = 10


def list_jobs(call: Call) -> dict[str, Any]:
    """ListTrainingJobs."""
    asked = call.arguments
    found = [job for job in call.serving.store.look_all() if wanted(job, asked)]
    page, token = page_of(found, asked)
    rows = [
        {**summary(job), "TrainingJobArn": call.arn(job.name), "SecondaryStatus": job.stage.secondary} for job in page
    ]
    return {"TrainingJobSummaries": rows, **({"NextToken": token} if token else {})}


def wanted(job: JobState, asked: Mapping[str, Any]) -> bool:
    """Whether `job` passes the filters."""
    return (
        asked.get("NameContains", "") in job.name
        and asked.get("StatusEquals") in (None, job.stage.status)
        and asked.get("CreationTimeAfter", job.created) <= job.created <= asked.get("CreationTimeBefore", job.created)
        and asked.get("LastModifiedTimeAfter", job.modified)
        <= job.modified
        <= asked.get("LastModifiedTimeBefore", job.modified)
        and not {"WarmPoolStatusEquals", "TrainingPlanArnEquals"} & asked.keys()  # no job here has either
    )


def page_of(jobs: Sequence[JobState], asked: Mapping[str, Any]) -> tuple[Sequence[JobState], str | None]:
    """The page that is asked for, and the token for the next one.

    A token is the place of the page's last job, so that jobs that come and go meanwhile shift nothing.
    """
    descending = asked.get("SortOrder") == "Descending"
    by = str(asked.get("SortBy", "CreationTime"))
    ordered = sorted(jobs, key=lambda job: _place(job, by), reverse=descending)
    if "NextToken" in asked:
        last = _known(from_token(asked["NextToken"], validation))
        ordered = [job for job in ordered if (_place(job, by) < last if descending else _place(job, by) > last)]
    size = asked.get("MaxResults", DEFAULT_PAGE)
    page = ordered[:size]
    return page, to_token(_place(page[-1], by)) if len(ordered) > size else None


def _place(job: JobState, by: str) -> tuple[str, str]:
    value = {"Name": job.name, "Status": job.stage.status}.get(by, f"{job.created:020.6f}")
    return value, job.name


def _known(token: object) -> tuple[str, str]:
    match token:
        case [str(value), str(name)]:
            return value, name
    raise validation(f"NextToken {token!r} isn't from ListTrainingJobs")
