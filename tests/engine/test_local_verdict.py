"""How hosts ended -> how the job ended."""

from __future__ import annotations

from hdp.contract.outcome import Failure, HostReport
from hdp.estimator.engines.local import state
from hdp.estimator.engines.local.verdict import Verdict, judge
from hdp.estimator.engines.local.watch import AgentEnd, Stop, StopReason

BOOM = Failure("algo-2", 3, 10.0, 1, None, "ValueError: boom", "Traceback")
LOST = Failure("algo-1", 0, 9.5, 1, None, "PeerLost: algo-2:3 is gone", collateral=True)


def verdict(*ends: AgentEnd, reports: tuple[HostReport, ...] = (), stop: Stop | None = None) -> Verdict:
    return judge(ends, {r.host: r for r in reports}, {"algo-1": "last words"}, stop, max_runtime=60.0)


def test_all_hosts_at_zero_is_completed() -> None:
    assert verdict(AgentEnd("algo-1", 0, 1.0), AgentEnd("algo-2", 0, 2.0)).stage == state.COMPLETED


def test_the_first_cause_is_named_not_its_echo() -> None:
    """algo-1's rank failed earlier by the clock, but only because algo-2's had gone. Expected: boom is the cause."""
    reports = (HostReport("algo-1", failures=(LOST,)), HostReport("algo-2", failures=(BOOM,)))
    found = verdict(AgentEnd("algo-1", 1, 11.0), AgentEnd("algo-2", 1, 10.1), reports=reports)
    assert (found.stage, found.first_cause) == (state.FAILED, BOOM)
    assert found.message.startswith("rank 3 on algo-2 failed (exit code 1): ValueError: boom")


def test_what_another_host_was_told_counts_where_the_report_is_lost() -> None:
    """algo-2 left no report, but told algo-1 its failure. Expected: that is the cause."""
    reports = (HostReport("algo-1", failures=(LOST,), first_cause=BOOM),)
    found = verdict(AgentEnd("algo-2", -9, 10.5), AgentEnd("algo-1", 1, 11.0), reports=reports)
    assert found.first_cause == BOOM


def test_an_agent_that_was_killed_is_a_cause_with_its_last_words() -> None:
    found = verdict(AgentEnd("algo-1", -9, 10.0))
    assert found.message == (
        "host algo-1 failed (killed by SIGKILL): its agent ended without a report\nlast lines of its log:\nlast words"
    )


def test_a_requested_stop_is_no_failure() -> None:
    """Ranks end with codes other than 0 after SIGTERM. Expected: Stopped."""
    late = Failure("algo-1", 0, 20.1, None, "SIGTERM")
    reports = (HostReport("algo-1", failures=(late,), stopped=True),)
    found = verdict(AgentEnd("algo-1", 1, 20.5), reports=reports, stop=Stop(StopReason.REQUEST, 20.0))
    assert (found.stage, found.message) == (state.STOPPED, "Training job was stopped by request")


def test_a_failure_before_the_stop_stays_one() -> None:
    reports = (HostReport("algo-2", failures=(BOOM,)),)
    found = verdict(AgentEnd("algo-2", 1, 20.5), reports=reports, stop=Stop(StopReason.REQUEST, 20.0))
    assert found.stage == state.FAILED


def test_time_is_up() -> None:
    found = verdict(AgentEnd("algo-1", 0, 61.0), stop=Stop(StopReason.MAX_RUNTIME, 60.0))
    assert (found.stage, found.message) == (
        state.MAX_RUNTIME_EXCEEDED,
        "Training ran for MaxRuntimeInSeconds=60 seconds",
    )


def test_hosts_that_we_ended_because_one_failed_are_no_stop() -> None:
    reports = (HostReport("algo-2", failures=(BOOM,)), HostReport("algo-1", stopped=True))
    stop = Stop(StopReason.PEER_FAILED, 25.0)
    found = verdict(AgentEnd("algo-2", 1, 10.0), AgentEnd("algo-1", 1, 26.0), reports=reports, stop=stop)
    assert (found.stage, found.first_cause) == (state.FAILED, BOOM)


def test_the_reason_fits_a_failure_reason() -> None:
    """A message and a traceback of 5,000 characters each. Expected: 1,024 at most, rank, host and the end kept."""
    long = Failure("algo-2", 3, 10.0, 1, None, "ValueError: " + "m" * 5000, "t" * 5000 + "the end")
    found = verdict(AgentEnd("algo-2", 1, 10.0), reports=(HostReport("algo-2", failures=(long,)),))
    assert len(found.message) <= 1024
    assert found.message.startswith("rank 3 on algo-2") and found.message.endswith("the end")
