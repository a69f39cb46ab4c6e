"""A ``.tar.gz`` whose bytes depend only on what is put in (and on zlib): no owners, no times, one of two modes."""

from __future__ import annotations

import gzip
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO


@contextmanager
def writing(raw: BinaryIO, level: int) -> Iterator[tarfile.TarFile]:
    """Yield an archive to add to, in the order in which its members shall be; ``level`` is gzip's, 1 to 9."""
    with (
        gzip.GzipFile("", "wb", level, raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        yield archive


def add_file(archive: tarfile.TarFile, name: str, content: BinaryIO, size_bytes: int, executable: bool) -> None:
    """Add a regular file: the next `size_bytes` of `content`. Raises OSError where there are fewer."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size_bytes, 0o755 if executable else 0o644
    archive.addfile(entry, content)
