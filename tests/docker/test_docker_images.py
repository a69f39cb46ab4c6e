"""Images: an environment's list of packages, the entry point, the health check, pushing to Amazon's registry."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from hdp.estimator.engines.docker import explain, pushing
from hdp.estimator.engines.docker.container import Ended
from hdp.estimator.engines.docker.images import _split
from hdp.estimator.engines.docker.options import DockerOptions
from hdp.runtime import sbom
from hdp.runtime.launch import heartbeat

DPKG = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u9

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1
"""


@pytest.fixture(scope="module")
def listed(tmp_path_factory):
    dpkg = tmp_path_factory.mktemp("dpkg") / "status"
    dpkg.write_text(DPKG)
    return sbom.document("torch", "0.1.0", dpkg)


def test_the_list_has_pythons_packages(listed):
    import numpy

    found = {c["purl"]: c["version"] for c in listed["components"]}
    assert found[f"pkg:pypi/numpy@{numpy.__version__}"] == numpy.__version__


def test_the_list_has_debians_packages_that_are_installed(listed):
    debian = [c["purl"] for c in listed["components"] if c["purl"].startswith("pkg:deb/")]
    assert debian == ["pkg:deb/debian/libc6@2.36-9%2Bdeb12u9?arch=amd64"]


def test_the_list_is_cyclonedx(listed):
    """The format's required members; every reference is there once."""
    assert (listed["bomFormat"], listed["specVersion"], listed["version"]) == ("CycloneDX", "1.5", 1)
    references = [c["bom-ref"] for c in listed["components"]]
    assert len(set(references)) == len(references) and references == sorted(references)
    json.dumps(listed)


def entry(*arguments, **environment):
    command = [sys.executable, "-m", "hdp.runtime.launch.entrypoint", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=60)


def test_train_runs_the_agent(tmp_path):
    """Without contract files it can say only what is missing."""
    done = entry("train", SAGEMAKER_BASE_DIR=str(tmp_path))
    assert done.returncode == 1
    assert f"{tmp_path}/input/config/resourceconfig.json is missing" in done.stdout


def test_another_program_takes_its_place():
    done = entry("sh", "-c", "echo $0 $1; exit 7", "two")
    assert (done.returncode, done.stdout) == (7, "two\n")


def test_a_program_that_is_not_there_is_named():
    done = entry("nosuch")
    assert done.returncode == 127 and "this image has no program 'nosuch'; `train` runs a host" in done.stderr


def test_the_health_check_tells_a_fresh_beat_from_an_old_one(tmp_path):
    file = tmp_path / "alive"
    environ = {"HDP_HEARTBEAT_FILE": str(file)}
    assert "no agent has started here" in heartbeat.complaint(environ, time.time())
    heartbeat.beat(environ)
    assert heartbeat.complaint(environ, time.time()) == ""
    assert "was last seen 100 s ago" in heartbeat.complaint(environ, file.stat().st_mtime + 100)


@pytest.mark.parametrize(
    ("image", "parts"),
    [
        ("hdp-torch", ("hdp-torch", "latest")),
        ("127.0.0.1:5000/a/b:3", ("127.0.0.1:5000/a/b", "3")),
        ("127.0.0.1:5000/a/b", ("127.0.0.1:5000/a/b", "latest")),
        ("a/b@sha256:12", ("a/b@sha256:12", None)),
    ],
)
def test_names_of_images_are_taken_apart(image, parts):
    assert _split(image) == parts


@pytest.fixture
def ecr(monkeypatch):
    """Amazon's registry, by moto."""
    import boto3
    from moto import mock_aws

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "tests")
    for name in ("AWS_ENDPOINT_URL", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    with mock_aws():
        yield boto3.client("ecr", region_name="eu-west-1")


ECR_IMAGE = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/team/hdp-torch:1"


def test_amazons_registry_is_logged_in_to_by_boto3(ecr):
    found = pushing.ecr_login(ECR_IMAGE)
    assert found is not None and found["username"] == "AWS" and found["password"]


def test_a_repository_is_made_where_there_is_none(ecr):
    pushing.ecr_login(ECR_IMAGE)
    pushing.ecr_login(ECR_IMAGE)
    [repository] = ecr.describe_repositories()["repositories"]
    assert repository["repositoryName"] == "team/hdp-torch"


def test_another_registry_is_the_daemons_own_business():
    assert pushing.ecr_login("ghcr.io/team/hdp-torch:1") is None


def test_memory_is_told_from_a_kill():
    """Exit code 137 twice: the kernel's, and somebody's."""
    options = DockerOptions(memory="2g")
    starved = explain.explanation(Ended(-9, out_of_memory=True), options, "hdp-torch", reported=False)
    killed = explain.explanation(Ended(-9), options, "hdp-torch", reported=False)
    assert starved.startswith("out of memory: ") and "may use 2g together; raise engine_options.memory" in starved
    assert "somebody outside the job" in killed and "not out of memory" in killed
