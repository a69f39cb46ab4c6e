"""The user's hyperparameters: checked, made plain, encoded. Types survive the way to the script.

``True``, ``None``, ``"1.10"``, numbers, texts, lists and dictionaries arrive as they were given; a tuple arrives as a
list, a NumPy scalar as the Python number it holds. `FLAG` gives a bare flag: ``{"verbose": FLAG}`` is ``--verbose``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hdp.contract.env import shell_safe
from hdp.contract.hyperparameters import FLAG, FLAG_TEXT, RESERVED_PREFIX, Flag, encode
from hdp.estimator.faults import is_utf8, seen, shown

__all__ = ["FLAG", "encode_all", "parse"]

MAX_COUNT = 100
MAX_KEY_CHARS = 256
MAX_VALUE_CHARS = 2500
#: A number of more bits has more than `MAX_VALUE_CHARS` digits (log2(10) is 3.3219); Python may refuse to print it.
_MAX_BITS = 8305

#: Deeper nests are slips, and would exhaust Python's stack.
MAX_DEPTH = 100

_ARGV_UNSAFE = re.compile(r"[\s=\x00-\x1f\x7f]|^-")


def parse(values: object, own_count: int = 0) -> tuple[dict[str, Any], list[str]]:
    """`values` as plain JSON values (and `FLAG`), and the faults found.

    own_count: how many hyperparameters the request adds to the user's; together they may be `MAX_COUNT`.
    Faulty values are left out, and all of them where there are too many.
    """
    if values is None:
        return {}, []
    if not isinstance(values, Mapping):
        return {}, [f"hyperparameters is {seen(values)}; expected a dictionary of names to values"]
    out: dict[str, Any] = {}
    faults: list[str] = []
    too_many = _count_faults(len(values), own_count)
    for key, value in values.items():
        plain, found = None, _key_faults(key)
        if not found:
            plain, found = _value(value, f"hyperparameters[{key!r}]")
        if not found:
            out[key] = plain
        faults += found
    return ({} if too_many else out), [*too_many, *faults]


def encode_all(values: Mapping[str, Any], script: bool) -> dict[str, str]:
    """Text of each value. script: whether our runtime, or SageMaker's toolkit, reads it in the container.

    A container without a script (a built-in algorithm) reads plain text, as v2 sends it: ``abc``, ``0.1``, ``True``.
    """
    return {k: encode(v) if script or isinstance(v, (Flag, list, dict)) else str(v) for k, v in values.items()}


def shadowed(values: Mapping[str, Any]) -> list[str]:
    """Groups of names that become the same ``SM_HP_*`` variable, a line each."""
    groups: dict[str, list[str]] = {}
    for key in values:
        groups.setdefault(shell_safe(key), []).append(key)
    return [
        f"hyperparameters {' and '.join(map(repr, keys))} share the variable SM_HP_{name}; as arguments they differ"
        for name, keys in groups.items()
        if len(keys) > 1
    ]


def _count_faults(count: int, own: int) -> list[str]:
    if count + own <= MAX_COUNT:
        return []
    return [
        f"hyperparameters has {count} entries, and the launcher adds {own}; together at most {MAX_COUNT}: "
        f"put some in one dictionary, or in a file of source_dir"
    ]


def _key_faults(key: object) -> list[str]:
    where = f"hyperparameters[{shown(key)}]"
    if not isinstance(key, str):
        return [f"{where}: the name is {seen(key)}; expected text"]
    if not key:
        return [f"{where}: the name is empty; give it one"]
    if len(key) > MAX_KEY_CHARS:
        return [f"{where}: the name has {len(key)} characters; at most {MAX_KEY_CHARS}"]
    if key.startswith(RESERVED_PREFIX):
        return [f"{where}: names that start with {RESERVED_PREFIX!r} are the launcher's own; choose another name"]
    if _ARGV_UNSAFE.search(key):
        return [f"{where}: the name can't be a command line option; no spaces, '=' or leading '-'"]
    return [] if is_utf8(key) else [f"{where}: the name isn't valid Unicode text"]


def _value(value: object, where: str) -> tuple[Any, list[str]]:
    """The plain form of one value, and its faults."""
    if isinstance(value, Flag):
        return value, []
    walk = _Walk()
    plain = walk.plain(value, where, ())
    faults = walk.faults
    if faults:
        return None, faults
    text = encode(plain)
    if text == FLAG_TEXT:
        return None, [f"{where} is {plain}, which stands for FLAG in the container; use FLAG, or another key"]
    if len(text) > MAX_VALUE_CHARS:
        faults.append(
            f"{where} has {len(text)} characters as JSON; at most {MAX_VALUE_CHARS} "
            f"(SageMaker's limit): put it in a file of source_dir, or in an input channel"
        )
    return plain, faults


@dataclass
class _Walk:
    """Makes one hyperparameter plain. What JSON can't say adds to `faults`."""

    faults: list[str] = field(default_factory=list)
    visited: int = 0

    def plain(self, value: object, where: str, above: tuple[object, ...]) -> Any:
        """`value` in JSON's types. above: the lists and dictionaries that it is in, outermost first."""
        value = _unwrapped(value)
        self.visited += 1
        fault = self._place_fault(value, above)
        if fault is None and isinstance(value, Mapping):
            items = _text_keys(value, where, self.faults)
            return {k: self.plain(item, f"{where}[{k!r}]", (*above, value)) for k, item in items if self._room()}
        if fault is None and isinstance(value, (list, tuple)):
            return [self.plain(v, f"{where}[{i}]", (*above, value)) for i, v in enumerate(value) if self._room()]
        fault = fault or _scalar_fault(value)
        if fault:
            self.faults.append(f"{where} {fault}")
        return value

    def _place_fault(self, value: object, above: tuple[object, ...]) -> str | None:
        """What is wrong with where `value` is; None for nothing."""
        if any(value is outer for outer in above):
            return f"is the very {type(value).__name__} that it is in, which JSON can't say; take it out"
        if len(above) > MAX_DEPTH:
            return f"is in more than {MAX_DEPTH} lists and dictionaries; make it flatter, or put it in a file"
        if self.visited > MAX_VALUE_CHARS:
            return (
                f"comes after {MAX_VALUE_CHARS} others; one hyperparameter has at most {MAX_VALUE_CHARS} characters "
                f"(SageMaker's limit): put it in a file of source_dir, or in an input channel"
            )
        return None

    def _room(self) -> bool:
        """Whether looking further can tell more: a list shared by many others would take for ever to spell out."""
        return self.visited <= MAX_VALUE_CHARS


