"""One wheel for every Python on Linux, and a pure one elsewhere; each installed into an empty environment."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from own_wheel import linux_wheel

from hdp.collectives import library

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.alone, pytest.mark.slow, pytest.mark.timeout(900)]


def _python_with(wheel, folder, *more):
    """An interpreter whose environment has the wheel, and `more` from the index."""
    venv.create(folder, with_pip=True)
    python = str(folder / "bin/python")
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", str(wheel), *more], check=True)
    return python


def _output(python, code):
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, cwd="/", env=environment)
    return done.stdout + done.stderr


def test_the_linux_wheel_brings_a_core_for_old_systems(tmp_path):
    """`make wheel`: named for glibc 2.28, loads, and has one rank's server and allreduce working."""
    python = _python_with(linux_wheel(), tmp_path / "venv", "numpy")
    code = "from hdp.collectives import library; print(library.load().hdp_abi_version(), library.library_path())"
    assert _output(python, code).startswith(f"{library.ABI_VERSION} {tmp_path}")


def test_the_pure_wheel_has_the_client_and_a_plain_refusal(tmp_path):
    """What macOS gets: no library; hdp.collectives says why."""
    environment = {**os.environ, "SKBUILD_WHEEL_CMAKE": "false"}
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, env=environment)
    [wheel] = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    python = _python_with(wheel, tmp_path / "venv", "numpy")
    assert "Linux" in _output(python, "from hdp.collectives import library; library.load()")
