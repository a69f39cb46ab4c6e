"""``file://`` and ``s3://`` URIs, to and from what they mean. Pure."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote, unquote, urlsplit


def scheme(uri: str) -> str:
    """``file``, ``s3``, ...; empty for text that is no URI."""
    return urlsplit(uri).scheme.lower()


def local_path(uri: str) -> Path:
    """The path that a ``file://`` URI means. Raises ValueError for any other URI, and for a relative path."""
    parts = urlsplit(uri)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise ValueError(f"{uri!r} isn't the URI of a local file; expected file:///an/absolute/path")
    return Path(unquote(parts.path))


def file_uri(path: Path) -> str:
    """The ``file://`` URI of an absolute path."""
    return "file://" + quote(str(path))


def bucket_and_key(uri: str) -> tuple[str, str]:
    """Bucket and key (without a leading slash) of an ``s3://`` URI. Raises ValueError for any other URI."""
    parts = uri.removeprefix("s3://").split("/", 1)
    if not uri.startswith("s3://") or not parts[0]:
        raise ValueError(f"{uri!r} isn't the URI of an S3 object; expected s3://bucket/key")
    return parts[0], parts[1] if len(parts) > 1 else ""