def _unwrapped(value: object) -> object:
    """A NumPy scalar's Python value; anything else as it is."""
    item = getattr(value, "item", None)
    return item() if callable(item) and getattr(value, "shape", None) == () else value


def _text_keys(value: Mapping[Any, Any], where: str, faults: list[str]) -> list[tuple[str, Any]]:
    for key in value:
        if not isinstance(key, str):
            faults.append(f"{where} has the key {seen(key)}; JSON keeps only text keys: write {str(key)!r}")
    return [(k, v) for k, v in value.items() if isinstance(k, str)]


def _scalar_fault(value: object) -> str | None:
    """What is wrong with a value that is no list and no dictionary; None for nothing."""
    if isinstance(value, str):
        if "\x00" in value:
            return "holds a NUL character, which no command line can carry"
        return None if is_utf8(value) else "isn't valid Unicode text"
    if value is None or isinstance(value, (bool, int, float)):
        return _number_fault(value)
    if isinstance(value, Flag):
        return "holds FLAG inside a list or dictionary; FLAG is a whole value"
    advice = {"set": "use a sorted list", "bytes": "decode it to text", "ndarray": "use .tolist()"}
    hint = "use str(...)" if hasattr(value, "__fspath__") else advice.get(type(value).__name__, "")
    return f"is {seen(value)}, which JSON can't say" + (f"; {hint}" if hint else "; use text, numbers, lists, dicts")


def _number_fault(value: float | None) -> str | None:
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        return f"is a whole number of more than {MAX_VALUE_CHARS} digits; at most {MAX_VALUE_CHARS} (SageMaker's limit)"
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return f"is {value}, which JSON can't say; send it as text, e.g. {str(value)!r}"
    return None
