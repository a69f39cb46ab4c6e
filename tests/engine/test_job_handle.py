"""The handle and the log view, over an engine that plays back what it is given."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import pytest

from hdp.contract.errors import JobNotFound, SpecError, TrainingJobFailed, TrainingJobStopped
from hdp.estimator import logs
from hdp.estimator.engines.base import Capabilities, JobRequest, LogLine, LogPage
from hdp.estimator.job import TrainingJob

TIMES = [datetime.fromtimestamp(seconds, tz=timezone.utc) for seconds in (0.5, 2.5, 4.0)]
LINES = [
    LogLine(1.0, "algo-1", None, "starting"),
    LogLine(2.0, "algo-2", 3, "loss 0.5"),
    LogLine(3.0, "algo-1", 0, "end"),
]


class Playback:
    """An engine with one job: each description is the next status; a line more is there at each."""

    name = "playback"

    def __init__(self, *statuses: str, reason: str = "") -> None:
        self.statuses, self.reason, self.asked, self.stopped = list(statuses), reason, 0, 0

    def describe(self, name: str) -> dict[str, Any]:
        seen = self.statuses[: self.asked + 1]
        self.asked += 1
        steps = [{"Status": s, "StartTime": t, "StatusMessage": f"now {s}"} for s, t in zip(seen, TIMES, strict=False)]
        answer = {"TrainingJobName": name, "TrainingJobStatus": seen[-1], "SecondaryStatus": seen[-1]}
        return {
            **answer,
            "SecondaryStatusTransitions": steps,
            **({"FailureReason": self.reason} if self.reason else {}),
        }

    def logs(self, name: str, cursor: Mapping[str, int]) -> LogPage:
        start = cursor.get("n", 0)
        last = len(LINES) if self.asked >= len(self.statuses) else min(self.asked, len(LINES))
        lines = LINES[start:last][:1]
        return LogPage(lines, {"n": start + len(lines)})

    def stop(self, name: str) -> None:
        self.stopped += 1

    def capabilities(
        self, training_job: Mapping[str, Any] | None = None, options: Mapping[str, Any] | None = None
    ) -> Capabilities:
        return Capabilities()

    def validate_options(self, options: Mapping[str, Any]) -> tuple[Mapping[str, Any], Sequence[str]]:
        return options, ()

    def bundle_uri(self, digest: str, base: str = "") -> str:
        return digest

    def put_bundle(self, digest: str, archive: bytes, base: str = "", key_id: str | None = None) -> str:
        return digest

    def submit(self, request: JobRequest) -> None: ...

    def list(self) -> Sequence[dict[str, Any]]:
        return ()


BY_TIME = [
    "InProgress - now InProgress",
    "algo-1 | starting",
    "algo-2:3 | loss 0.5",
    "Uploading - now Uploading",
    "algo-1:0 | end",
    "Completed - now Completed",
]


def shown_by(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What was printed, without the clock times of transitions."""
    lines = capsys.readouterr().out.splitlines()
    return [line.split(" ", 1)[1] if "now" in line else line for line in lines]


def test_wait_shows_every_line_and_transition_once(capsys: pytest.CaptureFixture[str]) -> None:
    TrainingJob(Playback("InProgress", "Uploading", "Completed"), "digits").wait()
    assert shown_by(capsys) == BY_TIME


def test_what_happened_stands_behind_the_lines_from_before_it(capsys: pytest.CaptureFixture[str]) -> None:
    """All is known at the first look: stages at 0.5, 2.5 and 4, lines at 1, 2 and 3. Expected: by time."""
    job = TrainingJob(Playback("InProgress", "Uploading", "Completed"), "digits")
    job.engine.asked = 2  # type: ignore[attr-defined]  # the playback's own
    job.wait()
    assert shown_by(capsys) == BY_TIME


def test_a_job_that_is_removed_while_it_is_followed_says_so() -> None:
    """The second look finds no job. Expected: JobNotFound that tells removed from never there."""

    class Removed(Playback):
        def describe(self, name: str) -> dict[str, Any]:
            if self.asked:
                raise JobNotFound("no job is called 'digits'")
            return super().describe(name)

    with pytest.raises(JobNotFound, match="job digits was removed while it was followed"):
        TrainingJob(Removed("InProgress"), "digits").logs(follow=True)
    removed = Removed("InProgress")
    removed.asked = 1
    with pytest.raises(JobNotFound, match="no job is called 'digits'"):
        TrainingJob(removed, "digits").logs(follow=True)


@pytest.mark.parametrize("nothing", [None, False, "None"])
def test_wait_shows_nothing_where_nothing_is_wanted(nothing: None, capsys: pytest.CaptureFixture[str]) -> None:
    TrainingJob(Playback("InProgress", "Completed"), "digits").wait(logs=nothing)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("logs_", ["all", ["All"], 7])
def test_an_unknown_choice_of_logs_is_refused(logs_: Any) -> None:
    with pytest.raises(SpecError, match='expected "All", or None'):
        TrainingJob(Playback("InProgress"), "digits").wait(logs=logs_)


def test_a_failed_job_raises_with_its_reason_and_the_next_call() -> None:
    with pytest.raises(TrainingJobFailed, match=r"job digits failed: boom\nnext: hdp logs digits") as caught:
        TrainingJob(Playback("Failed", reason="boom"), "digits").wait(logs=None)
    assert (caught.value.job_name, caught.value.reason) == ("digits", "boom")


def test_a_stopped_job_raises() -> None:
    with pytest.raises(TrainingJobStopped, match="job digits was stopped: now Stopped"):
        TrainingJob(Playback("Stopped"), "digits").wait(logs=None)


def test_logs_of_a_failed_job_are_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Filtered by rank, then by host. Expected: only their lines."""
    TrainingJob(Playback("Failed"), "digits").logs(follow=True, rank=3)
    TrainingJob(Playback("Failed"), "digits").logs(follow=True, host="algo-1")
    assert capsys.readouterr().out.splitlines() == ["algo-2:3 | loss 0.5", "algo-1 | starting", "algo-1:0 | end"]


def test_a_notebook_shows_status_and_escapes() -> None:
    shown = TrainingJob(Playback("Failed", reason="<b>boom"), "digits")._repr_html_()
    assert "Failed: &lt;b&gt;boom" in shown and "<b>boom" not in shown


def test_a_host_keeps_its_colour_and_hosts_one_and_six_differ() -> None:
    shown = [logs.render(LogLine(0, f"algo-{i}", 0, "x"), colour=True) for i in (1, 6, 1)]
    assert shown[0] == shown[2] == "\x1b[36malgo-1:0\x1b[0m | x"
    assert shown[1].split("m")[0] != shown[0].split("m")[0]


class _Cell(io.StringIO):
    """Stands for what a notebook has as standard output."""

    __module__ = "ipykernel.iostream"


@pytest.mark.parametrize(
    ("stream", "environ", "expected"),
    [
        (io.StringIO(), {}, False),
        (io.StringIO(), {"JPY_PARENT_PID": "1"}, False),
        (_Cell(), {"JPY_PARENT_PID": "1"}, True),
        (_Cell(), {"JPY_PARENT_PID": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_colour_only_where_it_is_shown(stream: io.StringIO, environ: dict[str, str], expected: bool) -> None:
    """A pipe of a program that a notebook has started is none of those places."""
    assert logs.has_colour(stream, environ) is expected


def test_letters_that_standard_output_lacks_are_written_as_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="ascii"))
    logs.to_stdout("gr\u00fc\u00dfe")
    assert raw.getvalue() == rb"gr\xfc\xdfe" + b"\n"
