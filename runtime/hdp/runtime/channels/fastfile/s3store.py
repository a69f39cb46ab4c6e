"""Objects of S3, or of what speaks its protocol, through obstore: ranges that are pinned to the listed ETag.

A server that gives no ETags is held to the listed time of the last change, to the second.

Region, endpoint and credentials come from boto3, so that FastFile reads what File mode would download. obstore asks for
the credentials again before they expire; and when S3 says that they have expired, they are looked up anew.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hdp.contract.env import aws_region
from hdp.contract.errors import ChannelError
from hdp.runtime.channels import s3
from hdp.runtime.channels.fastfile.store import Changed, Denied, Missing, Store, StoreError, Transient
from hdp.runtime.channels.keys import Entry

#: How long obstore keeps credentials that don't say when they end: those of a file that something rewrites.
_KEEP = timedelta(minutes=10)
#: Without a byte for so long, a connection counts as dead. The store is asked again then.
_SILENT = timedelta(seconds=10)
_CONNECT = timedelta(seconds=5)
#: For a whole part; 8 MiB in it are 28 KB/s.
_WHOLE = timedelta(minutes=5)
_EXPIRED = re.compile(r"ExpiredToken|TokenRefreshRequired|RequestExpired")
#: Keys with empty or dot segments, or control characters.
_ODD = re.compile(r"^/|//|/$|(^|/)\.\.?(/|$)|[\x00-\x1f\x7f]")
_STATUS = re.compile(r"status(?: code)?:? (\d{3})\b")
_PARTIAL = 206
#: How obstore says that an answer to a request for a range isn't 206.
_WHOLE_ANSWER = "non-partial response"
_NO_RANGES = (
    "200: the server ignores ranges: asked for a part it answers with the whole object. All input modes read parts; "
    "use an endpoint (AWS_ENDPOINT_URL) that answers Range with 206, without a proxy that takes it out, or copy the "
    "data to a folder and use file://"
)


class S3Store:
    """One bucket."""

    def __init__(self, bucket: str) -> None:
        """Raises ChannelError without obstore, boto3 or credentials."""
        self._bucket = bucket
        self._lock = threading.Lock()
        self._client = _client()
        self._region = _region(self._client, bucket)
        self._generation = 0
        self._store = self._connect()

    def get(self, entry: Entry, start: int, end: int) -> memoryview:
        """The bytes from `start` to before `end`. Raises StoreError."""
        generation = self._generation
        try:
            return self._get(entry, start, end)
        except StoreError as exc:
            if not _EXPIRED.search(str(exc.__cause__)):
                raise
        self._renew(generation)
        return self._get(entry, start, end)

    def uri(self, entry: Entry) -> str:
        """``s3://bucket/key``."""
        return f"s3://{self._bucket}/{entry.key}"

    def _get(self, entry: Entry, start: int, end: int) -> memoryview:
        import obstore
        from obstore.exceptions import BaseError

        if _ODD.search(entry.key):
            # Those that obstore can't name, such as ``a//b``, or, worse, takes for another: ``/a`` for ``a``.
            return get_by_boto(self._client, self._bucket, entry, start, end)
        options: Any = {"range": (start, end)}
        if entry.etag is not None:
            options["if_match"] = entry.etag
        try:
            got = obstore.get(self._store, entry.key, options=options)
            if entry.etag is None:
                _check_time(entry, got.meta["last_modified"])
            return memoryview(got.bytes())
        except (BaseError, OSError) as exc:
            raise error_of(exc) from exc

    def _renew(self, generation: int) -> None:
        """Look the credentials up again, once for all threads that found the same ones expired."""
        with self._lock:
            if generation == self._generation:
                self._client = _client()
                self._store = self._connect()
                self._generation += 1

    def _connect(self) -> Any:
        try:
            from obstore.store import S3Store as Client
        except ImportError as exc:
            raise ChannelError(
                "FastFile from s3:// needs obstore, which isn't installed: pip install 'hdp-train[fastfile]', or use "
                "input_mode='File'"
            ) from exc
        endpoint = endpoint_of(self._client.meta.endpoint_url, self._region)
        options: Any = {
            "allow_http": urlsplit(endpoint).scheme == "http",
            "connect_timeout": _CONNECT,
            "read_timeout": _SILENT,
            "timeout": _WHOLE,
            "pool_max_idle_per_host": "80",
            **_trusted(endpoint),
        }
        return Client(
            self._bucket,
            region=self._region,
            # Always said, and always with the bucket in the path: obstore would else look for an endpoint by itself, in
            # variables that boto3 doesn't read, and takes one with the bucket in the host's name as it is.
            endpoint=endpoint,
            virtual_hosted_style_request=False,
            client_options=options,
            # Retries are ours to count; one layer is enough.
            retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=1)},
            credential_provider=_Credentials(self._client),
        )


class _Credentials:
    """boto3's credentials, as obstore asks for them."""

    def __init__(self, client: Any) -> None:
        self._credentials = client._request_signer._credentials
        if self._credentials is None:
            raise ChannelError(
                "no AWS credentials were found; set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )

    def __call__(self) -> Any:
        """The credentials now, as obstore wants them; boto3 renews those that are about to expire."""
        frozen = self._credentials.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(timezone.utc) + _KEEP,
        }


