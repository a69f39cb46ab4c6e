"""A Docker daemon, and images made on the spot: nothing is pulled.

One daemon, one base image and one image with torch serve all tests of a run; those that need them are marked `alone`,
so that they are in one process.

HDP_TEST_DOCKER_HOST names a daemon to use, rather than one that is started and stopped (`docker_daemon`);
HDP_TEST_IMAGES=keep uses the images that it has from an earlier run. HDP_TEST_IMAGES=all also builds what takes
minutes: on a Debian of its own, with compilers, the torch, mpi and tensorflow images.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from docker_daemon import ROOT
from docker_support import build

BASE, IMAGE = "hdp-test-base", "hdp-torch"


@pytest.fixture(scope="module")
def docker_host(daemon):
    """DOCKER_HOST is the daemon's address, for this module's tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", daemon)
        yield daemon


@pytest.fixture(scope="session")
def client(daemon):
    """The SDK's client."""
    import docker

    found = docker.APIClient(base_url=daemon, timeout=120)
    yield found
    found.close()


@pytest.fixture(scope="session")
def _built(daemon, client, request):
    """hdp-torch, on this machine's own Python and torch, by `hdp build`."""
    if os.environ.get("HDP_TEST_IMAGES") == "keep":
        return client.inspect_image(IMAGE)["Id"]
    context = request.getfixturevalue("context")
    command = [sys.executable, "tools/base_image.py", "--tag", BASE]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "DOCKER_HOST": daemon})
    assert done.returncode == 0, done.stdout + done.stderr
    return build(daemon, context, "torch", "--base", BASE, "--build-arg", "HDP=wheel")


@pytest.fixture(scope="module")
def torch_image(_built, docker_host):
    """hdp-torch is in the daemon at DOCKER_HOST. Returns its digest."""
    return _built


@pytest.fixture(autouse=True, scope="module")
def _home(tmp_path_factory):
    """Jobs are kept in a folder of the module's tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HDP_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture
def nothing_left(client):
    """After the test, nothing of hdp's is in the daemon, and as much of everything else as before."""
    before = belongings(client)
    yield
    assert belongings(client) == before


def belongings(client):
    """What is in the daemon but images: containers, networks, volumes; and mounts below its folder."""
    root = client.info()["DockerRootDir"]
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return {
        "containers": sorted(c["Id"] for c in client.containers(all=True)),
        "networks": sorted(n["Id"] for n in client.networks()),
        "volumes": sorted(v["Name"] for v in client.volumes()["Volumes"] or ()),
        "mounts": sorted(m for m in mounts if m.startswith(root) and m != root),
    }
