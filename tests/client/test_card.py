"""A job as a notebook shows it."""

import re
from typing import Any

from hdp.estimator.card import card
from hdp.estimator.report.facts import Series

ANSWER = {
    "TrainingJobStatus": "Completed",
    "SecondaryStatus": "Completed",
    "TrainingTimeInSeconds": 1234,
    "ResourceConfig": {"InstanceCount": 2, "InstanceType": "local"},
    "ModelArtifacts": {"S3ModelArtifacts": "file:///jobs/digits/model.tar.gz"},
    "Hdp": {"ranks": [{"rank": rank, "host": f"algo-{1 + rank // 2}"} for rank in range(4)], "log_dir": "/logs"},
}


def rows(*args: Any) -> dict[str, str]:
    """Head and text of each row."""
    found = re.findall(r"<th[^>]*>(.*?)</th><td[^>]*>(.*?)</td>", card("digits", *args))
    return {head: re.sub(r"<svg.*?</svg>|<[^>]+>|&#9679;", "", body).strip() for head, body in found}


def test_it_says_how_the_job_is_who_runs_it_what_it_left_and_how_to_attach() -> None:
    assert rows("local", ANSWER) == {
        "status": "Completed, 1,234 s of training",
        "hosts": "2 x local, 4 ranks: algo-1: 0, 1; algo-2: 2, 3",
        "model": "file:///jobs/digits/model.tar.gz",
        "logs": "/logs",
        "take up again": "TrainingJob.attach(&#x27;digits&#x27;)",
    }


def test_a_job_elsewhere_is_attached_through_its_engine() -> None:
    assert rows("sagemaker", ANSWER)["take up again"].endswith("engine=&#x27;sagemaker&#x27;)")


def test_the_loss_is_a_line_that_goes_down_on_the_picture_as_it_does() -> None:
    """Loss 4, 2, 1: the first point is at the top, the last at the bottom, 32 pixels lower."""
    text = card("digits", "local", ANSWER, [Series("loss", (0, 1, 2), (4.0, 2.0, 1.0))])
    assert '<polyline points="0.0,2.0 120.0,23.3 240.0,34.0"' in text
    assert "4 to 1 in 3 steps" in text


def test_a_hundred_thousand_steps_are_a_line_of_at_most_201_points() -> None:
    """The last value, which is the largest, is among them."""
    steps = tuple(float(step) for step in range(100_000))
    points = re.search(r'points="(.*?)"', card("digits", "local", ANSWER, [Series("loss", steps, steps)]))
    assert points is not None
    assert len(points[1].split()) <= 201
    assert points[1].endswith("240.0,2.0")


def test_one_value_and_equal_values_are_a_line_too() -> None:
    for values in ((0.5,), (0.5, 0.5)):
        text = card("digits", "local", ANSWER, [Series("loss", tuple(map(float, range(len(values)))), values)])
        assert "nan" not in text and "<polyline" in text


def test_the_loss_of_training_is_taken_before_that_of_validation() -> None:
    both = [Series("val_loss", (0,), (9.0,)), Series("train_loss", (0,), (1.0,)), Series("accuracy", (0,), (0.5,))]
    assert rows("local", ANSWER, both)["loss"] == "1 to 1 in 1 step"
    assert rows("local", ANSWER, both)["metrics"] == "accuracy 0.5"


def test_what_the_engine_kept_goes_before_what_the_log_says() -> None:
    """The number of a step's samples is no result."""
    values = {"loss": 0.25, "samples": 64}
    kept = {**ANSWER, "FinalMetricDataList": [{"MetricName": name, "Value": v} for name, v in values.items()]}
    assert rows("sagemaker", kept, [Series("accuracy", (0,), (0.5,))])["metrics"] == "loss 0.25"


def test_hosts_of_several_kinds_are_named() -> None:
    groups = [
        {"InstanceCount": 1, "InstanceType": "ml.c5.large"},
        {"InstanceCount": 2, "InstanceType": "ml.p4d.24xlarge"},
    ]
    answer = {
        "TrainingJobStatus": "InProgress",
        "SecondaryStatus": "Starting",
        "ResourceConfig": {"InstanceGroups": groups},
    }
    assert rows("sagemaker", answer)["hosts"] == "1 x ml.c5.large, 2 x ml.p4d.24xlarge"


def test_a_secret_in_a_reason_is_hidden_and_markup_is_text() -> None:
    answer = {**ANSWER, "TrainingJobStatus": "Failed", "FailureReason": "<b>password=hunter22\nmore"}
    assert rows("local", answer)["status"].startswith("Failed (Completed): &lt;b&gt;password=***")


def test_the_console_is_a_link() -> None:
    answer = {**ANSWER, "Hdp": {"console": "https://console.example.com/?region=eu&job=digits"}}
    assert '<a href="https://console.example.com/?region=eu&amp;job=digits">' in card("digits", "sagemaker", answer)
