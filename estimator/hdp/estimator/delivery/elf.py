"""What a shared library needs of a system: its processor, and the newest version of glibc that it names.

Source: the ELF specification, and the Linux Standard Base for symbol versions (``.gnu.version_r``).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from hdp.contract.delivery import Platform

_MACHINES = {62: "x86_64", 183: "aarch64"}
_VERNEED = 0x6FFFFFFE
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_NEED = struct.Struct("<HHIII")
_AUX = struct.Struct("<IHHII")
_GLIBC = re.compile(rb"GLIBC_(\d+)\.(\d+)")


def platform_of(library: bytes) -> Platform:
    """What `library` needs. Raises ValueError for what isn't a library for 64-bit Linux on a processor that we know."""
    try:
        machine = _machine(library)
        return Platform(max(_glibcs(library), default=(2, 0)), machine)
    except struct.error as exc:
        raise ValueError(f"it is cut short: {exc}") from exc


def _machine(library: bytes) -> str:
    ident, _, machine, *_ = _HEADER.unpack_from(library)
    if ident[:6] != b"\x7fELF\x02\x01":
        raise ValueError("it isn't a 64-bit little-endian ELF file, as Linux has them")
    if machine not in _MACHINES:
        raise ValueError(f"it is for processor number {machine} of ELF; hdp knows {', '.join(_MACHINES.values())}")
    return _MACHINES[machine]


def _glibcs(library: bytes) -> Iterator[tuple[int, int]]:
    """The versions of glibc that it names."""
    sections = list(_sections(library))
    for kind, offset, link, count in sections:
        if kind == _VERNEED:
            names = sections[link][1]
            for name in _needed(library, offset, count):
                found = _GLIBC.match(library, names + name)
                if found:
                    yield int(found[1]), int(found[2])


def _sections(library: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Type, offset, link and info of each section."""
    *_, at, _, _, _, _, size, number, _ = _HEADER.unpack_from(library)
    for index in range(number):
        _, kind, _, _, offset, _, link, info, _, _ = _SECTION.unpack_from(library, at + index * size)
        yield kind, offset, link, info


def _needed(library: bytes, at: int, count: int) -> Iterator[int]:
    """Where in the string table the needed versions' names are. count: of libraries."""
    for _ in range(count):
        _, versions, _, first, following = _NEED.unpack_from(library, at)
        here = at + first
        for _ in range(versions):
            _, _, _, name, step = _AUX.unpack_from(library, here)
            yield name
            here += step
        at += following
