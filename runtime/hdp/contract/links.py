"""Links of emulated hosts: their rates as ``tc`` writes them, and how many there can be. Pure."""

from __future__ import annotations

import re

MAX_HOSTS = 128
"""Whoever makes the hosts holds three descriptors for each, in a process that may usually have 1,024."""

MAX_BYTES_PER_SECOND = 2**32 - 1
"""What tbf's plain rate holds; more than one machine can emulate anyway."""

MIN_BYTES_PER_SECOND = 1_000
_BITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9, "kibit": 2**10, "mibit": 2**20, "gibit": 2**30}
_BYTES = {"bps": 1, "kbps": 10**3, "mbps": 10**6, "gbps": 10**9, "kibps": 2**10, "mibps": 2**20, "gibps": 2**30}
UNITS = {"": 1, **_BITS, **{unit: 8 * factor for unit, factor in _BYTES.items()}}
"""Unit -> bits per second, as in tc(8): ``mbit`` is a million bits, ``mbps`` a million bytes a second."""

_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.ASCII)


def parse_rate(rate: str) -> int:
    """`rate`, such as ``250mbit``, in bits per second. Raises ValueError, which says what is allowed."""
    match = _match(rate)
    if match is None or match[2] not in UNITS:
        raise ValueError(f"rate {rate!r} is not a rate as tc writes it; give a number and one of {_units()}")
    bits = round(float(match[1]) * UNITS[match[2]])
    if not MIN_BYTES_PER_SECOND <= bits // 8 <= MAX_BYTES_PER_SECOND:
        raise ValueError(
            f"rate {rate!r} is out of range; a link has {MIN_BYTES_PER_SECOND * 8 // 1000}kbit to "
            f"{MAX_BYTES_PER_SECOND * 8 // 10**9}gbit"
        )
    return bits


def counts_bytes(rate: str) -> bool:
    """Whether `rate` is in bytes a second, such as ``1gbps``: most who write that mean bits."""
    match = _match(rate)
    return match is not None and match[2] in _BYTES


def _match(rate: str) -> re.Match[str] | None:
    return _RATE.fullmatch(rate.strip().lower()) if isinstance(rate, str) else None


def _units() -> str:
    return ", ".join(_BITS)
