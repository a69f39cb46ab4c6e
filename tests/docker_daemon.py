"""A Docker daemon of a run's own, and what is built in it: for the tests of the engine and for the notebook.

HDP_TEST_DOCKER_HOST names a daemon to use, rather than one that is started and stopped here.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: What a build gets of the checkout.
_COPIED = ("estimator", "runtime", "containers", "tools", "pyproject.toml", "README.md", "LICENSE", ".dockerignore")


@pytest.fixture(scope="session")
def daemon(tmp_path_factory):
    """Address of a Docker daemon."""
    if own := os.environ.get("HDP_TEST_DOCKER_HOST"):
        yield own
        return
    folder = tmp_path_factory.mktemp("dockerd")
    script = ["sh", str(ROOT / "tools/docker.sh")]
    clean = {k: v for k, v in os.environ.items() if k != "DOCKER_HOST"}
    started = subprocess.run([*script, "start", str(folder)], capture_output=True, text=True, env=clean)
    if started.returncode != 0:
        pytest.skip(f"NO DOCKER, so nothing of the docker engine was tested: {started.stderr.strip()[-300:]}")
    # A test run that is killed tears nothing down.
    watch = ["sh", "-c", 'tail --pid="$0" -f /dev/null; exec "$@"', str(os.getpid()), *script, "stop", str(folder)]
    watcher = subprocess.Popen(watch, env=clean, start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        yield started.stdout.strip().rpartition("DOCKER_HOST=")[2]
    finally:
        os.killpg(watcher.pid, signal.SIGKILL)
        watcher.wait()
        subprocess.run([*script, "stop", str(folder)], check=True, env=clean)


@pytest.fixture(scope="session")
def context(tmp_path_factory):
    """What a build gets: a copy of the checkout, with a wheel that has the libraries which the tests run with."""
    folder = tmp_path_factory.mktemp("context")
    for source in (ROOT / name for name in _COPIED):
        if source.is_dir():
            shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy(source, folder / source.name)
    _wheel(folder)
    return folder


def _wheel(folder):
    from hdp.collectives import library

    environment = {**os.environ, "SKBUILD_WHEEL_CMAKE": "false"}
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder / "dist"), str(folder)]
    subprocess.run(build, check=True, env=environment, capture_output=True)
    [wheel] = (folder / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.write(library.library_path(), "hdp/collectives/libhdp_core.so")
