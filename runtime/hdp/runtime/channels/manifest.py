"""A channel whose objects are named in a file (ManifestFile): ``[{"prefix": "s3://bucket/folder/"}, "a", "b/c"]``.

SageMaker's form, and more: the prefix may be ``file:///folder/``.
"""

from __future__ import annotations

import json
from typing import Any

from hdp.contract.errors import ChannelError
from hdp.contract.uris import bucket_and_key, local_path
from hdp.runtime.channels import local, s3, s3list
from hdp.runtime.channels.keys import Listing, safe_path


def list_manifest(uri: str) -> Listing:
    """What the manifest at `uri` names, with sizes. Raises ChannelError for what is malformed or isn't there."""
    prefix, listed = parse_manifest(read(uri), uri)
    names = list(dict.fromkeys(listed))
    twice = len(listed) - len(names)
    warnings = (f"{twice} names of the manifest {uri} are repetitions; each object is taken once",) if twice else ()
    if prefix.startswith("s3://"):
        bucket, start = bucket_and_key(prefix)
        paths = {start + n: safe_path(n, start + n) for n in names}
        found = s3list.look_up(s3list.listing_client(), bucket, list(paths), uri)
        return Listing(f"s3://{bucket}", tuple(found[key]._replace(path=path) for key, path in paths.items()), warnings)
    base = local_path(prefix)
    return Listing(str(base), tuple(local.entry(base, safe_path(n, n)) for n in names), warnings)


def read(uri: str) -> bytes:
    """The content of the small file or object `uri`."""
    return s3.read_object(s3.connect(), uri) if uri.startswith("s3://") else local_path(uri).read_bytes()


def parse_manifest(content: bytes, uri: str) -> tuple[str, list[str]]:
    """The prefix and the names of the manifest `content`, read from `uri`."""
    try:
        value: Any = json.loads(content)
    except ValueError as exc:
        raise ChannelError(f"the manifest {uri} isn't JSON: {exc}") from exc
    head = value[0] if isinstance(value, list) and value else None
    prefix = head.get("prefix") if isinstance(head, dict) else None
    if not isinstance(prefix, str) or not prefix.startswith(("s3://", "file://")):
        raise ChannelError(f'the manifest {uri} starts with {head!r}, expected {{"prefix": "s3://bucket/folder/"}}')
    wrong = [n for n in value[1:] if not isinstance(n, str) or not n]
    if wrong:
        raise ChannelError(f"the manifest {uri} has the entry {wrong[0]!r}, expected the end of a key as text")
    return prefix, value[1:]
