"""Fixtures: a job's hosts, and a real S3 server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from runtime_cluster import Cluster, MakeCluster, lay_cluster


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[MakeCluster]:
    """A function that lays the trees of a job, as `lay_cluster`; what it started is killed at the end."""
    made: list[Cluster] = []

    def make(*args: Any, **options: Any) -> Cluster:
        made.append(lay_cluster(tmp_path, *args, **options))
        return made[-1]

    yield make
    for cluster in made:
        cluster.end()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """URL of a real S3 server (moto) of this session's own."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An S3 client with the bucket ``data``; the standard AWS variables lead to the same server."""
    import boto3

    values = {
        "AWS_ENDPOINT_URL": s3_server,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    for key, value in values.items():
        monkeypatch.setenv(key, value)
    client = boto3.client("s3")
    client.create_bucket(Bucket="data")
    yield client
    for page in client.get_paginator("list_objects_v2").paginate(Bucket="data"):
        for entry in page.get("Contents", []):
            client.delete_object(Bucket="data", Key=entry["Key"])
    client.delete_bucket(Bucket="data")
    client.close()
