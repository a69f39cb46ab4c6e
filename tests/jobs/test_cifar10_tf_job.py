"""The TensorFlow example's data, and its job through the client, the local engine, the agents and the library.

TensorFlow runs in processes of its own: beside other tests' frameworks it may not be loaded twice.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),  # about 40 s where nothing else runs; four ranks load TensorFlow at once
    pytest.mark.skipif(
        importlib.util.find_spec("tensorflow") is None,
        reason="TensorFlow isn't installed: pip install 'hdp-train[tensorflow]'",
    ),
]
EXAMPLE = Path(__file__).parents[2] / "examples/cifar10_tf"
LOOK = Path(__file__).with_name("look_at_cifar10.py")


def _look(*arguments):
    """Output of look_at_cifar10.py."""
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(LOOK), *map(str, arguments)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---- the data --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def binaries():
    """Records by file, in CIFAR-10's format: random, with labels 0 to 9."""
    bits = np.random.default_rng(1)
    counts = {"data_batch_1.bin": 7, "data_batch_2.bin": 6, "test_batch.bin": 4}
    records = {name: bits.integers(0, 256, (count, 3073), np.uint8) for name, count in counts.items()}
    for made in records.values():
        made[:, 0] %= 10
    return records


@pytest.fixture(scope="module")
def prepared(binaries, tmp_path_factory):
    """Folder with what was written, the digits' channels, and the refusals."""
    folder = tmp_path_factory.mktemp("prepared")
    raw = tmp_path_factory.mktemp("binaries")
    for name, records in binaries.items():
        (raw / name).write_bytes(records.tobytes())
    return folder, *json.loads(_look("prepare", raw, folder))


def test_the_converter_reads_cifar10s_binaries(binaries, prepared):
    """Image i of a channel is in shard i mod 3 (training) or 2 (test); row r, column c: bytes r*32+c of each plane."""
    read = np.load(prepared[0] / "read.npz")
    training = np.concatenate([binaries["data_batch_1.bin"], binaries["data_batch_2.bin"]])
    for channel, records, shards in (("training", training, 3), ("test", binaries["test_batch.bin"], 2)):
        for shard in range(shards):
            mine = records[shard::shards]
            images = np.stack([mine[:, 1 + 1024 * colour :][:, :1024].reshape(-1, 32, 32) for colour in range(3)], -1)
            assert (read[f"{channel} {shard} labels"] == mine[:, 0]).all()
            assert (read[f"{channel} {shard} images"] == images.astype(np.float32) / 255).all()
    assert len(read.files) == 2 * (3 + 2)


def test_the_same_input_gives_the_same_files(prepared):
    one, two = (
        {path.relative_to(prepared[0] / name): path.read_bytes() for path in (prepared[0] / name).rglob("*.tfrecord")}
        for name in ("one", "two")
    )
    assert len(one) == 5 and one == two


def test_what_is_wrong_is_refused(prepared):
    """Above all Horovod's optimizer, which with Keras 3 reduces nothing and says nothing."""
    no_files, cut, label, optimizer = prepared[2]
    assert "has no data_batch_*.bin and test_batch.bin" in no_files
    assert "data_batch_2.bin has 3072 bytes; expected a multiple of 3073" in cut
    assert "data_batch_2.bin has the label 10; expected 0 to 9" in label
    assert "--dist horovod --reduce optimizer: with Keras 3, Horovod's DistributedOptimizer doesn't" in optimizer


# ---- the job ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def inputs(prepared):
    return prepared[1]


@pytest.fixture(scope="module")
def job(inputs, tmp_path_factory):
    """The finished job of 2 hosts x 2 ranks, and its log lines."""
    from hdp.estimator import FLAG, TensorFlow

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HDP_HOME", str(tmp_path_factory.mktemp("home")))
        estimator = TensorFlow(
            entry_point="train.py",
            source_dir=str(EXAMPLE),
            instance_count=2,
            distribution={"hdp": {"enabled": True, "processes_per_host": 2}},
            environment={"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2"},
            hyperparameters={"epochs": 8, "check-in-sync": FLAG},
        )
        done = estimator.fit(inputs, logs=None)
        yield done, [line.text for line in done.engine.logs(done.name, {}).lines]


def _extracted(uri, name, folder):
    with tarfile.open(uri.removeprefix("file://")) as archive:
        member = next(m for m in archive.getmembers() if Path(m.name).name == name)
        (folder / name).write_bytes(archive.extractfile(member).read())
    return folder / name


def test_every_rank_reads_files_of_its_own(job, inputs):
    """Together all 8 files and all 1,437 images, each once."""
    found = [m for line in job[1] if (m := re.search(r"rank (\d) of 4 reads (\d+) images from (.*)", line))]
    assert sorted(m[1] for m in found) == ["0", "1", "2", "3"]
    folder = Path(inputs["training"].removeprefix("file://"))
    assert sorted(" ".join(m[3] for m in found).split()) == sorted(path.name for path in folder.iterdir())
    assert sum(int(m[2]) for m in found) == 1437


def test_ranks_are_in_step(job):
    """They begin with different weights and see different images; in the end all bits are equal."""
    digests = [line.split()[-1] for line in job[1] if "weights sha256" in line]
    assert len(digests) == 4 and len(set(digests)) == 1


def test_loss_falls(job, tmp_path):
    """8 epochs of 11 steps: the 359 images of the smallest shard are 11 batches of 32."""
    summary = json.loads(_extracted(job[0].output_data, "summary.json", tmp_path).read_text())
    losses = [step["loss"] for step in summary["steps"]]
    assert summary["ranks"] == 4 and len(losses) == 88
    assert losses[-1] < 0.1 * losses[0]


def test_the_artifact_classifies_the_held_out_fifth(job, inputs, tmp_path):
    """Loaded from the archive, by a process that knows neither hdp nor the training script; the job says the same."""
    model = _extracted(job[0].model_data, "model.keras", tmp_path)
    share = float(_look("accuracy", model, inputs["test"].removeprefix("file://")))
    assert share >= 0.95
    assert any(f"test accuracy {share:.4f}" in line for line in job[1])
