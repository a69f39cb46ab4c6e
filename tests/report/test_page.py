"""A report as a page: what is shown of a job, whole or not."""

import re
from dataclasses import asdict
from datetime import datetime, timezone

import pytest

from hdp.contract.channels import ChannelStatistics
from hdp.contract.errors import HdpError
from hdp.estimator.engines.base import LogLine
from hdp.estimator.report import network
from hdp.estimator.report.breakdown import Lateness, Step
from hdp.estimator.report.facts import JobReport, Series
from hdp.estimator.report.page import fragment, page

START = datetime(2026, 11, 30, 12, tzinfo=timezone.utc)


def _answer(**more):
    return {
        "TrainingJobName": "a-job",
        "TrainingJobStatus": "Completed",
        "SecondaryStatus": "Completed",
        "CreationTime": START,
        "AlgorithmSpecification": {"TrainingInputMode": "File"},
        "ResourceConfig": {"InstanceType": "local", "InstanceCount": 2},
        "HyperParameters": {"sagemaker_hdp_enabled": "true"},
        **more,
    }


def _steps(count):
    return tuple(Step(i, 0.02, 0.012, 0.006, 0.008, 0.0) for i in range(count))


def test_a_job_of_which_little_is_known_has_a_page():
    """No metrics, trace, topology or anything of ours: a job that somebody else made."""
    text = page(JobReport("a-job", _answer()))
    assert "a-job" in text and "Completed" in text and "<svg" not in text


def test_what_is_missing_is_said_with_the_remedy():
    assert "<li>no timeline: set X</li>" in page(JobReport("a-job", _answer(), gaps=("no timeline: set X",)))


def test_medians_of_a_step_are_in_milliseconds():
    text = page(JobReport("a-job", _answer(), steps=_steps(3)))
    assert re.search(r"exposed communication</td><td>8\.00<", text)
    assert re.search(r"of it, with communication behind it</td><td>6\.00<", text)


def test_a_thousand_steps_are_drawn_as_means_of_neighbours():
    short, long = (page(JobReport("a-job", _answer(), steps=_steps(n))) for n in (150, 3000))
    assert len(long) < 1.3 * len(short)


def test_under_tensorflow_nothing_is_called_exposed():
    text = page(JobReport("a-job", _answer(), steps=_steps(3), asynchronous=True))
    assert "nothing says which of their time was exposed" in text


def test_a_failed_job_shows_the_first_cause_and_the_end_of_its_log():
    answer = _answer(
        TrainingJobStatus="Failed", SecondaryStatus="Failed", FailureReason="rank 3 on algo-2: <ValueError>"
    )
    text = page(JobReport("a-job", answer, tail=(LogLine(0, "algo-2", 3, "Traceback & more"),)))
    assert "rank 3 on algo-2: &lt;ValueError&gt;" in text
    assert "algo-2:3 | Traceback &amp; more" in text


def test_what_a_user_wrote_is_text_and_not_html():
    text = page(JobReport("<b>", _answer(), series=(Series("<i>loss</i>", (0, 1), (1, 2)),)))
    assert "<b>" not in text and "<i>" not in text


def test_secrets_are_hidden():
    """In a URI, in a line of a channel, and in what failed."""
    secret = "https://user:hunter22@host/x"
    answer = _answer(TrainingJobStatus="Failed", SecondaryStatus="Failed", FailureReason=f"at {secret}")
    text = page(JobReport("a-job", answer, channels=(("algo-1", f"channel x: {secret}"),), gaps=(secret,)))
    assert "hunter22" not in text


def test_colours_are_the_pages_so_that_dark_works():
    text = page(JobReport("a-job", _answer(), series=(Series("loss", (0, 1), (1, 2)),), steps=_steps(3)))
    drawing = text[text.index("<svg") :]
    assert "currentColor" in drawing and "var(--c0)" in drawing
    assert not re.search(r"#0[1-3]0[2-4]0\d", drawing)  # the stand-ins
    assert "prefers-color-scheme: dark" in text


def test_the_late_rank_is_named():
    late = (Lateness(0, 0.0, 0.0), Lateness(1, 0.02, 1.0))
    assert "The others wait for rank 1: it comes 20.0 ms after the first" in fragment(
        JobReport("a-job", _answer(), lateness=late)
    )


def test_a_picture_of_many_hosts_has_rows_of_four():
    boxes = [network.Box(f"algo-{i}", tuple(range(9)), 1e9, 2.5e8) for i in range(1, 7)]
    picture = network.picture(boxes, 3e-4)
    assert picture.count('class="host"') == 6 and picture.count('class="bus"') == 2
    assert "9 ranks, 0 to 8" in picture and "sends 1 Gbit/s" in picture and "receives 250 Mbit/s" in picture
    assert "300 µs" in picture


def test_hosts_without_measured_links_are_drawn_without_speeds():
    hdp = {"hosts": [{"host": "algo-1"}], "ranks": [{"host": "algo-1", "rank": 0}]}
    (box,) = network.boxes_of({"Hdp": hdp}, None)
    assert (box.name, box.ranks, box.sends) == ("algo-1", (0,), None)
    assert "sends" not in network.picture([box], None)


def test_what_channels_counted_is_a_table():
    """Of a File channel readers aren't known."""
    streamed = ChannelStatistics(
        "algo-1", "train", "FastFile", 3, 30_000_000, 0.5, 60_000_000, 1234, retries=2, read_bytes=30_000_000,
        first_byte_seconds=0.027, waited_seconds=1.5,
    )  # fmt: skip
    copied = ChannelStatistics("algo-2", "test", "File", 1, 1_000_000, 2.0, 1_000_000, 1)
    text = fragment(JobReport("a-job", _answer(Hdp={"channels": [asdict(streamed), asdict(copied)]})))
    rows = [re.findall("<td>(.*?)</td>", row) for row in re.findall("<tr>(.*?)</tr>", text) if "algo-" in row]
    assert rows == [
        ["train", "algo-1", "FastFile", "3", "30.0", "500 ms", "60.0", "1,234", "2", "30.0", "27 ms", "1.5 s"],
        ["test", "algo-2", "File", "1", "1.0", "2 s", "1.0", "1", "0", "", "", ""],
    ]


def test_a_page_that_can_not_be_written_is_an_error_with_its_path(tmp_path):
    with pytest.raises(HdpError, match=r"nowhere/x\.html can't be written: No such file"):
        JobReport("a-job", _answer()).save(tmp_path / "nowhere" / "x.html")