def _client() -> Any:
    """A client of a session of its own: boto3's usual one keeps the credentials that it has found first."""
    s3.connect().close()  # says what is missing, if anything is
    import boto3
    from botocore.config import Config

    config = Config(max_pool_connections=16, retries={"mode": "standard"})
    return boto3.session.Session().client("s3", region_name=aws_region(), config=config)


def get_by_boto(client: Any, bucket: str, entry: Entry, start: int, end: int) -> memoryview:
    """The bytes from `start` to before `end`, through boto3. Raises StoreError."""
    from botocore.exceptions import BotoCoreError, ClientError

    pinned = {} if entry.etag is None else {"IfMatch": entry.etag}
    try:
        got = client.get_object(Bucket=bucket, Key=entry.key, Range=f"bytes={start}-{end - 1}", **pinned)
        if got["ResponseMetadata"]["HTTPStatusCode"] != _PARTIAL:
            got["Body"].close()
            raise StoreError(_NO_RANGES, 200)
        if entry.etag is None:
            _check_time(entry, got.get("LastModified"))
        return memoryview(got["Body"].read())
    except ClientError as exc:
        raise of_status(exc.response.get("ResponseMetadata", {}).get("HTTPStatusCode"), str(exc)) from exc
    except (BotoCoreError, OSError) as exc:
        raise Transient(f"no answer: {exc}") from exc


def _check_time(entry: Entry, changed: datetime | None) -> None:
    """Raise Changed where the answer has another time than was listed. obstore says 1970 for none."""
    time = int(changed.timestamp()) if changed is not None else 0
    if entry.mtime and time and time != int(entry.mtime):
        raise Changed("412: the object has changed since the job started", 412)


def error_of(exc: BaseException) -> StoreError:
    """What obstore's exception means to a reader. The message of the server's answer isn't repeated: it may be long."""
    from obstore import exceptions

    known: tuple[tuple[type[BaseException], type[StoreError], int, str], ...] = (
        (exceptions.PermissionDeniedError, Denied, 403, "may not be read with this job's credentials"),
        (exceptions.UnauthenticatedError, Denied, 401, "may not be read with this job's credentials"),
        (exceptions.NotFoundError, Missing, 404, "is gone"),
        (exceptions.PreconditionError, Changed, 412, "has changed since the job started"),
        (exceptions.NotModifiedError, Changed, 304, "has changed since the job started"),
        (FileNotFoundError, Missing, 404, "is gone"),
        (PermissionError, Denied, 403, "may not be read with this job's credentials"),
    )
    for kind, ours, status, what in known:
        if isinstance(exc, kind):
            return ours(f"{status}: the object {what}", status)
    if _WHOLE_ANSWER in str(exc):
        return StoreError(_NO_RANGES, 200)
    found = _STATUS.search(str(exc))
    return of_status(int(found[1]) if found else None, str(exc))


def of_status(status: int | None, text: str) -> StoreError:
    """What an HTTP status means to a reader. None: there was no answer."""
    short = " ".join(text.split())[:200]
    if status is None or status >= 500 or status in (408, 429):
        return Transient(f"{status or 'no answer'}: {short}", status)
    kinds: Mapping[int, tuple[type[StoreError], str]] = {
        401: (Denied, "may not be read with this job's credentials"),
        403: (Denied, "may not be read with this job's credentials"),
        404: (Missing, "is gone"),
        412: (Changed, "has changed since the job started"),
        416: (Changed, "is shorter than when the job started"),
    }
    if status in kinds:
        kind, what = kinds[status]
        return kind(f"{status}: the object {what}", status)
    return StoreError(f"{status}: {short}", status)


def _trusted(endpoint: str) -> dict[str, Any]:
    """The authorities that AWS_CA_BUNDLE names, as boto3 trusts them."""
    bundle = os.environ.get("AWS_CA_BUNDLE")
    if not bundle or urlsplit(endpoint).scheme != "https":
        return {}
    try:
        return {"root_certificate": Path(bundle).read_bytes()}
    except OSError as exc:
        raise ChannelError(f"AWS_CA_BUNDLE names {bundle}, which can't be read: {exc.strerror}") from exc


def endpoint_of(endpoint: str, region: str) -> str:
    """boto3's endpoint; where it is a region's usual one, that of the bucket's own region, which alone answers."""
    host = urlsplit(endpoint).hostname or ""
    usual = re.fullmatch(r"s3(?:[.-][a-z]+(?:-[a-z]+)+-\d+)?\.amazonaws\.com(\.cn)?", host)
    return f"https://s3.{region}.amazonaws.com{usual[1] or ''}" if usual else endpoint


def _is_amazon(endpoint: str) -> bool:
    return bool(re.search(r"\.amazonaws\.com(\.cn)?$", urlsplit(endpoint).hostname or ""))


def _region(client: Any, bucket: str) -> str:
    """The bucket's own region, where Amazon tells: requests to another one are refused."""
    region = client.meta.region_name or "us-east-1"
    if not _is_amazon(client.meta.endpoint_url):
        return str(region)
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        headers = client.head_bucket(Bucket=bucket)["ResponseMetadata"]["HTTPHeaders"]
    except ClientError as exc:
        headers = exc.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    except BotoCoreError:
        headers = {}
    return str(headers.get("x-amz-bucket-region", region))


def open_bucket(bucket: str) -> Store:
    """The store of a bucket. Raises ChannelError."""
    return S3Store(bucket)
