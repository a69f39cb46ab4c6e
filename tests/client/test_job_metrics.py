"""job.metrics(), what metric_definitions find, and the progress that stands for metrics in a log."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas
import pytest

from hdp.contract.errors import HdpError, SpecError
from hdp.contract.metrics import Record, encode
from hdp.estimator import PyTorch, TrainingJob
from hdp.estimator.engines.base import LogLine, LogPage
from hdp.estimator.metrics import COLUMNS, metrics_of
from hdp.estimator.progress import Mark, Progress

from .conftest import MemoryEngine

DEFINITIONS = [
    {"Name": "test:acc", "Regex": r"accuracy ([0-9.naife+-]+)"},
    {"Name": "epoch", "Regex": r"epoch (\d+)|end"},
]


def said(
    time: float,
    step: int | None,
    rank: int | None = 0,
    line_rank: int | None = 0,
    steps: int | None = None,
    **values: float,
) -> LogLine:
    """A line of hdp.metrics by `rank` on algo-1, a tenth of a second under way; `line_rank` is what the agent knows."""
    record = Record(time, time, values, step, "algo-1", rank, steps)
    return LogLine(time + 0.1, "algo-1", line_rank, encode(record))


class Talking(MemoryEngine):
    """One job, that has said `lines`, in pages of two; definitions are those of the request."""

    def __init__(self, lines: Sequence[LogLine], definitions: Sequence[Mapping[str, str]] = ()) -> None:
        super().__init__()
        self.lines, self.definitions = list(lines), list(definitions)

    def describe(self, name: str) -> dict[str, Any]:
        return {**super().describe(name), "AlgorithmSpecification": {"MetricDefinitions": self.definitions}}

    def logs(self, name: str, cursor: Mapping[str, int]) -> LogPage:
        start = cursor.get("n", 0)
        lines = self.lines[start : start + 2]
        return LogPage(lines, {"n": start + len(lines)})


LINES = [
    LogLine(1.0, "algo-1", None, "starting"),
    said(2.0, 0, loss=0.5, samples=64),
    LogLine(3.0, "algo-2", 3, "epoch 1: accuracy 0.75"),
    said(4.0, None, loss=math.nan),
    LogLine(5.0, "algo-2", 3, "accuracy nan, epoch 2, the end"),
]


def test_metrics_are_a_table_with_sagemakers_columns_and_who_said_them() -> None:
    """Both kinds, in the order of the log. A record has the script's time, a definition's match the line's."""
    frame = TrainingJob(Talking(LINES, DEFINITIONS), "digits").metrics()
    assert tuple(frame.columns) == COLUMNS
    assert list(frame.metric_name) == ["loss", "samples", "test:acc", "epoch", "loss", "test:acc", "epoch"]
    assert list(frame.timestamp) == [2.0, 2.0, 3.0, 3.0, 4.0, 5.0, 5.0]
    assert list(frame.value.fillna(-1)) == [0.5, 64.0, 0.75, 1.0, -1.0, -1.0, 2.0]
    assert list(frame.host) == ["algo-1"] * 2 + ["algo-2"] * 2 + ["algo-1"] + ["algo-2"] * 2
    assert list(frame["rank"]) == [0, 0, 3, 3, 0, 3, 3]
    assert [None if pandas.isna(step) else step for step in frame.step] == [0, 0, None, None, None, None, None]


def test_the_largest_step_beside_an_unknown_one_is_whole() -> None:
    frame = TrainingJob(Talking([said(1.0, 2**63 - 1, loss=1), said(2.0, None, loss=1)]), "digits").metrics()
    assert frame.step[0] == 2**63 - 1 and pandas.isna(frame.step[1])


def test_a_job_that_said_nothing_has_an_empty_table() -> None:
    frame = TrainingJob(Talking(LINES[:1]), "digits").metrics()
    assert (len(frame), tuple(frame.columns)) == (0, COLUMNS)


def test_the_rank_is_the_agents_and_where_it_knows_none_the_scripts() -> None:
    """Under mpirun a line may come without a rank; processes that are apart all call themselves 0."""
    lines = [said(1.0, 0, rank=5, line_rank=None, x=1), said(1.0, 0, rank=0, line_rank=2, x=1)]
    assert [metric.rank for metric in metrics_of(lines)] == [5, 2]


def test_definitions_search_each_line_for_their_first_group() -> None:
    """``end`` matches without the group, ``x`` is no number, a record's own JSON isn't searched. Expected: none."""
    lines = [LogLine(1.0, "algo-1", 0, "end"), said(2.0, 0, epoch=3), LogLine(1.0, "algo-1", 0, "accuracy -")]
    assert [(m.metric_name, m.value) for m in metrics_of(lines, DEFINITIONS)] == [("epoch", 3.0)]
    record = {"Name": "loss", "Regex": r'"loss": ([0-9.]+)'}
    assert list(metrics_of([said(2.0, 0, loss=0.5)], [record]))[1:] == []


def test_without_pandas_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    job = TrainingJob(Talking(LINES), "digits")
    with pytest.raises(HdpError, match=r"pip install 'hdp-train\[notebook\]'; job.metric_values\(\) gives the same"):
        job.metrics()
    assert len(job.metric_values()) == 3


