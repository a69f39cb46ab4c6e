"""A local job in the shape of SageMaker's DescribeTrainingJob and ListTrainingJobs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

from hdp.contract.outcome import HostReport
from hdp.estimator.engines.base import JobRequest
from hdp.estimator.engines.local.home import JobDir
from hdp.estimator.engines.local.state import JobState, NetworkState
from hdp.estimator.engines.local.trees import ranks_started

#: In the request, but not in what DescribeTrainingJob answers.
_NOT_DESCRIBED = frozenset({"Tags"})


def describe(job: JobDir, request: JobRequest, state: JobState) -> dict[str, Any]:
    """The whole job. Times are aware datetimes, in UTC. What SageMaker has no place for is under ``Hdp``."""
    answer = {k: v for k, v in request.training_job.items() if k not in _NOT_DESCRIBED}
    answer |= summary(state)
    answer["SecondaryStatus"] = state.stage.secondary
    answer["SecondaryStatusTransitions"] = _transitions(state)
    answer |= _training_times(state)
    if state.failure_reason is not None:
        answer["FailureReason"] = state.failure_reason
    if state.artifacts.model is not None:
        answer["ModelArtifacts"] = {"S3ModelArtifacts": state.artifacts.model}
    answer["Hdp"] = _extras(job, request, state)
    return answer


def summary(state: JobState) -> dict[str, Any]:
    """One row of ListTrainingJobs."""
    row: dict[str, Any] = {
        "TrainingJobName": state.name,
        "TrainingJobStatus": state.stage.status,
        "CreationTime": _time(state.created),
        "LastModifiedTime": _time(state.modified),
    }
    if state.stage.terminal:
        row["TrainingEndTime"] = _time(state.training_ended or state.modified)
    return row


def _transitions(state: JobState) -> list[dict[str, Any]]:
    ends = [t.time for t in state.transitions[1:]]
    rows = []
    for i, step in enumerate(state.transitions):
        row = {"Status": step.secondary, "StartTime": _time(step.time), "StatusMessage": step.message}
        if i < len(ends):
            row["EndTime"] = _time(ends[i])
        elif step.stage.terminal:
            row["EndTime"] = row["StartTime"]
        rows.append(row)
    return rows


def _training_times(state: JobState) -> dict[str, Any]:
    if state.training_started is None:
        return {}
    times: dict[str, Any] = {"TrainingStartTime": _time(state.training_started)}
    if state.training_ended is not None:
        times["TrainingTimeInSeconds"] = round(state.training_ended - state.training_started)
    return times


def _of_unknown_rank(reports: Sequence[HostReport], shared: bool) -> dict[str, list[str]]:
    """Host to the checkpoint files for which no rank was found. shared: all hosts have one folder, and list it all."""
    by_host = {r.host: {name for rank in r.ranks for name in rank.checkpoints} for r in reports}
    everybodys = {name for names in by_host.values() for name in names}
    unknown: dict[str, list[str]] = {}
    listed: set[str] = set()
    for report in reports:
        known = everybodys | listed if shared else by_host[report.host]
        unknown[report.host] = [name for name in report.checkpoints if name not in known]
        listed.update(report.checkpoints)
    return unknown


def _extras(job: JobDir, request: JobRequest, state: JobState) -> dict[str, Any]:
    return {
        "job_dir": str(job.path),
        "log_dir": str(job.logs),
        "supervisor": state.supervisor and {"pid": state.supervisor.pid, "start_time": state.supervisor.start_time},
        "hosts": [_host(job, state, i) for i in range(len(state.hosts))],
        "first_cause": asdict(state.first_cause) if state.first_cause else None,
        "ranks": [
            {"host": report.host, **asdict(rank), "checkpoints": list(rank.checkpoints)}
            for report in state.reports
            for rank in report.ranks
        ],
        "checkpoints": {report.host: list(report.checkpoints) for report in state.reports},
        "checkpoints_of_unknown_rank": _of_unknown_rank(
            state.reports, shared="CheckpointConfig" in request.training_job
        ),
        "channels": [asdict(channel) for report in state.reports for channel in report.channels],
        "failures": [asdict(failure) for report in state.reports for failure in report.failures],
        "ranks_started": state.ranks_started or ranks_started(job, [host.name for host in state.hosts]),
        "output_artifacts": state.artifacts.output,
        "notes": list(state.notes),
        "environment_differences": list(state.environment_differences),
        "network": state.network and {"rates": dict(state.network.rates), "hosts": _links(state.network)},
    }


def _links(network: NetworkState) -> dict[str, dict[str, int]]:
    return {host: dict(counters) for host, counters in network.links.items()}


def _host(job: JobDir, state: JobState, i: int) -> dict[str, Any]:
    host = state.hosts[i]
    return {
        "host": host.name,
        "address": host.address,
        "agent_pid": host.agent.pid if host.agent else None,
        "exit_code": host.exit_code,
        "log": str(job.log(host.name)),
        "tree": str(job.tree(host.name).root),
    }


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, tz=timezone.utc)
