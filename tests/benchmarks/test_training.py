"""benchmarks/step.py and efficientnet.py as a user runs them, with tiny models; and the networks that they train."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hdp.runtime.emulation import EmulationError, Network

torch = pytest.importorskip("torch", reason="the training benchmarks need torch")
pytestmark = pytest.mark.timeout(300)  # where much else runs
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))

import efficientnet  # noqa: E402  (where they are has to be said first)
import models  # noqa: E402
import step  # noqa: E402
import training  # noqa: E402
import training_report  # noqa: E402
from session import PeerFailed  # noqa: E402


@pytest.fixture(scope="module")
def namespaces():
    try:
        Network(hosts=2).close()
    except EmulationError as exc:
        pytest.skip(str(exc))


def run(script, *arguments):
    command = [sys.executable, str(BENCHMARKS / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)


# -- the networks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "parameters"), [("resnet50", 23_520_842), ("efficientnet_b0", 4_020_358)])
def test_networks_have_the_published_number_of_parameters(name, parameters):
    """ResNet-50 and EfficientNet-B0 with 1,000 classes have 25,557,032 and 5,288,548; the classifier is the difference.

    Also the stem of ResNet-50: 3 x 3 here, 7 x 7 there.
    """
    model = models.build(name, 0)
    assert sum(p.numel() for p in model.parameters()) == parameters
    published = {"resnet50": 25_557_032, "efficientnet_b0": 5_288_548}[name]
    features = {"resnet50": 2048, "efficientnet_b0": 1280}[name]
    stem = {"resnet50": 3 * 64 * (49 - 9), "efficientnet_b0": 0}[name]
    assert published - (features + 1) * (1000 - models.CLASSES) - stem == parameters


@pytest.fixture
def one_thread():
    """Threads that wait for each other cost more than such small networks, on processors with other work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", ["resnet_tiny", "efficientnet_tiny"])
def test_networks_are_given_by_the_seed_and_learn(name):
    """Equal seeds, equal parameters; every parameter gets a gradient; 30 steps on one batch halve the loss."""
    model, same, other = (models.build(name, seed) for seed in (3, 3, 4))
    pairs = list(zip(model.parameters(), same.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    images, classes = models.batch(8, 5)
    assert (images.shape, classes.shape) == ((8, 3, 32, 32), (8,))
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), []
    for _ in range(30):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), classes)
        loss.backward()
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
        optimizer.step()
        losses.append(float(loss.detach()))
    assert min(losses[-5:]) < losses[0] / 2


# -- what is refused before anything starts ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
    [
        (step, ["--hosts", "1"], "--hosts is 1; expected 2 or more"),
        (step, ["--ranks", "0", "--steps", "0"], "--ranks is 0; expected 1 or more; --steps is 0"),
        (step, ["--hosts", "16", "--ranks", "4"], "64 ranks; at most 32"),
        (step, ["--rate", "fast"], "--rate: rate 'fast'"),
        (step, ["--peers", "hdp,nccl"], "no library 'nccl'; there are hdp, smddp, gloo"),
        (step, ["--model", "resnet18"], "invalid choice: 'resnet18'"),
        (step, ["--json", "/no/such/folder/a.json"], "its folder is not there"),
        (step, ["--limit", "nan"], "--limit is nan"),
        (efficientnet, ["--hosts", "1,two"], "hosts '1,two'; expected for example 1,2,4"),
        (efficientnet, ["--hosts", "0,2"], "--hosts has 0; expected 1 or more"),
        (efficientnet, ["--batch", "1"], "--batch is 1; expected 2 or more"),
        (efficientnet, ["--hosts", "4", "--ranks", "9"], "ranks; at most 32"),
    ],
)
def test_bad_arguments_are_refused(script, arguments, message, capsys):
    with pytest.raises(SystemExit) as raised:
        script.parsed(arguments)
    assert raised.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_library_that_is_not_installed_is_left_out_and_named(monkeypatch, tmp_path):
    absent = training.replace(training.LIBRARIES["horovod-gloo"], python=tmp_path / "python")
    monkeypatch.setitem(training.LIBRARIES, "horovod-gloo", absent)
    said = []
    names, why = training.available(["hdp", "horovod-gloo"], said.append)
    assert names == ["hdp"]
    assert "make horovod installs it" in why["horovod-gloo"]
    assert said == [f"horovod-gloo is left out: {why['horovod-gloo']}"]


# -- what is checked and computed ----------------------------------------------------------------------------------


def test_ranks_that_disagree_are_a_failure():
    training._agree([{"digest": "a"}] * 3, "now")
    with pytest.raises(PeerFailed, match="differ after 2 steps: 2 kinds on 3 ranks"):
        training._agree([{"digest": "a"}, {"digest": "b"}, {"digest": "a"}], "after 2 steps")


