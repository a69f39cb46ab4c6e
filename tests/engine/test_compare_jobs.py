"""Metrics and comparisons of real jobs of the local engine; their scripts need nothing but hdp.metrics."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from engine_support import client_environment

from hdp.estimator import Comparison, Estimator, TrainingJobFailed, compare
from hdp.estimator.engines.local.home import Home

TRAIN = """\
import os, time
from hdp import metrics

for step in range(12):
    seconds = (float(os.environ.get("MS", "10")) + 3 * (step % 4)) / 1000
    time.sleep(seconds)
    said = {"seconds": seconds} if os.environ.get("SAY") else {}
    metrics.log(step=step, loss=1 / (step + 1), samples=8, **said)
print("accuracy: 0.75", flush=True)
if os.environ.get("FAIL"):
    raise ValueError("boom")
"""
DEFINITIONS = [{"Name": "accuracy", "Regex": r"accuracy: ([0-9.]+)"}]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder has train.py."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "train.py").write_text(TRAIN)
    return folder / "train.py"


def test_metrics_of_all_ranks_are_in_the_table_even_of_a_job_that_failed(
    script: Path, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    """2 hosts x 2 ranks log 12 steps, print an accuracy and crash. Expected: all of it; progress in the shown log."""
    hdp = {"hdp": {"enabled": True, "processes_per_host": 2}}
    estimator = Estimator(
        entry_point="train.py",
        instance_count=2,
        distribution=hdp,
        environment={"FAIL": "1"},
        metric_definitions=DEFINITIONS,
    )
    with pytest.raises(TrainingJobFailed, match="boom"):
        estimator.fit()
    assert estimator.latest_training_job is not None
    frame = estimator.latest_training_job.metrics()
    loss = frame[frame.metric_name == "loss"]
    assert sorted(set(loss["rank"])) == [0, 1, 2, 3] and loss.groupby("rank").step.apply(list).loc[3] == list(range(12))
    assert set(loss[loss["rank"] >= 2].host) == {"algo-2"}
    assert loss[loss.step == 11].value.tolist() == [1 / 12] * 4
    assert frame[frame.metric_name == "samples"].value.sum() == 12 * 8 * 4
    assert frame[frame.metric_name == "accuracy"].value.tolist() == [0.75] * 4
    finals = estimator.latest_training_job.describe()["FinalMetricDataList"]
    assert {row["MetricName"]: row["Value"] for row in finals} == {"loss": 1 / 12, "samples": 8, "accuracy": 0.75}
    assert all(row["Timestamp"].timestamp() >= frame.timestamp.min() for row in finals)
    assert estimator.latest_training_job.describe()["FinalMetricDataList"] == finals  # kept by now
    shown = capsys.readouterr().out
    assert "#hdp-metrics" not in shown
    assert "step 11  loss 0.08333" in shown and " samples/s" in shown


ODD = """\
import json
from hdp import metrics

metrics.log(step=0, loss=1)
whole = {"time": 1, "clock": 2, "step": 1, "values": {"loss": 1}}
odd = [("time", 1e400), ("time", 1e300), ("clock", "nan"), ("step", -1), ("step", 10**30), ("values", {"\\ud800": 1})]
for name, value in odd:
    print("#hdp-metrics " + json.dumps({**whole, name: value}), flush=True)
"""


def test_whatever_a_script_prints_can_be_read(script: Path, home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """Six lines like records that none can be. Expected: the job completes; they are lines of its log, and no metrics.

    Also with final metrics that an earlier version has kept of such a line.
    """
    script.write_text(ODD)
    estimator = Estimator(entry_point="train.py")
    estimator.fit()
    assert capsys.readouterr().out.count("#hdp-metrics") == 6
    job = estimator.latest_training_job
    assert job is not None and job.status == "Completed"
    assert [(m.step, m.value) for m in job.metric_values()] == [(0, 1.0)]
    kept = home.job(job.name).final_metrics
    kept.write_text('{"loss": [Infinity, "1.0"]}')
    assert [row["Value"] for row in job.describe()["FinalMetricDataList"]] == [1.0]


@pytest.mark.slow  # ten jobs
def test_a_difference_is_named_and_equal_ones_are_within_the_spread(script: Path, home: Home) -> None:
    """Steps of 10, 60 and 10 ms, and up to 9 more, with baselines like the first. Expected: some 4 times; within the
    spread; exposed 50 ms. The script says how long its steps took, so that the machine's load has no part in it.
    """
    hdp = {"hdp": {"enabled": True, "processes_per_host": 2}}
    estimator = Estimator(entry_point="train.py", instance_count=2, distribution=hdp, environment={"SAY": "1"})
    variants = {"fast": hdp, "slow": {"environment": {"SAY": "1", "MS": "60"}}, "same": hdp}
    found = compare(estimator, variants, repeats=2)
    slow, same = found.verdict("fast", "slow"), found.verdict("fast", "same")
    assert slow.apart and slow.ratio == pytest.approx(66 / 16)  # medians, without the warm-up
    assert not same.apart and "within the spread" in str(same)
    figures = found.figures["slow"]
    assert figures.exposed is not None and not figures.exposed.estimate
    assert figures.exposed.seconds == pytest.approx(0.05)
    assert figures.samples_per_step == 4 * 8
    assert figures.scaling_efficiency is not None and figures.scaling_efficiency < 0.4
    assert found.losses is not None and found.losses.agree
    assert [run.repeat for run in found.runs] == [1] * 5 + [2] * 5
    assert Comparison.from_json(found.to_json()) == found


@pytest.mark.slow  # a process of its own, that runs three jobs
def test_the_command_compares_from_a_shell_and_keeps_what_was_run_before_a_failure(script: Path, home: Home) -> None:
    """Two variants, of which the second fails. Expected: exit 1, the label and the reason, and a file with both."""
    bad = json.dumps({"environment": {"FAIL": "1"}})
    command = [sys.executable, "-m", "hdp.estimator.cli", "compare", "train.py", "--hosts", "1", "--no-baselines"]
    more = ["--repeats", "1", "--save", "out.json", "--plot", "out.png", "hdp", f"bad={bad}"]
    environ = {**client_environment(home.path), "HDP_HOME": os.environ["HDP_HOME"]}
    done = subprocess.run([*command, *more], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("hdp: variant 'bad', repeat 1: job train-bad-") and "boom" in done.stderr
    assert "is in the table and in out.json; --keep-going goes on" in done.stderr
    assert "written: out.json, out.png" in done.stdout and "\x1b" not in done.stdout
    kept = Comparison.load("out.json")
    assert [(run.label, run.failure is None) for run in kept.runs] == [("hdp", True), ("bad", False)]
    assert Path("out.png").stat().st_size > 10_000