def test_the_handle_loads_no_pandas() -> None:
    code = "import sys, hdp.estimator.job; print([m for m in ('pandas', 'matplotlib') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("definitions", "fault"),
    [
        ([("a", "loss ([0-9")], r"metric_definitions[0].Regex: 'loss ([0-9' is no regular expression: "),
        ([("a", "loss")], "metric_definitions[0].Regex: 'loss' has no group; put the number in one, e.g. 'loss: ("),
        (
            [("a", "(.)"), ("b", "(.)"), ("a", "(x)")],
            "metric_definitions[2].Name: 'a' is the name of metric_definitions[0] too; give it another",
        ),
        ([("a", "(" + "x" * 500 + ")")], "MetricDefinitions[0].Regex has 502 characters; at most 500"),
    ],
)
def test_definitions_that_find_nothing_are_refused_before_the_start(
    definitions: list[tuple[str, str]], fault: str, project: Path
) -> None:
    given = [{"Name": name, "Regex": regex} for name, regex in definitions]
    with pytest.raises(SpecError) as caught:
        PyTorch("train.py", metric_definitions=given)
    assert fault in str(caught.value)
    assert len(caught.value.faults) == 1


# ---- progress --------------------------------------------------------------------------------------------------------


def shown(lines: Sequence[LogLine], capsys: pytest.CaptureFixture[str], **wanted: Any) -> list[str]:
    """What logs() prints."""
    TrainingJob(Talking(lines), "digits").logs(**wanted)
    return capsys.readouterr().out.splitlines()


def test_a_log_shows_progress_once_a_second_and_the_last_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    """50 steps, 10 a second, of 64 samples. Expected: steps 0, 10, ... and the last, 640 samples/s, and the print."""
    lines = [said(100 + step / 10, step, loss=1 / (step + 1), samples=64) for step in range(50)]
    lines.insert(25, LogLine(102.45, "algo-1", 0, "half"))
    assert shown(lines, capsys) == [
        "algo-1:0 | step 0  loss 1",
        "algo-1:0 | step 10  loss 0.09091  640 samples/s",
        "algo-1:0 | step 20  loss 0.04762  640 samples/s",
        "algo-1:0 | half",
        "algo-1:0 | step 30  loss 0.03226  640 samples/s",
        "algo-1:0 | step 40  loss 0.02439  640 samples/s",
        "algo-1:0 | step 49  loss 0.02  640 samples/s",
    ]


def test_the_first_rank_speaks_and_samples_of_all_are_added(capsys: pytest.CaptureFixture[str]) -> None:
    """Ranks 1 and 0 log each second: 32 samples in 0.5 s, and 96 in 1 s. Expected: rank 0's lines, 160 samples/s."""
    lines = []
    for step in range(3):
        lines += [
            said(step, step, rank=0, line_rank=0, loss=1.0, samples=96),
            said(step, step, rank=1, line_rank=1, loss=2.0, samples=32, seconds=0.5),
        ]
    assert shown(lines, capsys)[-1] == "algo-1:0 | step 2  loss 1  160 samples/s"
    assert {line.split(" | ")[0] for line in shown(lines, capsys)} == {"algo-1:0"}
    assert shown(lines, capsys, rank=1)[-1] == "algo-1:1 | step 2  loss 2  64 samples/s"


def test_what_is_said_between_two_lines_of_progress_is_not_lost(capsys: pytest.CaptureFixture[str]) -> None:
    """A step, then right behind it the accuracy, of no step. Expected: both in the line that follows."""
    lines = [said(1.0, 1, loss=0.5), said(1.2, 2, loss=0.4), said(1.3, None, accuracy=0.9)]
    assert shown(lines, capsys) == ["algo-1:0 | step 1  loss 0.5", "algo-1:0 | step 2  loss 0.4  accuracy 0.9"]


def test_a_script_that_says_how_many_steps_there_will_be_shows_how_far_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """400 steps, one in 10 s, counted from 0: after the third, 397 are left, an hour and 6 minutes."""
    assert shown([said(10 * step, step, steps=400) for step in range(3)], capsys) == [
        "algo-1:0 | step 0 of 400",
        "algo-1:0 | step 1 of 400  1:06:20 left",
        "algo-1:0 | step 2 of 400  1:06:10 left",
    ]


def test_a_job_that_goes_on_from_a_checkpoint_tells_the_time_left_by_its_own_steps() -> None:
    """It begins with step 90 of 100, one in 2 s."""
    progress = Progress()
    for step in range(90, 95):
        progress.lines_for(said(2.0 * step, step, steps=100))
    assert progress.mark == Mark(done=95, steps=100, seconds_left=10.0)


def test_steps_counted_from_one_end_at_their_number() -> None:
    progress = Progress()
    for step in range(1, 5):
        progress.lines_for(said(2.0 * step, step, steps=4))
    assert progress.mark == Mark(done=4, steps=4, seconds_left=0.0)


def test_text_before_a_metric_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    line = said(1.0, 1, loss=0.5)
    glued = LogLine(line.time, line.host, line.rank, "epoch 1: " + line.text)
    assert shown([glued], capsys) == ["algo-1:0 | epoch 1:", "algo-1:0 | step 1  loss 0.5"]


def test_fit_shows_progress_and_no_raw_line(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    PyTorch("train.py", engine=Talking([said(1.0, 1, loss=0.5), said(1.5, 3, loss=0.25, samples=8)])).fit()
    printed = capsys.readouterr().out
    assert "step 1  loss 0.5\n" in printed and "step 3  loss 0.25  32 samples/s\n" in printed
    assert "#hdp-metrics" not in printed
