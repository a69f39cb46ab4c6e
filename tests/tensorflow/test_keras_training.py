"""Training on several ranks, compared with a process that has the whole batches; and bit by bit among ranks."""

import subprocess
import sys

import pytest
from versions import interpreter
from world import together

pytestmark = pytest.mark.timeout(300)  # where much else runs


def run(*cases, sizes=(2, 2), **options):
    # Rank 0 trains alone, too, while the others wait for it
    environ = {"HDP_TIMEOUT_SECONDS": "100"}
    outputs = together("training_ranks.py", *cases, sizes=sizes, environ=environ, **options)
    for case in cases:
        assert all(f"{case} is fine" in output for output in outputs)
    return outputs


def test_quickly_that_gradients_are_those_of_all_ranks():
    """Adam, with a tape and in fit, on 2 hosts of 1 rank; and what is asked of a tape."""
    run("quick", "tapes", sizes=(1, 1))


@pytest.mark.slow
def test_optimizers_equal_one_process():
    """SGD, momentum and Adam: eagerly, in a function, in fit with a tape and with the optimizer; 2 hosts of 2 ranks."""
    run("equal")


@pytest.mark.slow
def test_optimizers_see_the_gradients_of_all_ranks():
    """Accumulation, clipping, moving averages, decay, schedules."""
    run("accumulation", "options", sizes=(1, 1))


@pytest.mark.slow
def test_models_of_all_kinds():
    """Sparse gradients, none, several outputs, own state; steps per execution, eagerly, with XLA; TensorFlow 1."""
    run("models", "compiling", "tensorflow_1", sizes=(1, 1))


@pytest.mark.slow
def test_half_types():
    """An infinity of rank 1 makes all ranks skip the step, whatever is round what."""
    run("infinity", "mixed", sizes=(1, 1))


@pytest.mark.slow
def test_a_model_is_saved_as_the_plain_one():
    """Files and checkpoints go on with equal results; and hdp isn't needed to load the model."""
    outputs = run("states", sizes=(1, 1))
    folder = next(line.split()[1] for line in outputs[0].splitlines() if line.startswith("FOLDER"))
    check = f"""
import sys, keras
model = keras.models.load_model({folder + "/model.keras"!r})
assert type(model.optimizer) is keras.optimizers.Adam
assert int(model.optimizer.iterations) == 7
assert any(float(abs(v.numpy()).max()) > 0 for v in model.optimizer.variables[2:])
assert not [name for name in sys.modules if name.startswith("hdp.")]
"""
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("version", [pytest.param("2.15", marks=pytest.mark.exhaustive), "2.12"])
def test_keras_2(version):
    """Its optimizers, new and legacy; half types; files."""
    run("equal", "infinity", "states", sizes=(1, 1), python=interpreter(version))


@pytest.mark.slow
@pytest.mark.exhaustive
def test_keras_2_of_all_kinds():
    """What an optimizer does besides, and models of all kinds."""
    run("options", "models", "compiling", "mixed", "tapes", sizes=(1, 1), python=interpreter("2.15"))
