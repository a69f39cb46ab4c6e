"""The native operations: how they are loaded, and what they do where many are in flight or many steps are made."""

import os
import subprocess
import sys

import pytest
import world

pytestmark = pytest.mark.timeout(300)  # where much else runs
CODE = """
import logging
logging.basicConfig()
import hdp.tensorflow as dist
print("operations", dist.operations_name())
"""


def python(*arguments, **environ):
    """Run Python; returns what it writes. TensorFlow's own messages are left out."""
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, *arguments]
    environ = {**os.environ, **quiet, **environ}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_trial():
    """What decides for a TensorFlow that isn't known yet: a few operations in a process of its own."""
    python("-m", "hdp.tensorflow.trial")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environ", "reason"),
    [
        ({"HDP_TENSORFLOW_OPS": "python"}, "$HDP_TENSORFLOW_OPS is python"),
        pytest.param(
            {"HDP_TENSORFLOW_LIBRARY": "/nonexistent/libhdp_tensorflow.so"},
            "/nonexistent/libhdp_tensorflow.so",
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_python_stands_in_and_says_why(environ, reason):
    output = python("-c", CODE, **environ)
    assert "operations numpy_function" in output
    [line] = [line for line in output.splitlines() if "runs hdp's operations in Python" in line]
    assert reason in line


@pytest.mark.slow
def test_two_hundred_in_flight(tmp_path):
    """In opposite orders on two ranks: if each waited for the one before it, none would end."""
    environ = {"CHECK_FOLDER": str(tmp_path), "HDP_TIMEOUT_SECONDS": "20"}
    world.together("function_ranks.py", "many_in_flight", "memory", sizes=(1, 1), environ=environ)
