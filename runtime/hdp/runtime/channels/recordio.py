"""MXNet's RecordIO framing, as Pipe mode writes it with RecordWrapperType RecordIO: each object is one record.

A record is the magic number, a number whose upper 3 bits are a flag and whose lower 29 the length, the bytes, and zeros
up to a multiple of 4. Content that holds the magic number at a multiple of 4 is cut there into parts (flags 1 first, 2
middle, 3 last), without it, so that a reader who starts anywhere can find the next record; who joins the parts puts it
back. Flag 0 is a record in one part.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Union

from hdp.contract.errors import ChannelError

MAGIC = struct.pack("<I", 0xCED7230A)
#: A length has 29 bits.
MOST_BYTES = (1 << 29) - 1
_WHOLE, _FIRST, _MIDDLE, _LAST = 0, 1, 2, 3


def framed(content: bytes, name: str) -> list[bytes | memoryview]:
    """`content` as one record, in pieces to be written one after the other. Raises ChannelError naming `name`."""
    if len(content) > MOST_BYTES:
        raise ChannelError(
            f"{name} has {len(content)} bytes; a RecordIO record has at most {MOST_BYTES}. Split the object, or leave "
            "record_wrapping out"
        )
    view, out, start = memoryview(content), list[Union[bytes, memoryview]](), 0
    for cut in _magics(content):
        out += [_head(_FIRST if start == 0 else _MIDDLE, cut - start), view[start:cut]]
        start = cut + 4
    rest = len(content) - start
    return [*out, _head(_LAST if out else _WHOLE, rest), view[start:], bytes(-rest % 4)]


def _head(flag: int, length: int) -> bytes:
    return MAGIC + struct.pack("<I", flag << 29 | length)


def _magics(content: bytes) -> Iterator[int]:
    """Where the magic number is, at multiples of 4."""
    at = content.find(MAGIC)
    while at >= 0:
        if at % 4 == 0:
            yield at
        # An overlap can't be: no proper end of the number is a beginning of it.
        at = content.find(MAGIC, at + (4 if at % 4 == 0 else 1))
