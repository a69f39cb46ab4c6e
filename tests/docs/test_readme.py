"""The README's example runs as it stands, and its claims about files hold."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hdp.estimator import Estimator, TensorFlow

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
EXAMPLE, _, KERAS, COMPARE, COLLECTIVES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_example_is_about_20_lines():
    assert len([line for line in EXAMPLE.splitlines() if line.strip()]) <= 20


def test_the_example_trains_and_prints_the_artifact(tmp_path):
    """In the repository's root, with a home of its own for the job."""
    environment = {**os.environ, "HDP_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-c", EXAMPLE], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stdout + done.stderr
    accuracy = float(re.search(r"test accuracy ([\d.]+)", done.stdout).group(1))
    assert accuracy >= 0.95
    assert Path(done.stdout.splitlines()[-1].removeprefix("file://")).exists()


@pytest.mark.slow
def test_the_example_of_a_comparison_runs(tmp_path, monkeypatch):
    """With an estimator of a script that only says its steps, one repeat, and no baselines."""
    monkeypatch.setenv("HDP_HOME", str(tmp_path / "home"))
    (tmp_path / "script.py").write_text(
        "from hdp import metrics\nfor step in range(5):\n    metrics.log(step=step, loss=1.0, samples=4)\n"
    )
    short = COMPARE.replace("repeats=3", "repeats=1, baselines=False")
    assert short != COMPARE
    names = {"estimator": Estimator(entry_point=str(tmp_path / "script.py")), "inputs": None}
    exec(short, names)
    assert list(names["result"].figures) == ["hdp", "gloo"]


@pytest.mark.slow
def test_the_example_of_the_collective_library_runs_in_a_rank(tmp_path, monkeypatch):
    """1 host, 2 ranks; what it computes is checked behind it."""
    monkeypatch.setenv("HDP_HOME", str(tmp_path / "home"))
    check = "assert mean.tolist() == [1, 1, 1] and work.wait().tolist() == [2] * 5 and pair.size == 2\n"
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "script.py").write_text(COLLECTIVES + check)
    options = {"instance_type": "local", "instance_count": 1, "source_dir": str(tmp_path / "code")}
    distribution = {"hdp": {"enabled": True, "processes_per_host": 2}}
    job = Estimator(entry_point="script.py", distribution=distribution, **options).fit()
    assert job.describe()["TrainingJobStatus"] == "Completed"


@pytest.mark.slow
def test_the_example_for_keras_trains(tmp_path, monkeypatch):
    """1 host, 2 ranks, a model and data in front of it; after it, the weights are the same on both ranks, and new."""
    pytest.importorskip("tensorflow")
    monkeypatch.setenv("HDP_HOME", str(tmp_path / "home"))
    before = """
import keras
import numpy as np
import tensorflow as tf
model = keras.Sequential([keras.layers.Input([3]), keras.layers.Dense(1)])
first = model.get_weights()[0].copy()
dataset = tf.data.Dataset.from_tensor_slices((np.eye(3, dtype="float32"), np.ones([3, 1], "float32"))).batch(3)
"""
    after = "assert dist.size() == 2 and not np.array_equal(first, model.get_weights()[0])\ndist.check_in_sync(model)\n"
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "script.py").write_text(before + KERAS + after)
    options = {"instance_type": "local", "instance_count": 1, "source_dir": str(tmp_path / "code")}
    distribution = {"hdp": {"enabled": True, "processes_per_host": 2}}
    job = TensorFlow(entry_point="script.py", distribution=distribution, **options).fit()
    assert job.describe()["TrainingJobStatus"] == "Completed"


def test_commands_of_the_readme_exist():
    """Every `hdp COMMAND` and `make TARGET` that the README names."""
    from hdp.estimator.cli.commands import TABLE

    assert set(re.findall(r"\bhdp ([a-z]+)(?= NAME| {3,})", README)) <= set(TABLE)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z-]+)", README)) <= targets
