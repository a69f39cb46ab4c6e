"""The EfficientNet example: B0 on small images, through the client, the local engine and the collective library."""

import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch isn't installed: pip install 'hdp-train[torch]'")
pytestmark = pytest.mark.timeout(300)  # where much else runs
EXAMPLE = Path(__file__).parents[2] / "examples/efficientnet"
SMALL = ("--hosts", 1, "--ranks", 2, "--batch-size", 4, "--steps", 5)
HOROVOD = EXAMPLE.parents[1] / "build/peers/horovod/bin/python"


@pytest.fixture(scope="module")
def prepare_images():
    """The example's module; its name is no other example's."""
    sys.path.insert(0, str(EXAMPLE))
    import prepare_images

    yield prepare_images
    sys.path.remove(str(EXAMPLE))


@pytest.fixture
def run(tmp_path):
    """Runs run.py: its output, and its job's summary."""

    def do(*arguments):
        command = [sys.executable, str(EXAMPLE / "run.py"), *map(str, arguments)]
        environ = {**os.environ, "HDP_HOME": str(tmp_path / "home")}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=280, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        model = re.search(r"model artifact  file://(\S+)/model.tar.gz", done.stdout)
        with tarfile.open(f"{model[1]}/output.tar.gz") as archive:
            name = next(m for m in archive.getmembers() if Path(m.name).name == "summary.json")
            return done.stdout, json.loads(archive.extractfile(name).read())

    return do


def _losses(summary):
    return [step["loss"] for step in summary["steps"]]


def _digests(output):
    return re.findall(r"weights sha256 (\w{64})", output)


@pytest.mark.slow
def test_two_ranks_train_b0(run):
    """5 steps on the same 4 random images of 32 x 32 a rank: they are learnt, and both ranks have the same weights."""
    output, summary = run(*SMALL, "--amp", "off")
    assert (summary["ranks"], summary["backend"], summary["amp"], summary["model"]) == (2, "hdp", "off", "b0")
    losses = _losses(summary)
    assert len(losses) == 5 and losses[0] == pytest.approx(np.log(1000), rel=0.2)  # the classes, with random weights
    assert losses[-1] < 0.8 * losses[0]
    seconds = sorted(step["seconds"] for step in summary["steps"][2:])
    assert summary["images_per_second"] == pytest.approx(8 / seconds[1])
    assert f"{summary['images_per_second']:.1f} images/s of 2 rank(s)" in output
    assert len(_digests(output)) == 2 and len(set(_digests(output))) == 1


@pytest.mark.slow
def test_digits_are_learnt_in_bfloat16(run):
    """A tiny network, 40 steps of 2 x 32 digits from the channel: the last ten's mean loss is below the first's."""
    arguments = ("--hosts", 1, "--ranks", 2, "--model", "tiny", "--batch-size", 32, "--steps", 40)
    _, summary = run(*arguments, "--images", "digits")
    losses = _losses(summary)
    assert summary["amp"] == "bf16"
    assert np.mean(losses[-10:]) < 0.9 * np.mean(losses[:10])


@pytest.mark.slow
@pytest.mark.exhaustive
def test_gloo_gives_the_same_bits(run):
    """The sum of two ranks has one order: losses and weights of hdp and gloo are equal, in float32."""
    (output, ours), (other_output, theirs) = (run(*SMALL, "--amp", "off", "--dist", d) for d in ("hdp", "gloo"))
    assert (ours["backend"], theirs["backend"]) == ("hdp", "gloo")
    assert _losses(ours) == _losses(theirs)
    assert set(_digests(output)) == set(_digests(other_output))


@pytest.mark.slow
@pytest.mark.skipif(not HOROVOD.exists(), reason="Horovod isn't there: make horovod builds it")
@pytest.mark.exhaustive
def test_horovod_trains_the_same(run):
    ours, theirs = (run(*SMALL, "--amp", "off", "--dist", d)[1] for d in ("hdp", "horovod"))
    assert theirs["backend"] == "horovod"
    assert _losses(theirs) == pytest.approx(_losses(ours), rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "2"], "--steps is 2; expected 3 or more, since the first 2 aren't timed"),
        (["--batch-size", "1"], "--batch-size is 1; expected 2 or more"),
        (["--amp", "fp16"], "--amp fp16 needs a GPU: a processor has no float16 arithmetic; give bf16"),
        (["--backend", "mpi"], "invalid choice: 'mpi'"),
    ],
)
def test_what_the_script_can_t_do_is_refused(arguments, message):
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(EXAMPLE / "train.py"), *arguments]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dist", "nccl"], "--dist nccl needs --gpu"),
        (["--images", "/no/such/folder"], "--images /no/such/folder: there is no such folder"),
    ],
)
def test_what_the_demo_can_t_do_is_refused(arguments, message):
    command = [sys.executable, str(EXAMPLE / "run.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 2
    assert message in done.stderr


# -- the channel ---------------------------------------------------------------------------------------------------


def test_images_of_folders_become_a_channel(prepare_images, tmp_path):
    """A red cat of 8 x 4 pixels, a blue dog of 4 x 8; the text file is no image: (2, 4, 4, 3), labels 0 and 1."""
    image = pytest.importorskip("PIL.Image", reason="Pillow isn't installed")
    for name, colour, size in (("cat", (255, 0, 0), (8, 4)), ("dog", (0, 0, 255), (4, 8))):
        (tmp_path / "in" / name).mkdir(parents=True)
        image.new("RGB", size, colour).save(tmp_path / "in" / name / "one.png")
        (tmp_path / "in" / name / "notes.txt").write_text("no image")
    prepare_images.folder_of_classes(tmp_path / "out", tmp_path / "in", 4)
    images, labels = (np.load(tmp_path / "out" / f"{name}.npy") for name in ("images", "labels"))
    assert (images.shape, images.dtype, labels.tolist()) == ((2, 4, 4, 3), np.uint8, [0, 1])
    assert (images[0] == (255, 0, 0)).all() and (images[1] == (0, 0, 255)).all()


def test_a_folder_without_images_is_refused(prepare_images, tmp_path):
    with pytest.raises(SystemExit, match=r"has no images; expected a folder for each class with \.bmp, \.jpeg"):
        prepare_images.folder_of_classes(tmp_path / "out", tmp_path, 4)


def test_digits_become_a_channel(prepare_images, tmp_path):
    """1,797 digits; each of the 8 x 8 pixels is a square of 4 x 4 in gray."""
    prepare_images.digits(tmp_path)
    images, labels = np.load(tmp_path / "images.npy"), np.load(tmp_path / "labels.npy")
    assert (images.shape, set(labels.tolist())) == ((1797, 32, 32, 3), set(range(10)))
    assert (images == images[:, ::4, ::4, :1].repeat(4, 1).repeat(4, 2)).all() and images.max() == 255