def test_libraries_that_compute_something_else_are_a_failure():
    """Sums in place of averages are twice the change; rounding is far below the tolerance, and is noted."""
    change, results = np.linspace(-1, 1, 1000), training.Results(reference="gloo")
    training._compare("hdp", change * (1 + 1e-6), change, results)
    assert results.differences["hdp"] == pytest.approx(1e-6)
    for wrong, said in ((2 * change, "1 of the change"), (change * np.nan, "nan of the change")):
        with pytest.raises(PeerFailed, match=f"something else than with gloo: the difference is {said}"):
            training._compare("smddp", wrong, change, results)


def test_gradients_that_are_not_the_mean_are_a_failure():
    results = training.Results()
    training.check_gradients("hdp", [1e-7, 3e-7, 0.0], results)
    assert results.errors["hdp"] == 3e-7
    with pytest.raises(PeerFailed, match=r"the gradients of step 3 are not the mean .* the difference is 0\.5 of it"):
        training.check_gradients("hdp", [1e-7, 3e-7, 0.5], results)


def test_the_hidden_part_and_the_bounds():
    """2 hosts, 1 million parameters, 1 MB/s: 4 MB, 4 s. Compute 3 s, exchange 5 s, step 6 s: 2 of 3 are hidden."""
    sample = training.Sample(steps=[5.0, 6.0, 7.0], compute=3.0, exchange=5.0, sent=[4.2e6, 4.4e6], cpu=1.0)
    slow = training.Sample(steps=[12.0], compute=3.0, exchange=9.0, sent=[6e6, 6e6], cpu=1.0)
    results = training.Results(samples={"hdp": [sample], "gloo": [slow], "smddp": []}, parameters=1_000_000)
    ours, theirs = training_report.rows(results, hosts=2, rate=1e6)
    assert (ours.library, theirs.library) == ("hdp", "gloo")
    assert (ours.step, ours.bound, ours.hidden) == (6.0, 4.0, pytest.approx(2 / 3))
    assert ours.sent_over_least == pytest.approx(1.1)
    assert (theirs.hidden, theirs.over_hdp) == (0.0, 2.0)


# -- the whole -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_step_with_two_libraries(namespaces, tmp_path):
    """2 x 1, 9 thousand parameters: both send the least bytes, and DDP's buffers; both give the mean of the ranks'."""
    out, drawing = tmp_path / "a.json", tmp_path / "a.png"
    shape = ("--hosts", 2, "--ranks", 1, "--rounds", 2, "--steps", 2)
    done = run("step.py", "--model", "resnet_tiny", "--peers", "hdp,gloo", *shape, "--json", out, "--plot", drawing)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    rows = {row["library"]: row for row in found["rows"]}
    assert list(rows) == ["hdp", "gloo"] and not found["measured"]["failed"]
    for name, row in rows.items():
        samples = found["measured"]["samples"][name]
        assert [len(sample["steps"]) for sample in samples] == [2, 2]
        assert 0 < row["lower"] <= row["step"] <= row["upper"]
        assert row["hidden"] == pytest.approx(
            (row["compute"] + row["exchange"] - row["step"]) / min(row["compute"], row["exchange"])
        )
        assert sum(found["measured"]["buckets"][name]) == 4 * found["measured"]["parameters"] == 4 * 8_974
        assert 1.0 < row["sent_over_least"] < 1.6
        assert 0 < found["measured"]["errors"][name] < 1e-6
    assert found["measured"]["differences"]["hdp"] < 1e-6
    assert drawing.read_bytes().startswith(b"\x89PNG")
    assert "parameters were equal on all ranks, to the bit, before and after: hdp, gloo" in done.stdout


@pytest.mark.slow
def test_efficientnet_over_one_and_two_hosts(namespaces, tmp_path):
    """smddp is hdp; one process has a row of its own; one host sends nothing."""
    out, drawing = tmp_path / "a.json", tmp_path / "a.png"
    done = run(
        "efficientnet.py",
        *("--model", "efficientnet_tiny", "--hosts", "1,2", "--batch", 2, "--rounds", 2, "--steps", 1),
        *("--json", out, "--plot", drawing),
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())["rows"]
    assert [(row["hosts"], row["backend"]) for row in rows] == [
        (1, "one process"),
        (1, "smddp"),
        (1, "gloo"),
        (2, "smddp"),
        (2, "gloo"),
    ]
    for row in rows:
        assert 0 < row["lower"] <= row["images"] <= row["upper"]
        assert (row["bytes_sent"] > 0) == (row["hosts"] > 1)
        assert row["backend"] == "one process" or row["kept"] == pytest.approx(row["images"] / row["alone"])
    assert drawing.read_bytes().startswith(b"\x89PNG")
