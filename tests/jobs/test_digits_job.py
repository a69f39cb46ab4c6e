"""The demo's job through the client, the local engine, the agents and the collective library."""

import io
import json
import sys
import tarfile
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch isn't installed: pip install 'hdp-train[torch]'")
EXAMPLE = Path(__file__).parents[2] / "examples/digits_torch"
HDP_2X2 = {"instance_count": 2, "distribution": {"hdp": {"enabled": True, "processes_per_host": 2}}}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    sys.path.insert(0, str(EXAMPLE))
    from prepare import prepare

    return prepare(tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HDP_HOME", str(tmp_path_factory.mktemp("home")))
        yield


def _train(inputs, hyperparameters, **arguments):
    """Run the job; its summary, its log lines, and the model artifact's members."""
    from hdp.estimator import PyTorch

    estimator = PyTorch(entry_point="train.py", source_dir=str(EXAMPLE), hyperparameters=hyperparameters, **arguments)
    job = estimator.fit(inputs, logs=None)
    summary = json.loads(_members(job.output_data)["summary.json"])
    log = [line.text for line in job.engine.logs(job.name, {}).lines]
    return summary, log, _members(job.model_data)


def _members(uri):
    with tarfile.open(uri.removeprefix("file://")) as archive:
        return {Path(m.name).name: archive.extractfile(m).read() for m in archive.getmembers() if m.isfile()}


def _digests(log):
    return [line.split()[-1] for line in log if "weights sha256" in line]


@pytest.fixture(scope="module")
def two_by_two(inputs):
    return _train(inputs, {"max-steps": 20}, **HDP_2X2)


def _losses(run):
    return [step["loss"] for step in run[0]["steps"]]


def test_losses_are_those_of_one_process(inputs, two_by_two):
    """20 steps with the same global batch: equal to 1e-5, relative."""
    one = _train(inputs, {"max-steps": 20})
    assert two_by_two[0]["ranks"] == 4 and one[0]["ranks"] == 1
    assert len(_losses(one)) == 20
    assert _losses(two_by_two) == pytest.approx(_losses(one), rel=1e-5)


@pytest.mark.slow
def test_two_runs_give_the_same_bits_on_every_rank(inputs, two_by_two):
    again = _train(inputs, {"max-steps": 20}, **HDP_2X2)
    assert len(_digests(two_by_two[1])) == 4
    assert set(_digests(again[1])) == set(_digests(two_by_two[1]))
    assert len(set(_digests(again[1]))) == 1


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", ["smddp", "gloo"])
def test_other_backends_train_the_same(inputs, two_by_two, backend):
    other = _train(inputs, {"max-steps": 20, "dist": backend}, **HDP_2X2)
    assert _losses(other) == pytest.approx(_losses(two_by_two), rel=1e-4)


@pytest.mark.slow
def test_smdistributed_means_hdp(inputs):
    """smdistributed without processes_per_host: one rank a host."""
    three_hosts = {"instance_count": 3, "distribution": {"smdistributed": {"dataparallel": {"enabled": True}}}}
    summary, _, _ = _train(inputs, {"max-steps": 5, "batch-size": 63}, **three_hosts)
    assert summary["ranks"] == 3


def test_the_artifact_classifies_the_held_out_fifth(inputs):
    """Loaded from the archive alone, in this process: at least 0.95."""
    import numpy as np
    import torch

    sys.path.insert(0, str(EXAMPLE))
    from model import accuracy, make_model
    from prepare import load

    _, _, members = _train(inputs, {"epochs": 15}, **HDP_2X2)
    model = make_model()
    model.load_state_dict(torch.load(io.BytesIO(members["model.pt"]), weights_only=True))
    images, labels = load(Path(inputs["test"].removeprefix("file://")))
    assert len(labels) == 360 and len(np.unique(labels)) == 10
    assert accuracy(model, torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels)) >= 0.95
