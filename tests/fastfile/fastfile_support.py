"""What FastFile's tests share: contents that tell where each byte belongs, file systems without FUSE, real mounts."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from hdp.runtime.channels import local
from hdp.runtime.channels.fastfile import mounting
from hdp.runtime.channels.fastfile.fs import FileSystem
from hdp.runtime.channels.fastfile.mode import Mount
from hdp.runtime.channels.fastfile.retry import RetryingStore
from hdp.runtime.channels.fastfile.stats import Stats
from hdp.runtime.channels.fastfile.store import MemoryStore, Store, StoreError
from hdp.runtime.channels.fastfile.tree import Tree
from hdp.runtime.channels.fastfile.wire import Task
from hdp.runtime.channels.keys import Entry
from hdp.runtime.launch.linux import Children

MIB = 1 << 20

needs_fuse = pytest.mark.skipif(
    os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK),
    reason="needs root and /dev/fuse, to mount FastFile channels",
)


def content(size: int, seed: int) -> bytes:
    """Bytes of which no two blocks are the same, nor the same in two files."""
    block = bytes((i * 31 + seed) % 251 for i in range(4096))
    blocks = (
        index.to_bytes(8, "little") + seed.to_bytes(8, "little") + block[16:] for index in range(size // 4096 + 1)
    )
    return b"".join(blocks)[:size]


def entries(objects: Mapping[str, bytes]) -> list[Entry]:
    """A listing of objects in memory."""
    return [Entry(key, key, len(data), f'"{key}"') for key, data in sorted(objects.items())]


class Rig:
    """A file system without FUSE."""

    def __init__(
        self, objects: Mapping[str, bytes], store: Store | None = None, budget_mib: int = 64, threads: int = 8
    ) -> None:
        self.objects = objects
        self.memory = MemoryStore(objects)
        self.stats = Stats()
        self.entries = entries(objects)
        self.errors: list[tuple[str, StoreError]] = []
        self.fs = FileSystem(
            Tree(self.entries),
            RetryingStore(store or self.memory, self.stats, tries=1),
            budget_bytes=budget_mib * MIB,
            stats=self.stats,
            on_error=lambda entry, error: self.errors.append((entry.key, error)),
            threads=threads,
        )
        self.index = {e.path: i for i, e in enumerate(self.entries)}

    def read(self, handle: int, offset: int, size: int) -> bytes:
        """A read that waits. Raises OSError."""
        done = threading.Event()
        got: list[tuple[Sequence[memoryview], int]] = []

        def reply(pieces: Sequence[memoryview], error: int) -> None:
            got.append((pieces, error))
            done.set()

        self.fs.read(handle, offset, size, reply)
        assert done.wait(30), f"no answer to a read of {size} bytes at {offset}"
        pieces, error = got[0]
        if error:
            raise OSError(error, os.strerror(error))
        return b"".join(pieces)

    def whole(self, path: str, block: int = 128 << 10) -> bytes:
        """Open, read front to back, close."""
        handle = self.fs.open(self.index[path])
        found = []
        while data := self.read(handle, sum(map(len, found)), block):
            found.append(data)
        self.fs.close(handle)
        return b"".join(found)

    def gets(self, key: str) -> list[tuple[int, int]]:
        """The ranges that were asked of an object."""
        return [(start, end) for k, start, end in self.memory.gets if k == key]


@contextlib.contextmanager
def mounted(
    source: Path, target: Path, *, budget_mib: int = 128, report: Path | None = None, order: Path | None = None
) -> Iterator[Mount]:
    """A folder through a real mount; afterwards nothing is mounted there."""
    base, items = local.list_local(source.as_uri())
    with mounted_entries(str(base), items, target, budget_mib=budget_mib, report=report, order=order) as mount:
        yield mount


@contextlib.contextmanager
def mounted_entries(
    base: str, items: Sequence[Entry], target: Path, *, budget_mib: int = 128, report: Path | None = None,
    order: Path | None = None,
) -> Iterator[Mount]:  # fmt: skip
    """Entries of a store through a real mount."""
    target.mkdir(exist_ok=True)
    task = Task("train", base, tuple(items), str(target), budget_mib * MIB, str(order) if order else None)
    mount = Mount(task, Children(), lambda: False, report)
    try:
        yield mount
    finally:
        mount.stop()
    assert not mounting.is_mounted(target)
