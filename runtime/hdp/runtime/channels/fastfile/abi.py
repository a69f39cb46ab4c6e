"""FUSE's messages, as the kernel lays them out (include/uapi/linux/fuse.h, protocol 7.31). Pure."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum, IntFlag

MAJOR = 7
#: What we speak: 7.28 brought requests of more than 128 KiB. A newer kernel speaks this to us.
MINOR = 31


class Op(IntEnum):
    """What the kernel asks for; the ones that we answer with more than an errno, and those that get no answer."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    OPEN = 14
    READ = 15
    STATFS = 17
    RELEASE = 18
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    INTERRUPT = 36
    DESTROY = 38
    BATCH_FORGET = 42
    READDIRPLUS = 44


#: What would change something: answered with EROFS. The kernel itself refuses most of it, as the mount is read only.
WRITING = frozenset({4, 6, 8, 9, 10, 11, 12, 13, 16, 21, 24, 35, 43, 45, 47, 51})


class Init(IntFlag):
    """Abilities of INIT."""

    ASYNC_READ = 1 << 0
    DO_READDIRPLUS = 1 << 13
    PARALLEL_DIROPS = 1 << 18
    MAX_PAGES = 1 << 22
    NO_OPENDIR_SUPPORT = 1 << 24


#: open's reply: the page cache keeps what an earlier open has read; objects don't change, they are pinned by ETag.
KEEP_CACHE = 1 << 1
#: And close needs no FLUSH.
NO_FLUSH = 1 << 5

IN_HEADER = struct.Struct("<IIQQIIIHH")
OUT_HEADER = struct.Struct("<IiQ")
INIT_IN = struct.Struct("<IIII")
_INIT_OUT = struct.Struct("<IIIIHHIIHHI28x")
READ_IN = struct.Struct("<QQIIQII")
HANDLE_IN = struct.Struct("<Q")
"""Of RELEASE: all that we need of it."""
INTERRUPT_IN = struct.Struct("<Q")
_OPEN_OUT = struct.Struct("<QII")
_ATTR = struct.Struct("<QQQQQQIIIIIIIIII")
_ATTR_OUT = struct.Struct("<QII")
_ENTRY_OUT = struct.Struct("<QQQQII")
_DIRENT = struct.Struct("<QQII")
_STATFS_OUT = struct.Struct("<QQQQQIIII24x")

#: A year: names and sizes are fixed, the kernel need not ask again.
_VALID_SECONDS = 365 * 24 * 3600
_BLOCK = 512
#: Bytes of one request: 256 pages, the most that the kernel sends.
LARGEST_READ = 1 << 20
#: Readers' requests under way before the kernel makes others wait.
_BACKGROUND = 64


def init_reply(max_readahead: int) -> bytes:
    """The answer to INIT."""
    flags = Init.ASYNC_READ | Init.DO_READDIRPLUS | Init.PARALLEL_DIROPS | Init.MAX_PAGES | Init.NO_OPENDIR_SUPPORT
    pages = LARGEST_READ // 4096
    return _INIT_OUT.pack(MAJOR, MINOR, max_readahead, flags, _BACKGROUND, _BACKGROUND * 3 // 4, 4096, 1, pages, 0, 0)


def attributes(inode: int, mode: int, size: int, mtime: float, owner: tuple[int, int]) -> bytes:
    """struct fuse_attr."""
    seconds, nanoseconds = divmod(int(mtime * 1e9), 1_000_000_000)
    seconds &= (1 << 64) - 1  # before 1970 it is negative
    blocks = -(-size // _BLOCK)
    # blksize is what buffered readers, such as Python's open(), take at a time.
    return _ATTR.pack(
        inode, size, blocks, seconds, seconds, seconds, nanoseconds, nanoseconds, nanoseconds,
        mode, 1, *owner, 0, 1 << 17, 0,
    )  # fmt: skip


def attr_reply(attr: bytes) -> bytes:
    """The answer to GETATTR."""
    return _ATTR_OUT.pack(_VALID_SECONDS, 0, 0) + attr


def entry_reply(inode: int, attr: bytes) -> bytes:
    """The answer to LOOKUP. Inode 0: there is no such name, and the kernel need not ask again."""
    return _ENTRY_OUT.pack(inode, 0, _VALID_SECONDS, _VALID_SECONDS, 0, 0) + attr


def open_reply(handle: int) -> bytes:
    """The answer to OPEN."""
    return _OPEN_OUT.pack(handle, KEEP_CACHE | NO_FLUSH, 0)


def statfs_reply(size: int, files: int) -> bytes:
    """The answer to STATFS."""
    return _STATFS_OUT.pack(-(-size // 4096), 0, 0, files, 0, 4096, 1024, 4096, 0)


def dirent(inode: int, offset: int, kind: int, name: bytes) -> bytes:
    """One name of a folder. offset: where the next READDIR goes on. kind: of stat's mode, the upper 4 bits."""
    return _DIRENT.pack(inode, offset, len(name), kind) + name + bytes(-len(name) % 8)


def message(unique: int, error: int, pieces: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """An answer with its header. error: an errno, 0 for none."""
    length = OUT_HEADER.size + sum(map(len, pieces))
    return [OUT_HEADER.pack(length, -error, unique), *pieces]
