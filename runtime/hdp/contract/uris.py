"""``file://`` and ``s3://`` URIs, and what they mean. The way back is `pathlib.Path.as_uri`."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def scheme(uri: str) -> str:
    """``file``, ``s3``, ...; empty for text that has none."""
    found = _SCHEME.match(uri)
    return found[1].lower() if found else ""


def local_path(uri: str) -> Path:
    """The path that a ``file://`` URI means. Raises ValueError for any other URI, and for a relative path.

    People write paths into URIs as they are, programs percent-encode them: the path counts as it is written where such
    a file or folder exists, else decoded.
    """
    text = uri.removeprefix("file://").removeprefix("localhost")
    if not uri.startswith("file://") or not text.startswith("/"):
        raise ValueError(f"{uri!r} isn't the URI of a local file; expected file:///an/absolute/path")
    return Path(text) if os.path.lexists(text) else Path(unquote(text))


def bucket_and_key(uri: str) -> tuple[str, str]:
    """Bucket and key (without a leading slash) of an ``s3://`` URI. Raises ValueError for any other URI."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    if not uri.startswith("s3://") or not bucket:
        raise ValueError(f"{uri!r} isn't an S3 URI; expected s3://bucket/key")
    return bucket, key
