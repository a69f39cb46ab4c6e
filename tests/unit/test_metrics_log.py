"""`hdp.metrics.log`: what it writes, in a job and outside, and what it refuses."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import subprocess
import sys
import time
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from hdp import metrics
from hdp.contract.errors import HdpError
from hdp.contract.metrics import MARK, Record, decode, encode

RECORD = Record(1764547200.5, 81.25, {"loss": 0.1, "val/acc": 1e-300}, 7, "algo-2", 3, 500)


@pytest.fixture
def in_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is rank 3 on algo-2."""
    for name, value in {"SM_CURRENT_HOST": "algo-2", "RANK": "3"}.items():
        monkeypatch.setenv(name, value)


def logged(capfd: pytest.CaptureFixture[str]) -> list[Record]:
    return [found[1] for line in capfd.readouterr().out.splitlines() if (found := decode(line))]


@pytest.mark.parametrize("record", [RECORD, Record(1.0, 2.0, {}, 0), Record(1.0, 2.0, {"x": -0.0}, None, None, 0)])
def test_a_record_is_the_same_after_its_travel(record: Record) -> None:
    assert decode(encode(record)) == ("", record)


def test_what_json_has_no_number_for_survives() -> None:
    """nan, inf, -inf: text in strict JSON, and numbers again behind it."""
    line = encode(Record(1.0, 2.0, {"a": math.nan, "b": math.inf, "c": -math.inf}))
    json.loads(line.removeprefix(MARK), parse_constant=pytest.fail)
    found = decode(line)
    assert found is not None
    assert [math.isnan(found[1].values["a"]), found[1].values["b"], found[1].values["c"]] == [True, math.inf, -math.inf]


def test_a_record_behind_an_open_line_is_found() -> None:
    """``epoch 1: #hdp-metrics {...}``: the text, and the record."""
    assert decode("epoch 1: " + encode(RECORD)) == ("epoch 1: ", RECORD)


@pytest.mark.parametrize(
    "line",
    [
        "loss 0.5", encode(RECORD)[:-9], MARK, MARK + "[]", MARK + '{"time": 1, "clock": 1}',
        MARK + '{"time": 1, "clock": 1, "values": {"a": "x"}}', MARK + '{"time": 1, "clock": 1, "values": [1]}',
        MARK + '{"time": 1, "clock": 1, "step": 1.5, "values": {}}', MARK + "[" * 100_000,
    ],
)  # fmt: skip
def test_what_is_no_record_is_none(line: str) -> None:
    assert decode(line) is None


@pytest.mark.parametrize(
    "part",
    [
        '"time": 1e400', '"time": "nan"', '"time": -1', '"time": 253402300800', '"clock": "nan"', '"clock": -1e400',
        '"step": -1', '"step": 9223372036854775808', '"rank": -1', '"values": {"samples": -1}',
        '"values": {"samples": "nan"}', '"values": {"seconds": 1e400}', '"values": {"seconds": -0.1}',
        f'"values": {{"loss": {10**400}}}', r'"values": {"\ud800": 1}',
        r'"values": {"\u001b[2J": 1}', '"values": {"": 1}',
    ],
)  # fmt: skip
def test_a_line_that_no_reader_can_work_with_is_no_record(part: str) -> None:
    """A script prints it itself. The last of two equal keys counts in JSON; without it, this is a record."""
    whole = '{"time": 1, "clock": 2, "step": 1, "values": {"loss": 1}'
    assert decode(MARK + whole + "}") is not None
    assert decode(f"{MARK}{whole}, {part}}}") is None


def test_a_call_in_a_job_is_one_line_that_says_who_and_when(in_a_job: None, capfd: pytest.CaptureFixture[str]) -> None:
    metrics.log(step=7, loss=0.5, samples=64, **{"val/acc": 0.9})
    (record,) = logged(capfd)
    assert (record.step, record.host, record.rank) == (7, "algo-2", 3)
    assert record.values == {"loss": 0.5, "samples": 64.0, "val/acc": 0.9}
    assert record.clock > 0 and record.time > 1.6e9


