"""hdp.tensorflow where tensors and variables are on a GPU: the fake one of fake_gpu.cc."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import fake_gpu
import pytest
import versions
import world
from test_functions import DETAILED, IN_PYTHON, LONG, SIDE_BY_SIDE, check, without

pytestmark = pytest.mark.timeout(460)  # where much else runs
HERE = Path(__file__).parent
CHECKS = re.findall(r"^def check_(\w+)", (HERE / "gpu_ranks.py").read_text(), re.MULTILINE)
#: A gather from a variable, for which the fake GPU has no kernel; gpu_ranks.py has the rest of it.
NO_KERNEL = {"tape"}
#: What TensorFlow itself knows of our kernels: operation -> device -> arguments in host memory.
KERNELS = """
import json
import hdp.tensorflow as dist
from tensorflow.python.framework import kernels
assert dist.operations_name() == "native"
print("KERNELS", json.dumps({
    name: {k.device_type: list(k.host_memory_arg) for k in kernels.get_registered_kernels_for_op(name).kernel}
    for name in ("HdpAllreduce", "HdpExchange")
}))
"""


@pytest.fixture(scope="module")
def fake(tmp_path_factory):
    """The environment in which a rank has a GPU."""
    return fake_gpu.build(tmp_path_factory.mktemp("gpu"))


def kernels(python):
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [python, "-c", KERNELS], env={**os.environ, **quiet}, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(re.search(r"^KERNELS (.*)$", done.stdout, re.MULTILINE).group(1))


def expected_kernels():
    arguments = {
        "HdpAllreduce": ["sequence", "tensors", "results"],
        "HdpExchange": ["sequence", "tensor", "shape", "send_counts", "recv_counts", "result"],
    }
    return {name: {"CPU": [], "GPU": found} for name, found in arguments.items()}


@pytest.mark.slow
def test_kernels_for_both_devices():
    """On a GPU with every argument in host memory, as TensorFlow's own registry has it."""
    assert kernels(sys.executable) == expected_kernels()


@pytest.mark.slow
@pytest.mark.exhaustive
def test_kernels_of_tensorflow_2_15():
    assert kernels(versions.interpreter("2.15")) == expected_kernels()


def ranks(environ, operations, checks=CHECKS, **options):
    environ = {**environ, "HDP_TIMEOUT_SECONDS": "60"}
    outputs = world.together("gpu_ranks.py", *checks, sizes=(1, 2), environ=environ, **options)
    for output in outputs:
        assert re.findall(r"^ok (\w+)", output, re.MULTILINE) == checks
        assert f"operations {operations}" in output


@pytest.mark.slow
def test_tensors_and_variables_on_a_gpu(fake):
    """2 hosts, 1 + 2 ranks: values, where kernels run, and how often is copied."""
    ranks(fake, "native")


@pytest.mark.slow
@pytest.mark.exhaustive
def test_tensors_on_a_gpu_in_python(fake):
    ranks({**fake, **IN_PYTHON}, "numpy_function")


@pytest.mark.slow
@pytest.mark.exhaustive
def test_tensors_on_a_gpu_with_tensorflow_2_15(tmp_path):
    """But for the tape: there gradients have a Cast for which the fake GPU has no kernel."""
    python = versions.interpreter("2.15")
    checks = [name for name in CHECKS if name != "tape"]
    ranks(fake_gpu.build(tmp_path, python), "native", checks, python=python)


@pytest.mark.slow
def test_functions_on_a_gpu(fake, tmp_path):
    """What test_functions.py checks on the CPU, with everything that can be on the GPU."""
    environ = {**fake, "HDP_TIMEOUT_SECONDS": "60"}
    check(without(LONG, DETAILED, NO_KERNEL), (1, 2), tmp_path, "native", environ=environ)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_functions_on_a_gpu_in_python(fake, tmp_path):
    environ = {**fake, **IN_PYTHON, "HDP_TIMEOUT_SECONDS": "60"}
    check(without(LONG, DETAILED, NO_KERNEL, SIDE_BY_SIDE), (1, 1), tmp_path, "numpy_function", environ=environ)


@pytest.mark.slow
def test_the_fake_gpu_catches_host_code(fake):
    """Else the tests above would prove nothing."""
    done = subprocess.run(
        [sys.executable, str(HERE / "gpu_ranks.py"), "touch"],
        env={**os.environ, **fake, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == -signal.SIGSEGV
