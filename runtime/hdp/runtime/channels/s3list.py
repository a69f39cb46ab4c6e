"""Lists objects of S3, many at once, and looks up named ones.

botocore spends about 50 ms on the answer for 1,000 keys, the XML parser of the standard library 3 (measured on this
project's 2-core machine), so a client made by `listing_client` parses these answers itself; signing, retries, errors
and credentials stay botocore's.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any
from urllib.parse import unquote_plus
from xml.etree import ElementTree

from hdp.contract.errors import ChannelError
from hdp.contract.uris import bucket_and_key
from hdp.runtime.channels.keys import Entry, is_marker, relative_to_prefix, safe_path
from hdp.runtime.channels.ranges import Page, list_ranges
from hdp.runtime.channels.s3 import S3Client, connect, errors_named, time_of

#: Requests in flight: each waits 30 to 100 ms for S3, which takes thousands a second for a prefix.
WORKERS = 16
#: The most keys that S3 gives in an answer.
_FULL = 1000
#: Ends the names of S3's directory buckets; those list in no order and know no starting point.
_DIRECTORY_BUCKET = "--x-s3"
#: The path of an object that has no place among files.
_NO_PLACE = ""
_ROWS, _MORE = "HdpRows", "HdpMore"


class _NotInOrder(Exception):
    """The server doesn't go by the starting point."""


def listing_client() -> S3Client:
    """A client for `list_prefix` and `look_up`."""
    client = connect(WORKERS)
    client.meta.events.register("before-parse.s3.ListObjectsV2", _parse)
    return client


def list_prefix(client: S3Client, uri: str) -> tuple[list[Entry], list[str]]:
    """Every object whose key starts with the prefix of `uri`, in any order, but for those named as folders are marked;
    and the keys of such ones that have content all the same."""
    bucket, prefix = bucket_and_key(uri)
    with errors_named(uri):
        found = _list(client, bucket, prefix)
    return [e for e in found if e.path != _NO_PLACE], [e.key for e in found if e.path == _NO_PLACE]


def _list(client: S3Client, bucket: str, prefix: str) -> list[Entry]:
    if bucket.endswith(_DIRECTORY_BUCKET):
        return _one_by_one(client, bucket, prefix)
    try:
        return list_ranges(lambda after: _page(client, bucket, prefix, after), prefix, WORKERS)
    except _NotInOrder:
        return _one_by_one(client, bucket, prefix)


