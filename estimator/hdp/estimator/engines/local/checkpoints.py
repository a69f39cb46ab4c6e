"""Checkpoints that live in S3: brought here before the hosts start, taken there when they have ended.

All hosts share one folder, as they do where checkpoints live in a folder of this machine. A service copies while the
job runs, too; what a killed supervisor leaves stays in the job's folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from hdp.contract.env import aws_region
from hdp.contract.errors import EngineError
from hdp.contract.uris import bucket_and_key, scheme
from hdp.estimator.engines.local.home import JobDir
from hdp.estimator.engines.local.publish import why


def in_s3(training_job: Mapping[str, Any]) -> str | None:
    """CheckpointConfig.S3Uri, where that is in S3."""
    uri = (training_job.get("CheckpointConfig") or {}).get("S3Uri")
    return str(uri) if uri is not None and scheme(uri) == "s3" else None


def fetch(job: JobDir, training_job: Mapping[str, Any]) -> None:
    """Bring what is there of an earlier job to the hosts' folder. Raises EngineError."""
    uri = in_s3(training_job)
    if uri is None:
        return
    try:
        client = _client()
        bucket, prefix = _place(uri)
        for name in _listed(client, bucket, prefix):
            target = job.checkpoints / name
            target.parent.mkdir(parents=True, exist_ok=True)
            client.download_file(bucket, prefix + name, str(target))
    except Exception as exc:  # botocore's and boto3's errors have no common root below Exception
        raise EngineError(f"the checkpoints in {uri} can't be fetched: {why(exc)}") from exc


def keep(job: JobDir, training_job: Mapping[str, Any], since: float) -> str | None:
    """Take what the hosts wrote since `since`, Unix seconds, to S3. Returns why it can't be; None: it is there."""
    uri = in_s3(training_job)
    if uri is None:
        return None
    try:
        client = _client()
        bucket, prefix = _place(uri)
        there = _listed(client, bucket, prefix)
        for path in _files(job.checkpoints):
            name, status = path.relative_to(job.checkpoints).as_posix(), path.stat()
            if status.st_mtime >= since or there.get(name) != status.st_size:
                client.upload_file(str(path), bucket, prefix + name)
    except Exception as exc:  # as above
        return f"the checkpoints couldn't be copied to {uri}: {why(exc)}; they are kept in {job.checkpoints}"
    return None


def _client() -> Any:
    import boto3

    return boto3.client("s3", region_name=aws_region())


def _place(uri: str) -> tuple[str, str]:
    """Bucket, and what all keys begin with."""
    bucket, key = bucket_and_key(uri)
    return bucket, f"{key.rstrip('/')}/" if key.strip("/") else ""


def _listed(client: Any, bucket: str, prefix: str) -> dict[str, int]:
    """Size of each object below `prefix` that can be a file below a folder, by its path there."""
    found = {}
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        for entry in page.get("Contents", []):
            name = entry["Key"].removeprefix(prefix)
            if name and not name.endswith("/") and not name.startswith("/") and ".." not in PurePosixPath(name).parts:
                found[name] = entry["Size"]
    return found


def _files(folder: Path) -> Iterator[Path]:
    """Regular files below `folder`; links aren't followed."""
    for where, _, names in os.walk(folder):
        yield from (path for path in map(Path(where).joinpath, names) if path.is_file() and not path.is_symlink())
