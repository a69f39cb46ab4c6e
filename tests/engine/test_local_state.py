"""The table of stages, and states as JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from hdp.contract.outcome import Failure, HostReport, RankOutcome
from hdp.estimator.engines.local import processes, state
from hdp.estimator.engines.local.state import Artifacts, HostState


def fresh() -> state.JobState:
    return state.new("digits", processes.current(), 100.0)


def test_a_state_survives_json() -> None:
    """Every field filled, ranks and failures too. Expected: equal after a round trip through text."""
    failure = Failure("algo-2", 3, 12.5, 1, None, "ValueError: boom", "Traceback", collateral=True)
    report = HostReport("algo-2", (RankOutcome(3, None, "SIGKILL", 20.0, True, ("a.pt",)),), (failure,), failure, True)
    full = replace(
        state.fail(fresh(), "boom", 101.0),
        supervisor=processes.current(),
        hosts=(HostState("algo-1", "127.1.2.1", processes.current(), 0), HostState("algo-2", "127.1.2.2")),
        first_cause=failure,
        reports=(report,),
        artifacts=Artifacts("file:///m", None, unarchived=True),
        notes=("n",),
        environment_differences=("d",),
    )
    assert state.from_json(json.loads(json.dumps(state.to_json(full)))) == full


def test_every_end_is_reached_from_the_start() -> None:
    """Follow the table from Starting. Expected: all nine stages but itself, each terminal one without a successor."""
    seen, todo = set(), [state.STARTING]
    while todo:
        stage = todo.pop()
        seen.add(stage)
        todo += state.NEXT[stage] - seen
    assert seen == set(state.NEXT)
    assert all(bool(state.NEXT[stage]) != stage.terminal for stage in seen)


@pytest.mark.parametrize("stage", [stage for stage in state.NEXT if not stage.terminal])
def test_whatever_runs_can_fail(stage: state.Stage) -> None:
    assert state.FAILED in state.NEXT[stage]


def test_an_ended_job_never_moves_on() -> None:
    """Failed, then Completed. Expected: refused, naming the job."""
    with pytest.raises(ValueError, match="job digits can't go from"):
        state.advance(state.fail(fresh(), "boom", 101.0), state.COMPLETED, "", 102.0)


def test_a_failure_is_the_last_transition_and_the_reason() -> None:
    failed = state.fail(fresh(), "boom", 101.0)
    assert (failed.failure_reason, failed.modified, failed.created) == ("boom", 101.0, 100.0)
    assert failed.transitions[-1] == state.Transition("Failed", "Failed", 101.0, "boom")