@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "HOROVOD_RANK"])
def test_other_launchers_ranks_are_known(
    variable: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("HDP_LAUNCHER", "mpi")
    monkeypatch.setenv(variable, "5")
    metrics.log(loss=1)
    assert [(r.rank, r.host) for r in logged(capfd)] == [(5, None)]


@pytest.mark.parametrize(
    "value",
    [
        2, 2.0, Fraction(2), np.float32(2), np.int64(2), np.array(2.0), np.array([2.0]),
        torch.tensor(2.0), torch.tensor([2], dtype=torch.int8), torch.tensor(2.0, requires_grad=True),
        torch.tensor(2.0, dtype=torch.bfloat16),
    ],
)  # fmt: skip
def test_numbers_of_all_kinds_are_numbers(value: Any, in_a_job: None, capfd: pytest.CaptureFixture[str]) -> None:
    metrics.log(loss=value)
    assert logged(capfd)[0].values == {"loss": 2.0}


@pytest.mark.parametrize("step", [3, np.int64(3), torch.tensor(3)])
def test_steps_of_all_kinds_are_steps(step: Any, in_a_job: None, capfd: pytest.CaptureFixture[str]) -> None:
    metrics.log(step=step)
    assert logged(capfd)[0].step == 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "was given nothing; give it step="),
        ({"loss": "0.5"}, "loss='0.5' (str) is no number; expected an int, a float, or an array of one element"),
        ({"loss": True}, "loss=True (bool) is no number"),
        ({"accuracy": None}, "accuracy=None (NoneType) is no number"),
        ({"loss": np.zeros(2)}, "loss=array([0., 0.]) (ndarray) is no number"),
        ({"loss": 1j}, "loss=1j (complex) is no number"),
        ({"loss": 10**400}, "is no number"),
        ({"samples": -1}, "samples=-1.0; expected 0 or more"),
        ({"samples": math.nan}, "samples=nan; expected 0 or more"),
        ({"seconds": math.inf}, "seconds=inf; expected 0 or more, and an end to it"),
        ({"step": -1}, "step=-1 (int); expected a whole number from 0 to 2**63 - 1 (9223372036854775807)"),
        ({"step": 10**30}, "(int); expected a whole number from 0 to 2**63 - 1 (9223372036854775807)"),
        ({"step": 10**5000}, "step=<no text: ValueError> (int); expected a whole number from 0"),
        ({"seconds": -0.5}, "seconds=-0.5; expected 0 or more"),
        ({"step": 1.5}, "step=1.5 (float); expected a whole number"),
        ({"step": True}, "step=True (bool); expected a whole number"),
        ({"step": "1"}, "step='1' (str); expected a whole number"),
        ({"steps": 9}, "steps=9 (int) says how many there will be in all: give it with step="),
        ({"step": 9, "steps": 8}, "steps=8 (int) in all, at step=9; expected a whole number, not below step"),
        ({"step": 0, "steps": 0}, "steps=0 (int) in all, at step=0; expected"),
        ({"step": 0, "steps": 2.5}, "steps=2.5 (float) in all"),
        ({"": 1}, "'' is no name of a metric; expected 1 to 255 printable characters"),
        ({"a\nb": 1}, r"'a\nb' is no name of a metric"),
        ({"x" * 256: 1}, "is no name of a metric"),
    ],
)
def test_what_is_no_metric_is_refused_and_not_written(
    given: dict[str, Any], message: str, in_a_job: None, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(metrics.InvalidMetric) as caught:
        metrics.log(**given)
    assert message in str(caught.value)
    assert isinstance(caught.value, HdpError) and isinstance(caught.value, ValueError)
    assert capfd.readouterr().out == ""


def test_outside_a_job_people_read_it(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("SM_CURRENT_HOST", "HDP_LAUNCHER", "TRAINING_JOB_NAME"):
        monkeypatch.delenv(name, raising=False)
    metrics.log(step=1200, steps=1300, loss=0.123456, samples=2048, seconds=0.5, acc=math.nan)
    assert capfd.readouterr().out == "step 1,200 of 1,300  loss 0.1235  2,048 samples  0.5 s  acc nan\n"


def test_a_redirected_standard_output_loses_no_metric(in_a_job: None, capfd: pytest.CaptureFixture[str]) -> None:
    """sys.stdout leads to memory. Expected: the line is on the process's own output."""
    with contextlib.redirect_stdout(io.StringIO()):
        metrics.log(loss=1)
    assert len(logged(capfd)) == 1


def test_lines_keep_their_order_among_prints_and_survive_a_crash() -> None:
    """Print without a line end, log, print, log, then SIGKILL itself. Expected: all of it, in order."""
    code = (
        "import os, sys\nfrom hdp import metrics\nprint('a ', end='')\nmetrics.log(step=1)\nprint('b')\n"
        "metrics.log(step=2)\nos.kill(os.getpid(), 9)\n"
    )
    environ = {**os.environ, "SM_CURRENT_HOST": "algo-1", "PYTHONUNBUFFERED": ""}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    found = [decode(line) for line in done.stdout.splitlines()]
    assert [line and (line[0], line[1].step) for line in found] == [("a ", 1), None, ("", 2)]


def test_many_metrics_with_long_names_are_lines_that_no_agent_cuts(
    in_a_job: None, capfd: pytest.CaptureFixture[str]
) -> None:
    """120 names of 255 letters of four bytes. Expected: three lines of less than 64 KiB, with all of them."""
    names = [chr(0x1F600 + i) * 255 for i in range(64)] + [chr(0x10400 + i) * 255 for i in range(56)]
    metrics.log(step=1, **dict.fromkeys(names, -1.2345678901234567e-300))
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) == 3 and max(len(line.encode()) for line in lines) < 64 * 1024
    records = [found[1] for line in lines if (found := decode(line))]
    assert [name for record in records for name in record.values] == names
    assert {(record.step, record.clock) for record in records} == {(1, records[0].clock)}


def test_a_signal_handler_may_say_metrics_while_its_script_prints() -> None:
    """The script waits in a full pipe, and a timer's handler logs meanwhile. Expected: no error, whole metrics."""
    code = (
        "import signal, time\nfrom hdp import metrics\n"
        "signal.signal(signal.SIGALRM, lambda *_: metrics.log(loss=1))\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)\n"
        "for _ in range(100):\n    print('a line' * 1000, flush=True)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0)\n"
    )
    environ = {**os.environ, "SM_CURRENT_HOST": "algo-1", "PYTHONUNBUFFERED": ""}
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        time.sleep(0.7)
        out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    said = [line for line in out.splitlines() if MARK in line]
    assert said and all(decode(line) for line in said)


def test_an_output_that_is_gone_does_not_end_the_training() -> None:
    code = "import os\nfrom hdp import metrics\nos.close(1)\nmetrics.log(step=1)\n"
    environ = {**os.environ, "SM_CURRENT_HOST": "algo-1"}
    subprocess.run([sys.executable, "-c", code], env=environ, check=True)


def test_a_full_pipe_that_does_not_wait_is_waited_for() -> None:
    """Standard output is non-blocking, and read late. Expected: all 3,000 lines, each whole."""
    code = (
        "import os\nfrom hdp import metrics\nos.set_blocking(1, False)\n"
        "for step in range(3000):\n    metrics.log(step=step)\n"
    )
    environ = {**os.environ, "SM_CURRENT_HOST": "algo-1"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, check=True, capture_output=True, text=True)
    found = [decode(line) for line in done.stdout.splitlines()]
    assert [line and line[1].step for line in found] == list(range(3000))


def test_it_needs_only_the_standard_library() -> None:
    code = (
        "import sys, hdp.metrics; print([m for m in ('numpy', 'torch', 'pydantic', 'hdp.runtime') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
