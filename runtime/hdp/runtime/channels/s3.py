"""Channels and code from S3, or whatever speaks its protocol (AWS_ENDPOINT_URL and the other standard variables).

boto3 is imported on first use, so that a job that needs no S3 doesn't need boto3.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hdp.contract.env import aws_region
from hdp.contract.errors import ChannelError
from hdp.contract.files import whole_file
from hdp.contract.uris import bucket_and_key
from hdp.runtime.channels.keys import Entry

#: boto3 makes its clients' classes at run time.
S3Client = Any

#: Ranges and files in flight. 8 saturate 10 Gbit/s from S3 at its usual 60 to 90 MB/s a connection.
_CONCURRENCY = 8


def connect(concurrency: int = _CONCURRENCY) -> S3Client:
    """A client for S3, set up by the standard AWS variables and files. Raises ChannelError without boto3."""
    try:
        import boto3
        from botocore.config import Config
    except ImportError as exc:
        raise ChannelError("an s3:// source needs boto3, which isn't installed: pip install boto3") from exc
    config = Config(max_pool_connections=concurrency + 2, retries={"mode": "standard"})
    with errors_named("s3://"):
        try:
            return boto3.client("s3", region_name=aws_region(), config=config)
        except ValueError as exc:
            raise ChannelError(
                f"{exc}; expected a URL such as http://127.0.0.1:9000 in AWS_ENDPOINT_URL, AWS_ENDPOINT_URL_S3, or "
                "endpoint_url of the AWS configuration file"
            ) from exc


@contextlib.contextmanager
def errors_named(uri: str) -> Iterator[None]:
    """Turn boto3's errors into ChannelError that names `uri` and says what to check."""
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as exc:
        error = exc.response.get("Error", {})
        raise ChannelError(
            f"{uri}: S3 answered {error.get('Code', '?')} ({error.get('Message', exc)}); check the URI and that this "
            "job's credentials may read it"
        ) from exc
    except (BotoCoreError, Boto3Error) as exc:
        raise ChannelError(
            f"{uri}: {exc}; check the credentials (AWS_PROFILE, AWS_ACCESS_KEY_ID), the region (AWS_REGION) and the "
            "endpoint (AWS_ENDPOINT_URL)"
        ) from exc


def head(client: S3Client, bucket: str, key: str, path: str) -> Entry:
    """The object `key`, asked for by itself, for the place `path`."""
    with errors_named(f"s3://{bucket}/{key}"):
        answer = client.head_object(Bucket=bucket, Key=key)
    return _entry(key, path, {**answer, "Size": answer["ContentLength"]})


def time_of(answer: Mapping[str, Any]) -> float:
    """When the object was changed last, in seconds since 1970; 0 where boto3's answer doesn't say."""
    changed = answer.get("LastModified")
    return changed.timestamp() if changed is not None else 0.0


def _entry(key: str, path: str, answer: Mapping[str, Any]) -> Entry:
    return Entry(key, path, answer["Size"], answer.get("ETag") or None, time_of(answer))


def read_object(client: S3Client, uri: str) -> bytes:
    """The content of one (small) object."""
    bucket, key = bucket_and_key(uri)
    with errors_named(uri):
        content: bytes = client.get_object(Bucket=bucket, Key=key)["Body"].read()
    return content


def fetch_object(client: S3Client, uri: str, target: Path) -> None:
    """Download one object to the file `target`, which is whole or not there."""
    bucket, key = bucket_and_key(uri)
    with errors_named(uri), whole_file(target, 0o644) as temporary:
        client.download_file(bucket, key, str(temporary))
