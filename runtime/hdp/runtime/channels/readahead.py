"""Reads objects from first to last, with the next parts fetched meanwhile; and what Pipe mode makes of their bytes.

Each stage is a generator over `Chunk`; closing the last one closes them all, and what is being fetched is forgotten.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from typing import Union

from hdp.contract.errors import ChannelError
from hdp.runtime.channels.augmented import Value
from hdp.runtime.channels.fastfile.store import Store, StoreError
from hdp.runtime.channels.recordio import framed

#: The first part of an object is small, so that a reader has something soon.
_FIRST_BYTES, _PART_BYTES = 1 << 20, 8 << 20
#: Fetched but not yet read: 8 connections at 8 MiB, or as many small objects as there are threads and some.
_AHEAD_BYTES, _AHEAD_PARTS = 64 << 20, 64
_GZIP = 16 + zlib.MAX_WBITS
#: Unpacked at a time: a small object may unpack to anything.
_UNPACKED_BYTES = 1 << 20

Buffer = Union[bytes, memoryview]


@dataclass(frozen=True)
class Chunk:
    """A piece of one value's bytes."""

    data: Buffer
    last: bool
    """The value ends with it."""
    name: str
    """Of the object; empty for a value that isn't one."""


def read_ahead(values: Iterable[Value], store: Callable[[str], Store], pool: Executor) -> Iterator[Chunk]:
    """The bytes of `values`, in order. store: opens the store of a base. Raises ChannelError naming the object."""
    ahead: deque[tuple[Future[Buffer] | bytes, int, bool, str]] = deque()
    held = 0
    try:
        for fetch, size, last, name in _parts(values, store, pool):
            ahead.append((fetch, size, last, name))
            held += size
            while held > _AHEAD_BYTES or len(ahead) > _AHEAD_PARTS:
                held -= ahead[0][1]
                yield _chunk(*ahead.popleft())
        while ahead:
            yield _chunk(*ahead.popleft())
    finally:
        for fetch, *_ in ahead:
            if isinstance(fetch, Future):
                fetch.cancel()


def _parts(
    values: Iterable[Value], store: Callable[[str], Store], pool: Executor
) -> Iterator[tuple[Future[Buffer] | bytes, int, bool, str]]:
    for value in values:
        if isinstance(value, bytes):
            yield value, len(value), True, ""
            continue
        source, size, start = store(value.base), value.entry.size_bytes, 0
        name = source.uri(value.entry)
        if size == 0:
            yield b"", 0, True, name
        while start < size:
            end = min(size, start + (_PART_BYTES if start else _FIRST_BYTES))
            yield pool.submit(source.get, value.entry, start, end), end - start, end == size, name
            start = end


def _chunk(fetch: Future[Buffer] | bytes, _size: int, last: bool, name: str) -> Chunk:
    if isinstance(fetch, bytes):
        return Chunk(fetch, last, name)
    try:
        return Chunk(fetch.result(), last, name)
    except StoreError as exc:
        raise ChannelError(f"{name} can't be read: {exc}") from exc


def unzipped(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """Each object's content out of gzip, also of several archives one after the other. Other values as they are."""
    archive = zlib.decompressobj(_GZIP)
    inside = False
    for chunk in chunks:
        if not chunk.name:
            yield chunk
            continue
        # Zeros may fill up what is behind an archive, into the next chunk.
        rest: Buffer = bytes(chunk.data).lstrip(b"\0") if archive.eof else chunk.data
        while rest or inside:
            if archive.eof:
                archive = zlib.decompressobj(_GZIP)
            data = _unzip(archive, rest, chunk.name)
            yield replace(chunk, data=data, last=False)
            # Zeros may fill up what is behind an archive.
            rest = archive.unused_data.lstrip(b"\0") if archive.eof else archive.unconsumed_tail
            inside = not archive.eof
            if not rest and len(data) < _UNPACKED_BYTES:
                break
        if chunk.last:
            if inside:
                raise ChannelError(f"{chunk.name} is cut short: its gzip archive has no end")
            yield replace(chunk, data=b"")


def _unzip(archive: zlib._Decompress, data: Buffer, name: str) -> bytes:
    try:
        return archive.decompress(data, _UNPACKED_BYTES)
    except zlib.error as exc:
        raise ChannelError(f"{name} isn't gzip: {exc}; leave compression='Gzip' out") from exc


def as_records(chunks: Iterable[Chunk]) -> Iterator[Buffer]:
    """Each value as one RecordIO record."""
    content: list[Buffer] = []
    for chunk in chunks:
        content.append(chunk.data)
        if chunk.last:
            yield from framed(b"".join(content), chunk.name or "an attribute")
            content.clear()


def as_stream(chunks: Iterable[Chunk]) -> Iterator[Buffer]:
    """The values one after the other, with nothing between them."""
    return (chunk.data for chunk in chunks)
