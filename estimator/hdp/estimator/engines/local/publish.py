"""Copies an archive to where the user wants it: a ``file://`` folder or an S3 prefix."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from hdp.contract.env import aws_region
from hdp.contract.errors import EngineError
from hdp.contract.files import whole_file
from hdp.contract.uris import bucket_and_key, local_path, scheme


def destination(output_path: str, job_name: str, file_name: str) -> str:
    """URI of an artifact below `output_path`, as SageMaker lays it out."""
    return f"{output_path.rstrip('/')}/{job_name}/output/{file_name}"


def publish(archive: Path, uri: str | None) -> str:
    """Move `archive` to `uri` and return that; without one it stays where it is, and its own URI is returned.

    Raises EngineError that says why it couldn't be copied; the archive is still there then.
    """
    if uri is None:
        return archive.as_uri()
    try:
        if scheme(uri) == "s3":
            _upload(archive, uri)
        else:
            _copy(archive, local_path(uri))
    except Exception as exc:  # botocore's and boto3's errors have no common root below Exception
        raise EngineError(f"{archive.name} couldn't be copied to {uri}: {why(exc)}; it is kept in {archive}") from exc
    archive.unlink()
    return uri


def why(exc: Exception) -> str:
    """What went wrong, with the remedy where there is one."""
    if isinstance(exc, OSError) and exc.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full ({exc.strerror}); `hdp clean` frees what ended jobs hold"
    return f"{type(exc).__name__}: {exc}"


def _copy(archive: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(target, 0o644) as part:
        shutil.copyfile(archive, part)


def _upload(archive: Path, uri: str) -> None:
    import boto3

    bucket, key = bucket_and_key(uri)
    boto3.client("s3", region_name=aws_region()).upload_file(str(archive), bucket, key)
