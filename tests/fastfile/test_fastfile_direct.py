"""Reads past the page cache."""

from __future__ import annotations

import mmap
import os

from fastfile_support import MIB, content, mounted, needs_fuse


@needs_fuse
def test_o_direct_gives_the_same_bytes(tmp_path):
    """5 MiB and 1,234 bytes, front to back in 1 MiB, then from the middle. Expected: the file's bytes, and its end."""
    (tmp_path / "source").mkdir()
    data = content(5 * MIB + 1234, 3)
    (tmp_path / "source" / "f").write_bytes(data)
    with mounted(tmp_path / "source", tmp_path / "target"), mmap.mmap(-1, MIB) as buffer:
        fd = os.open(tmp_path / "target" / "f", os.O_RDONLY | os.O_DIRECT)
        found = b"".join(bytes(buffer[:count]) for count in iter(lambda: os.readv(fd, [buffer]), 0))
        assert found == data
        assert os.preadv(fd, [buffer], 3 * MIB) == MIB and bytes(buffer) == data[3 * MIB : 4 * MIB]
        os.close(fd)
