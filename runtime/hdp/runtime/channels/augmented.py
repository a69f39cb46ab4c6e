"""Augmented manifests: JSON lines, of which Pipe mode streams the named attributes, line by line.

An attribute whose name ends in ``-ref`` holds a URI, and the object's content is streamed; of any other the value is
streamed as JSON text. Every line is checked, and every object looked up, before the job starts.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

from hdp.contract.errors import ChannelError
from hdp.contract.uris import bucket_and_key, local_path
from hdp.contract.zipping import zip_strict
from hdp.runtime.channels import local, s3list
from hdp.runtime.channels.keys import Entry

_REFERENCE = "-ref"
_OBJECT = re.compile(r"s3://[^/]+/.|file:///.")


@dataclass(frozen=True)
class Object:
    """An object to be streamed."""

    base: str
    """``s3://bucket``, or a folder."""
    entry: Entry


#: What an attribute is streamed as.
Value = Union[bytes, Object]


def read_lines(content: bytes, attributes: Sequence[str], uri: str) -> list[tuple[Value, ...]]:
    """The values of each line, in the order of `attributes`. Raises ChannelError that names the line at fault."""
    rows = [_row(line, attributes, f"line {n} of {uri}") for n, line in enumerate(content.splitlines(), 1) if line]
    if not rows:
        raise ChannelError(f"the augmented manifest {uri} has no lines; expected JSON objects, one a line")
    known = _look_up({str(v) for row in rows for name, v in zip_strict(attributes, row) if _refers(name)}, uri)
    return [tuple(_value(n, v, known) for n, v in zip_strict(attributes, row)) for row in rows]


def _row(line: bytes, attributes: Sequence[str], where: str) -> list[Any]:
    try:
        value: Any = json.loads(line)
    except ValueError as exc:
        raise ChannelError(f"{where} isn't JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise ChannelError(f"{where} is {value!r}; expected an object with the attributes {', '.join(attributes)}")
    missing = [a for a in attributes if a not in value]
    if missing:
        raise ChannelError(f"{where} lacks the attribute {missing[0]!r}; it has {', '.join(value) or 'none'}")
    for name in filter(_refers, attributes):
        if not isinstance(value[name], str) or not _OBJECT.match(value[name]):
            raise ChannelError(f"{where} has {name} {value[name]!r}; expected s3://bucket/key")
    return [value[a] for a in attributes]


def _refers(name: str) -> bool:
    return name.endswith(_REFERENCE)


def _value(name: str, value: Any, known: Mapping[str, Object]) -> Value:
    return known[value] if _refers(name) else json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _look_up(uris: Iterable[str], manifest: str) -> dict[str, Object]:
    by_bucket: dict[str, dict[str, str]] = defaultdict(dict)
    found: dict[str, Object] = {}
    for uri in uris:
        if uri.startswith("file://"):
            path = local_path(uri)
            found[uri] = Object(str(path.parent), local.entry(path.parent, path.name))
        else:
            bucket, key = bucket_and_key(uri)
            by_bucket[bucket][key] = uri
    for bucket, keys in by_bucket.items():
        entries = s3list.look_up(s3list.listing_client(), bucket, list(keys), manifest)
        found |= {uri: Object(f"s3://{bucket}", entries[key]) for key, uri in keys.items()}
    return found
