"""benchmarks/keras_step.py as a user runs it, with a tiny model; and what it computes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hdp.runtime.emulation import EmulationError, Network

pytest.importorskip("torch", reason="the training benchmarks' options need torch")
pytestmark = pytest.mark.timeout(300)  # where much else runs
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))

import keras_report  # noqa: E402  (where they are has to be said first)
import keras_step  # noqa: E402
import keras_timeline  # noqa: E402
import training  # noqa: E402


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hosts", "1"], "--hosts is 1; expected 2 or more"),
        (["--ranks", "0", "--steps", "0"], "--ranks is 0; expected 1 or more; --steps is 0"),
        (["--hosts", "16", "--ranks", "4"], "64 ranks; at most 32"),
        (["--peers", "hdp,gloo"], "no library 'gloo'; there are hdp, horovod-gloo"),
        (["--model", "resnet18"], "invalid choice: 'resnet18'"),
        (["--bucket-cap", "0"], "--bucket-cap is 0.0; expected more than 0"),
        (["--plot", "/no/such/folder/a.png"], "its folder is not there"),
    ],
)
def test_bad_arguments_are_refused(arguments, message, capsys):
    with pytest.raises(SystemExit) as raised:
        keras_step.parsed(arguments)
    assert raised.value.code == 2
    assert message in capsys.readouterr().err


def test_what_communication_adds_to_a_step():
    """Steps of 6 and 9 s, compute 4 s alone (the lesser of 4 and 5), communication 4 and 5 s: 2 of 4, and 5 of 5."""
    ours = training.Sample(steps=[5.0, 6.0, 7.0], compute=4.0, exchange=4.0, sent=[4e6, 4.4e6], cpu=1.0)
    theirs = training.Sample(steps=[9.0], compute=5.0, exchange=5.0, sent=[6e6, 6e6], cpu=1.0)
    results = training.Results(samples={"hdp": [ours], "horovod-gloo": [theirs]}, parameters=1_000_000)
    hdp, horovod = keras_report.rows(results, hosts=2, rate=1e6)
    assert (hdp.compute, horovod.compute, hdp.bound) == (4.0, 4.0, 4.0)
    assert (hdp.exposed, hdp.exposed_over_total, horovod.exposed, horovod.exposed_over_total) == (2.0, 0.5, 5.0, 1.0)
    assert (horovod.over_hdp, horovod.exposed_over_hdp) == (1.5, 2.5)
    assert (hdp.sent_over_least, horovod.sent_over_least) == (pytest.approx(1.1), 1.5)


def test_gradients_alone_have_no_compute():
    samples = [training.Sample(steps=[0.1, 0.2, 0.3], compute=None, exchange=None, sent=[4.0, 4.0], cpu=1.0)]
    [row] = keras_report.rows(training.Results(samples={"hdp": samples}, parameters=1), hosts=2, rate=1.0)
    assert (row.step, row.exposed, row.total, row.exposed_over_total) == (0.2, None, None, None)


def test_other_losses_are_a_failure():
    results = training.Results(losses={"hdp": [[2.0, 1.0], [4.0, 2.0]], "horovod-gloo": [[2.0, 1.0], [4.0, 2.001]]})
    assert keras_report.apart(results.losses) == pytest.approx(5e-4)
    keras_step._compare_losses(results)
    assert not results.failed
    results.losses["horovod-gloo"][0][1] = 1.5
    keras_step._compare_losses(results)
    assert "differ by 0.5 of their size" in results.failed["losses"]


def test_a_timeline_that_was_cut_is_read_as_far_as_it_goes(tmp_path):
    """An operation within the step, one before it, a span without bytes, and half a line."""
    events = [
        {"ph": "X", "cat": "allreduce", "name": "gradients 0#1", "ts": 5e6, "dur": 1e6, "args": {"bytes": 7}},
        {"ph": "X", "cat": "allreduce", "name": "gradients 1#2", "ts": 12e6, "dur": 1e6, "args": {"bytes": 8}},
        {"ph": "X", "cat": "allreduce", "name": "gradients 0#2", "ts": 11e6, "dur": 3e6, "args": {"bytes": 9}},
        {"ph": "X", "cat": "allreduce", "name": "transfer", "ts": 12e6, "dur": 1e6},
    ]
    text = "[\n" + ",\n".join(map(json.dumps, events)) + ',\n{"ph": "X", "cat": "allr'
    (tmp_path / "hdp-timeline-rank-0.json").write_text(text)
    (tmp_path / keras_timeline.SPANS).write_text("1.0 2.0\n10.0 20.0\n")
    [step] = keras_timeline.read(tmp_path)
    assert step.step == 10.0
    assert step.buckets == (keras_timeline.Bucket(9, 1.0, 4.0), keras_timeline.Bucket(8, 2.0, 3.0))
    said = keras_timeline.text_of(step)
    assert "2 buckets in a step of 10000.0 ms; the first leaves 1000.0 ms before the last gradient is ready" in said


# -- the whole -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def namespaces():
    try:
        Network(hosts=2).close()
    except EmulationError as exc:
        pytest.skip(str(exc))


@pytest.mark.slow
def test_a_step_whose_buckets_leave_during_the_backward_pass(namespaces, tmp_path):
    """2 x 1 in Keras, buckets of 10 KB: they leave one by one, the first before the last gradient is ready."""
    pytest.importorskip("tensorflow")
    out, drawing = tmp_path / "a.json", tmp_path / "a.png"
    command = ["--hosts", 2, "--ranks", 1, "--model", "tiny", "--rounds", 2, "--steps", 3, "--bucket-cap", 0.01]
    command += ["--peers", "hdp", "--json", out, "--plot", drawing]
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "keras_step.py"), *map(str, command)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    [row] = found["rows"]
    assert 0 < row["lower"] <= row["step"] <= row["upper"]
    assert row["exposed"] == pytest.approx(row["step"] - row["compute"])
    assert 0 < found["measured"]["errors"]["hdp"] < 1e-6
    steps = found["timeline"]
    assert len(steps) == 6
    for step in steps:
        submitted = [bucket["submitted"] for bucket in step["buckets"]]
        assert sum(bucket["bytes"] for bucket in step["buckets"]) >= 4 * found["measured"]["parameters"]
        assert len(set(submitted)) == len(submitted) > 3
        assert 0 < submitted[0] < submitted[-1] < step["step"]
    # Had they all waited for the whole backward pass, they would have followed each other at once.
    spread = [(step["buckets"][-1]["submitted"] - step["buckets"][0]["submitted"]) / step["step"] for step in steps]
    assert max(spread) > 0.1
    assert drawing.read_bytes().startswith(b"\x89PNG")
