"""Copies one file so that it is whole or not there. Cheapest way first: a shared extent, then a copy in the kernel."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import IO

from hdp.contract.errors import ChannelError
from hdp.contract.files import whole_file

#: ioctl of btrfs, XFS, bcachefs: the new file shares the old one's extents. <linux/fs.h>
_FICLONE = 0x40049409
_NOT_HERE = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTTY, errno.EPERM})


def copy_file(source: Path, target: Path) -> int:
    """Copy `source` to `target`, whose folder is made if need be. Returns the bytes copied.

    Raises ChannelError if the source shrank meanwhile, OSError as the file systems do.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as reader, whole_file(target, 0o644) as temporary:
        expected = os.fstat(reader.fileno()).st_size
        with temporary.open("wb") as writer:
            if not _clone(reader, writer) and not _copy_in_kernel(reader, writer):
                shutil.copyfileobj(reader, writer, 1 << 20)
            size = os.fstat(writer.fileno()).st_size
        if size < expected:
            raise ChannelError(f"{source} had {expected} bytes, {size} could be read: it shrank while it was copied")
    return size


def can_clone(source: Path, folder: Path) -> bool:
    """Whether a copy of `source` in `folder` would need no room. Tries it."""
    with source.open("rb") as reader, tempfile.TemporaryFile(dir=folder) as writer:
        return _clone(reader, writer)


def _clone(reader: IO[bytes], writer: IO[bytes]) -> bool:
    try:
        fcntl.ioctl(writer.fileno(), _FICLONE, reader.fileno())
    except OSError:
        return False
    return True


def _copy_in_kernel(reader: IO[bytes], writer: IO[bytes]) -> bool:
    """Returns False if the file systems can't do it and nothing was copied."""
    copied = 0
    while True:
        try:
            count = os.copy_file_range(reader.fileno(), writer.fileno(), 1 << 30)
        except OSError as exc:
            if copied == 0 and exc.errno in _NOT_HERE:
                return False
            raise
        if count == 0:
            # Some file systems (procfs, FUSE) answer 0 where there is content.
            return copied > 0 or os.fstat(reader.fileno()).st_size == 0
        copied += count
