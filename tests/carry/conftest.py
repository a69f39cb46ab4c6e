"""Stand-ins of AWS for the engine, and hosts that are emulated."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1]))
from own_moto import moto_server

AWS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-west-2",
    "AWS_REGION": "us-west-2",
    "AWS_EC2_METADATA_DISABLED": "true",
}
ROLE = "arn:aws:iam::123456789012:role/Trainer"
IMAGE = "123456789012.dkr.ecr.us-west-2.amazonaws.com/nothing-of-hdp:1"


@pytest.fixture(scope="module")
def aws() -> Iterator[Any]:
    """A boto3 session whose endpoint is moto's server; the standard variables lead there too."""
    import boto3

    with moto_server() as url, pytest.MonkeyPatch.context() as patch:
        for name, value in {**AWS, "AWS_ENDPOINT_URL": url}.items():
            patch.setenv(name, value)
        session = boto3.Session()
        session.client("iam").create_role(RoleName="Trainer", AssumeRolePolicyDocument="{}")
        yield session


@pytest.fixture(scope="module")
def network() -> Iterator[Any]:
    """Two hosts, algo-1 and algo-2, that reach each other and nothing else."""
    pytest.importorskip("pyroute2", reason="pyroute2 is not installed (pip install 'hdp-train[emulation]')")
    from hdp.runtime.emulation import EmulationError, Network

    try:
        made = Network(2)
    except EmulationError as exc:
        pytest.skip(f"hosts can't be emulated here: {exc}")
    with made:
        yield made
