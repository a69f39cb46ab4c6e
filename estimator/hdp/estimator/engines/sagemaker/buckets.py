"""Buckets and objects: the account's default bucket, as SDK v2 has it, and uploads that happen once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hdp.contract.errors import EngineError
from hdp.contract.uris import bucket_and_key
from hdp.estimator.engines.sagemaker.asking import BRIEF, GLANCE, Patience, Refused, ask
from hdp.estimator.engines.sagemaker.aws import Aws

_MISSING = ("404", "NoSuchKey", "NotFound", "NoSuchBucket")
_FORBIDDEN = ("403", "AccessDenied", "Forbidden")


def account_of(aws: Aws, patience: Patience = BRIEF) -> str:
    """The account's number."""
    return str(ask(aws, "sts", "get_caller_identity", patience)["Account"])


def default_bucket(aws: Aws) -> str:
    """Name of the account's bucket for this region, ``sagemaker-<region>-<account>``; made if it isn't there.

    Raises EngineError where it belongs to somebody else, or may not be made.
    """
    account = account_of(aws)
    bucket = f"sagemaker-{aws.region}-{account}"
    try:
        ask(aws, "s3", "head_bucket", Bucket=bucket, ExpectedBucketOwner=account)
    except Refused as exc:
        if exc.code in _FORBIDDEN:
            raise EngineError(
                f"the default bucket {bucket} can't be used: it belongs to another account, or you may not look at it; "
                "give output_path='s3://a-bucket-of-yours/prefix'"
            ) from exc
        if exc.code not in _MISSING:
            raise
        _make(aws, bucket)
    return bucket


def _make(aws: Aws, bucket: str) -> None:
    where: dict[str, Any] = (
        {} if aws.region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": aws.region}}
    )
    try:
        ask(aws, "s3", "create_bucket", Bucket=bucket, **where)
    except Refused as exc:
        # Somebody else's client of this account may have made it meanwhile.
        if exc.code not in ("BucketAlreadyOwnedByYou", "OperationAborted"):
            raise EngineError(
                f"the default bucket {bucket} isn't there and can't be made: {exc}; give output_path="
                "'s3://a-bucket-of-yours/prefix', or have somebody make it"
            ) from exc


def bucket_region(aws: Aws, bucket: str) -> str | None:
    """The bucket's region; None: the service doesn't say. Raises Refused: it isn't there, or may not be looked at."""
    try:
        answer = ask(aws, "s3", "head_bucket", GLANCE, Bucket=bucket)
    except Refused as exc:
        # Another region's bucket is answered with a redirect, or with 400, that names the region.
        named = _region_in(getattr(exc.__cause__, "response", {}))
        if exc.code not in (*_MISSING, *_FORBIDDEN) and named:
            return named
        raise
    return _region_in(answer)


def _region_in(answer: Mapping[str, Any]) -> str | None:
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    region: str | None = answer.get("BucketRegion") or headers.get("x-amz-bucket-region")
    return region


def put_once(aws: Aws, uri: str, content: bytes, key_id: str | None = None) -> bool:
    """Have an object whose key its content decides at `uri`. Returns whether it was sent. key_id: of KMS."""
    bucket, key = bucket_and_key(uri)
    try:
        found = ask(aws, "s3", "head_object", Bucket=bucket, Key=key)
        if found["ContentLength"] == len(content):
            return False
    except Refused as exc:
        if exc.code not in (*_MISSING, *_FORBIDDEN):  # without ListBucket, what is missing is forbidden
            raise
    put(aws, uri, content, key_id)
    return True


def put(aws: Aws, uri: str, content: bytes, key_id: str | None = None) -> None:
    """Send an object. Raises EngineError that names it."""
    bucket, key = bucket_and_key(uri)
    encrypted = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": key_id} if key_id else {}
    try:
        ask(aws, "s3", "put_object", Bucket=bucket, Key=key, Body=content, **encrypted)
    except Refused as exc:
        raise EngineError(f"{uri} can't be written: {exc}") from exc


def remove(aws: Aws, uri: str) -> None:
    """Remove an object, if it is there."""
    bucket, key = bucket_and_key(uri)
    ask(aws, "s3", "delete_object", Bucket=bucket, Key=key)