def look_up(client: S3Client, bucket: str, keys: Sequence[str], uri: str) -> dict[str, Entry]:
    """The objects with these keys, with what is known of them. Raises ChannelError that names one that isn't there.

    A HEAD each would be a request a key; listing from each key that isn't known yet on gets those that follow, too.
    """
    ordered = sorted(set(keys))
    step = max(1, -(-len(ordered) // WORKERS))
    found: dict[str, Entry] = {}
    try:
        with errors_named(uri), ThreadPoolExecutor(WORKERS, "hdp-list") as pool:
            parts = [ordered[i : i + step] for i in range(0, len(ordered), step)]
            for part in pool.map(lambda some: _skim(client, bucket, some), parts):
                found |= part
    except _NotInOrder as exc:
        raise ChannelError(f"{uri}: the server of bucket {bucket} can't list from a key on (StartAfter)") from exc
    missing = [k for k in ordered if k not in found]
    if missing:
        raise ChannelError(f"{uri} names {len(missing)} objects that aren't there, such as s3://{bucket}/{missing[0]}")
    return found


def _skim(client: S3Client, bucket: str, keys: Sequence[str]) -> dict[str, Entry]:
    """Those of the sorted `keys` that are there."""
    found: dict[str, Entry] = {}
    wanted, after, i = set(keys), "", 0
    # Not the whole bucket: the right to list is often that for a prefix.
    prefix = os.path.commonprefix([keys[0], keys[-1]]).rpartition("/")  # noqa: RUF071  (keys aren't paths)
    while i < len(keys):
        after = max(after, _just_before(keys[i]))
        rows, more, _ = _rows(client, bucket, prefix[0] + prefix[1], {"StartAfter": after})
        found |= {row[0]: _entry(row, row[0]) for row in rows if row[0] in wanted}
        if not more or not rows:
            break
        after = rows[-1][0]
        while i < len(keys) and keys[i] <= after:
            i += 1
    return found


def _just_before(key: str) -> str:
    """A text that sorts before `key` with little between them."""
    last = ord(key[-1]) - 1
    return key[:-1] + chr(last) + "~" if 0x20 <= last < 0x7F else key[:-1]


def _page(client: S3Client, bucket: str, prefix: str, after: str) -> Page:
    rows, more, _ = _rows(client, bucket, prefix, {"StartAfter": after})
    if more and not rows:
        raise _NotInOrder
    return Page(tuple(_entries(rows, prefix)), rows[-1][0] if rows else "", more)


def _one_by_one(client: S3Client, bucket: str, prefix: str) -> list[Entry]:
    found: list[Entry] = []
    where: dict[str, Any] = {}
    while True:
        rows, more, token = _rows(client, bucket, prefix, where)
        found += _entries(rows, prefix)
        if not more:
            return found
        where = {"ContinuationToken": token}


_Row = tuple[str, int, "str | None", float]


def _rows(client: S3Client, bucket: str, prefix: str, where: dict[str, Any]) -> tuple[list[_Row], bool, str | None]:
    """Key, size, ETag and time of the objects of one answer; whether there are more; the token for those."""
    said = {k: v for k, v in where.items() if v != ""}
    answer = client.list_objects_v2(Bucket=bucket, Prefix=prefix, MaxKeys=_FULL, **said)
    rows = answer[_ROWS] if _ROWS in answer else [_row_of(entry) for entry in answer.get("Contents", ())]
    after = where.get("StartAfter", "")
    if after and rows and rows[0][0] <= after:
        raise _NotInOrder
    return rows, answer.get(_MORE, answer.get("IsTruncated", False)), answer.get("NextContinuationToken")


def _row_of(entry: Any) -> _Row:
    return entry["Key"], entry["Size"], entry.get("ETag") or None, time_of(entry)


def _entries(rows: Iterable[_Row], prefix: str) -> Iterable[Entry]:
    for row in rows:
        if not is_marker(row[0]):
            yield _entry(row, safe_path(relative_to_prefix(row[0], prefix), row[0]))
        elif row[1] > 0:
            yield _entry(row, _NO_PLACE)


def _entry(row: _Row, path: str) -> Entry:
    return Entry(row[0], path, row[1], row[2], row[3])


def _parse(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    """botocore's event before it parses an answer: parse it here, leave botocore nothing to do."""
    if response_dict["status_code"] != 200:
        return
    try:
        root = ElementTree.fromstring(response_dict["body"])
    except ElementTree.ParseError:
        return  # botocore says it better
    space = root.tag[: root.tag.find("}") + 1]
    if root.tag != f"{space}ListBucketResult":
        return
    encoded = root.findtext(f"{space}EncodingType") == "url"
    customized_response_dict[_ROWS] = [_row(found, space, encoded) for found in root.iter(f"{space}Contents")]
    customized_response_dict[_MORE] = root.findtext(f"{space}IsTruncated") == "true"
    customized_response_dict["NextContinuationToken"] = root.findtext(f"{space}NextContinuationToken")
    response_dict["body"] = b""


def _row(found: ElementTree.Element, space: str, encoded: bool) -> _Row:
    key = found.findtext(f"{space}Key") or ""
    changed = found.findtext(f"{space}LastModified") or "1970-01-01T00:00:00Z"
    return (
        unquote_plus(key) if encoded else key,
        int(found.findtext(f"{space}Size") or 0),
        found.findtext(f"{space}ETag") or None,
        datetime.fromisoformat(changed[:19] + "+00:00").timestamp(),
    )
