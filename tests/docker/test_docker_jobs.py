"""The same job on containers and on this machine, and what a host finds in its container."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import pytest
from docker_support import ended, estimator, lines

from hdp.contract.uris import local_path
from hdp.estimator import PyTorch
from hdp.estimator.engines.docker import images

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "examples/digits_torch"
pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(400), pytest.mark.usefixtures("torch_image")]


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    sys.path.append(str(DIGITS))
    from prepare import prepare

    return prepare(tmp_path_factory.mktemp("digits"))


def trained(kind, inputs):
    """A job of the digits example on hosts of this kind. Returns it."""
    return PyTorch(
        entry_point="train.py",
        source_dir=str(DIGITS),
        instance_type=kind,
        instance_count=2,
        distribution={"hdp": {"enabled": True, "processes_per_host": 2}},
        hyperparameters={"epochs": 2},
    ).fit(inputs, logs=None)


@pytest.mark.usefixtures("nothing_left")
def test_containers_train_the_same_model_to_the_byte(digits):
    """2 hosts x 2 ranks, the digits, two epochs. Expected: the archives of both engines have the same digest."""
    digests = {
        kind: hashlib.sha256(local_path(trained(kind, digits).model_data).read_bytes()).hexdigest()
        for kind in ("docker", "local")
    }
    assert digests["docker"] == digests["local"]


LOOKS = """
    import json, os, pathlib, socket, subprocess
    pid1 = pathlib.Path("/proc/1/cmdline").read_bytes().split(b"\\0")
    status = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
    config = json.loads(pathlib.Path("/opt/ml/input/config/resourceconfig.json").read_text())
    found = {
        "pid1": b" ".join(pid1).decode().strip(), "host": socket.gethostname(), "uid": os.getuid(), "config": config,
        "secret_mode": oct(os.stat("/run/hdp/secret").st_mode & 0o777), "rights": status["CapEff"].strip(),
        "other": socket.gethostbyname("algo-2"), "shm": os.statvfs("/dev/shm").f_blocks * 4096,
        "orphan": subprocess.run(["sh", "-c", "sleep 0.1 & echo $!"], capture_output=True, text=True).stdout.strip(),
    }
    import time
    time.sleep(2)
    try:
        found["orphan_state"] = pathlib.Path("/proc/" + found["orphan"] + "/stat").read_text().split()[2]
    except FileNotFoundError:
        found["orphan_state"] = "gone"
    health = subprocess.run(["python", "-m", "hdp.runtime.launch.heartbeat"], capture_output=True, text=True)
    found["health"] = [health.returncode, health.stdout.strip()]
    print("found", json.dumps(found), flush=True)
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory, torch_image):
    """What the rank on algo-1 sees."""
    job = estimator(tmp_path_factory.mktemp("looks"), LOOKS).fit(wait=False)
    answer = ended(job)
    said = [line.text for line in lines(job) if line.host == "algo-1" and line.text.startswith("found ")]
    assert answer["TrainingJobStatus"] == "Completed", answer.get("FailureReason")
    return json.loads(said[0].removeprefix("found "))


def test_our_agent_is_the_first_process(found):
    assert found["pid1"] == "/opt/hdp/bin/python -m hdp.runtime.launch.entrypoint train"


def test_orphans_are_reaped(found):
    assert found["orphan_state"] == "gone"


def test_hosts_have_their_names_and_find_each_other(found):
    assert found["host"] == "algo-1" and found["other"].count(".") == 3


def test_resourceconfig_is_as_sagemaker_writes_it(found):
    groups = [{"instance_group_name": "homogeneousCluster", "instance_type": "docker", "hosts": ["algo-1", "algo-2"]}]
    assert found["config"] == {
        "current_host": "algo-1",
        "current_instance_type": "docker",
        "current_group_name": "homogeneousCluster",
        "hosts": ["algo-1", "algo-2"],
        "instance_groups": groups,
        "network_interface_name": "eth0",
    }


def test_a_host_has_no_more_rights_than_it_needs(found):
    """No capability at all; the caller's user, who alone may read the secret; Docker's own small /dev/shm."""
    assert (found["rights"], found["uid"], found["secret_mode"]) == ("0" * 16, os.getuid(), "0o600")
    assert found["shm"] == 64 << 20


def test_the_health_check_sees_the_agent(found):
    assert found["health"] == [0, "the agent lives"]


def test_an_image_lists_what_is_in_it(client, torch_image):
    """`hdp images`. Expected: the image by its digest, with the versions of its own list."""
    import torch

    [image] = [image for image in images.ours(client) if image.digest == torch_image]
    assert image.kind == "torch" and image.versions["torch"] == torch.__version__
    assert set(image.versions) >= {"hdp-train", "numpy"}


def test_an_image_runs_as_nobody_special(client, torch_image):
    config = client.inspect_image("hdp-torch")["Config"]
    assert config["User"] == "1000:1000"
    assert config["Healthcheck"]["Test"][-1] == "hdp.runtime.launch.heartbeat"
    assert config["Labels"]["hdp.image"] == "torch"


def test_the_daemon_says_what_is_wrong_with_a_build(client, tmp_path):
    """A Dockerfile whose step fails. Expected: the step's own words, in one error."""
    from hdp.contract.errors import EngineError
    from hdp.estimator.engines.docker.building import Build, build

    (tmp_path / "containers/torch").mkdir(parents=True)
    (tmp_path / "containers/torch/Dockerfile").write_text("FROM hdp-torch\nRUN echo first words; exit 3\n")
    with pytest.raises(
        EngineError, match=r"hdp-broken can't be built: .*returned a non-zero code: 3(.|\n)*first words"
    ):
        build(client, Build("torch", "hdp-broken", tmp_path), lambda _: None)


def test_a_folder_that_is_no_checkout_is_refused(client, tmp_path):
    from hdp.contract.errors import EngineError
    from hdp.estimator.engines.docker.building import Build, build

    with pytest.raises(EngineError, match=r"is no checkout of hdp: it has no containers/torch/Dockerfile.*--source"):
        build(client, Build("torch", "hdp-none", tmp_path), lambda _: None)
