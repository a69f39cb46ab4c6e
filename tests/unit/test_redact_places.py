"""One secret of each kind, given in every way: it is in nothing that people read of a job."""

import json
import logging
import os

import pytest

from hdp.contract.redact import secret_values
from hdp.estimator import PyTorch
from hdp.estimator.engines.local import logfiles, processes, state
from hdp.runtime.launch.failure import TRACEBACK_CHARS, host_failure, rank_failure
from hdp.runtime.launch.logs import AgentHandler, LogWriter

BY_NAME = "correct-horse"  # nothing but a name tells that it is one
BY_SHAPE = "AKIAIOSFODNN7EXAMPLE"
IN_URL = "sw0rd"
TEXT = f"DB_PASSWORD={BY_NAME} {BY_SHAPE} https://me:{IN_URL}@host/x"


def _clean(text):
    return "***" in text and not [s for s in (BY_NAME, BY_SHAPE, IN_URL) if s in text]


@pytest.fixture
def plan(tmp_path, monkeypatch):
    monkeypatch.setenv("HDP_HOME", str(tmp_path / "home"))
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("")
    values = {"db_password": BY_NAME, "note": TEXT, "nested": {"api": {"token": BY_NAME, "n": [BY_SHAPE]}}}
    return PyTorch(
        "train.py",
        source_dir=str(tmp_path / "code"),
        hyperparameters=values,
        environment={"API_KEY": BY_NAME, "INDEX": f"https://me:{IN_URL}@host/x"},
        tags=[{"Key": "secret", "Value": BY_NAME}],
        output_path=f"file://{tmp_path}/out",
    ).plan()


@pytest.mark.parametrize("face", [str, lambda p: p._repr_html_(), lambda p: json.dumps(p.to_dict())])
def test_no_face_of_a_plan_shows_one(plan, face):
    assert _clean(face(plan))


def test_no_repr_shows_one(plan):
    """Of plan, request and rank: what a notebook or a failed assertion prints."""
    for value in (plan, plan.request, plan.ranks[0]):
        assert not [s for s in (BY_NAME, BY_SHAPE, IN_URL) if s in repr(value)]


def test_a_failure_has_none():
    """In the exception, in its traceback, in stderr where there is none; by name, also where it stands alone."""
    hidden = secret_values({"SM_HPS": json.dumps({"db_password": BY_NAME})})
    error = {"exception": f"ValueError: login {BY_NAME} {TEXT}", "traceback": f"in f\n{TEXT}\n{BY_NAME}"}
    for failure in (
        rank_failure("algo-1", 0, 1, error=error, stderr=[], ended=0.0, hidden=hidden),
        rank_failure("algo-1", 0, 1, error=None, stderr=[TEXT, f"login {BY_NAME}"], ended=0.0, hidden=hidden),
        host_failure("algo-1", ValueError(TEXT), 0.0, TEXT),
    ):
        assert _clean(failure.summary())


@pytest.mark.parametrize("place", range(TRACEBACK_CHARS // 2 - 40, TRACEBACK_CHARS // 2 + 10, 3))
def test_a_traceback_is_not_cut_inside_one(place):
    """Half a key has no shape."""
    text = "x" * place + f" {BY_SHAPE} " + "y" * 2 * TRACEBACK_CHARS
    failure = rank_failure("algo-1", 0, 1, error={"exception": "E", "traceback": text}, stderr=[], ended=0.0)
    assert "AKIA" not in failure.traceback


def test_a_jobs_record_has_none():
    """Failure reason and status messages."""
    job = state.fail(state.new("job", processes.current(), 0.0), TEXT, 1.0)
    assert _clean(job.failure_reason) and _clean(job.transitions[-1].message)


def test_the_end_of_a_log_in_a_message_has_none(tmp_path):
    (tmp_path / "algo-1.log").write_text(f"1.0 [algo-1] {TEXT}\n")
    assert _clean(logfiles.tail(tmp_path / "algo-1.log"))


def test_a_line_of_the_agents_log_has_none():
    read, write = os.pipe()
    record = logging.LogRecord("hdp", logging.INFO, "", 0, "starting %s", (TEXT,), None)
    AgentHandler(LogWriter(write, False, "algo-1")).emit(record)
    os.close(write)
    with os.fdopen(read) as lines:
        assert _clean(lines.read())
