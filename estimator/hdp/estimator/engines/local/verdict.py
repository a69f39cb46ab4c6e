"""From how every host ended to how the job ended. Pure."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from hdp.contract.files import FAILURE_MAX_CHARS
from hdp.contract.outcome import Failure, HostReport, first_cause
from hdp.estimator.engines.local import state
from hdp.estimator.engines.local.state import Stage
from hdp.estimator.engines.local.watch import AgentEnd, Stop, StopReason

NO_REPORT = "its agent ended without a report"


@dataclass(frozen=True)
class Verdict:
    """How the job ended, its artifacts apart."""

    stage: Stage
    message: str
    first_cause: Failure | None = None


def judge(
    ends: Sequence[AgentEnd],
    reports: Mapping[str, HostReport],
    tails: Mapping[str, str],
    stop: Stop | None,
    max_runtime: float | None,
    told: Mapping[str, str] = MappingProxyType({}),
) -> Verdict:
    """The job's end.

    ends: one for each host that was started. reports: of the hosts that left one. tails: last lines of each host's
    log, which stand in for a missing report. told: what else is known of how a host's agent ended, in words.
    """
    failed = [end for end in ends if end.exit_code != 0]
    causes = [
        cause
        for end in ends
        for cause in _causes(end, reports.get(end.host), tails.get(end.host, ""), told.get(end.host, NO_REPORT))
    ]
    cause = first_cause(causes)
    if stop is not None and stop.reason is not StopReason.PEER_FAILED and not _came_first(causes, stop):
        return _stopped(stop, max_runtime)
    if failed:
        more = f": {told[failed[0].host]}" if failed[0].host in told else ""
        bare = f"host {failed[0].host} failed (exit code {failed[0].exit_code}){more}"
        reason = cause.summary() if cause else bare
        return Verdict(state.FAILED, reason[:FAILURE_MAX_CHARS], cause)
    return Verdict(state.COMPLETED, "Training job completed")


def _came_first(causes: Sequence[Failure], stop: Stop) -> bool:
    """Whether a rank or a host had failed by itself before the stop."""
    return any(not cause.collateral and cause.time < stop.time for cause in causes)


def _stopped(stop: Stop, max_runtime: float | None) -> Verdict:
    if stop.reason is StopReason.MAX_RUNTIME:
        return Verdict(state.MAX_RUNTIME_EXCEEDED, f"Training ran for MaxRuntimeInSeconds={max_runtime:g} seconds")
    return Verdict(state.STOPPED, "Training job was stopped by request")


def _causes(end: AgentEnd, report: HostReport | None, tail: str, known: str) -> Sequence[Failure]:
    if end.exit_code == 0:
        return ()
    if report is None:
        return [_unreported(end, tail, known)]
    told = [*report.failures, *([report.first_cause] if report.first_cause else [])]
    return told or ([] if report.stopped else [_unreported(end, tail, known)])


def _unreported(end: AgentEnd, tail: str, known: str) -> Failure:
    killed = end.exit_code < 0
    return Failure(
        host=end.host,
        rank=None,
        time=end.time,
        exit_code=None if killed else end.exit_code,
        signal=signal.Signals(-end.exit_code).name if killed else None,
        exception=known,
        traceback=f"last lines of its log:\n{tail}" if tail else "",
    )
