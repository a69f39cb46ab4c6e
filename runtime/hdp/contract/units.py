"""Sizes, rates and times as people write them: ``64MiB``, ``1gbit``, ``50us``; and how we write them."""

from __future__ import annotations

import math
import re

from hdp.contract.errors import SpecError

#: Bytes. ``KB`` is 1,000, ``KiB`` and the ``K`` that benchmarks write are 1,024.
SIZES = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40, "kib": 2**10, "mib": 2**20, "gib": 2**30}
SIZES |= {"tib": 2**40, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
#: Bits a second, in the words of `tc`.
RATES = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9, "tbit": 10**12}
RATES |= {f"{unit}/s": scale for unit, scale in tuple(RATES.items())}
#: Seconds.
TIMES = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}

_NUMBER = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?|\.[0-9]+)\s*([a-zµ/]*)\s*")


def parse_size(text: str) -> int:
    """Bytes of e.g. ``64MiB``, ``1.5 GB``, ``4096``. Raises SpecError."""
    return int(_parse(text, SIZES, "a size", "64KiB, 64MiB, 1.5GB or 4096"))


def parse_rate(text: str) -> float:
    """Bits a second of e.g. ``1gbit``, ``250mbit``, ``3.2Tbit/s``; above 0. Raises SpecError."""
    return _above_zero(_parse(text, RATES, "a rate", "250mbit, 1gbit or 3.2tbit"), text, "a rate")


def parse_time(text: str) -> float:
    """Seconds of e.g. ``50us``, ``1.5ms``, ``0s``. Raises SpecError."""
    return _parse(text, TIMES, "a time", "50us, 1.5ms or 2s")


def format_size(count: float) -> str:
    """Bytes in binary units, with three digits: ``64 MiB``, ``1.5 KiB``."""
    return _format(count, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))


def format_rate(bits: float) -> str:
    """Bits a second in decimal units: ``1 Gbit/s``."""
    return _format(bits, 1000, ("bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"))


def format_time(seconds: float) -> str:
    """A time with three digits, from nanoseconds to seconds: ``562 ms``."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= 0.9995 * scale:
            return f"{_digits(seconds / scale)} {unit}"
    return f"{_digits(seconds / 1e-9)} ns" if seconds > 0 else "0 s"


def _parse(text: str, units: dict[str, int] | dict[str, float], what: str, examples: str) -> float:
    match = _NUMBER.fullmatch(text.lower())
    if match is None or match[2] not in units:
        raise SpecError([f"{text!r} isn't {what}; expected e.g. {examples}"], what)
    value = float(match[1].replace("_", "")) * units[match[2]]
    if not math.isfinite(value):
        raise SpecError([f"{text!r} is too large for {what}"], what)
    return value


def _above_zero(value: float, text: str, what: str) -> float:
    if value <= 0:
        raise SpecError([f"{text!r} isn't {what}: it must be above 0"], what)
    return value


def _format(value: float, base: int, units: tuple[str, ...]) -> str:
    scale = 0
    while value >= base * 0.9995 and scale + 1 < len(units):
        value /= base
        scale += 1
    return f"{_digits(value)} {units[scale]}"


def _digits(value: float) -> str:
    """Three significant digits, or all before the point, without zeros at the end."""
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
