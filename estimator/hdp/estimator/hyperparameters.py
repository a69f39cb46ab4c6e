"""The user's hyperparameters: checked, made plain, encoded. Types survive the way to the script.

``True``, ``None``, ``"1.10"``, numbers, texts, lists and dictionaries arrive as they were given; a tuple arrives as a
list, a NumPy scalar as the Python number it holds. `FLAG` gives a bare flag: ``{"verbose": FLAG}`` is ``--verbose``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from hdp.contract.env import shell_safe
from hdp.contract.hyperparameters import FLAG, RESERVED_PREFIX, Flag, encode
from hdp.estimator.faults import seen, shown

__all__ = ["FLAG", "encode_all", "parse"]

MAX_COUNT = 100
MAX_KEY_CHARS = 256
MAX_VALUE_CHARS = 2500

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
    return [] if _is_utf8(key) else [f"{where}: the name isn't valid Unicode text"]


def _value(value: object, where: str) -> tuple[Any, list[str]]:
    """The plain form of one value, and its faults."""
    if isinstance(value, Flag):
        return value, []
    faults: list[str] = []
    plain = _plain(value, where, faults)
    if faults:
        return None, faults
    text = encode(plain)
    if len(text) > MAX_VALUE_CHARS:
        faults.append(
            f"{where} has {len(text)} characters as JSON; at most {MAX_VALUE_CHARS} "
            f"(SageMaker's limit): put it in a file of source_dir, or in an input channel"
        )
    return plain, faults


def _plain(value: object, where: str, faults: list[str]) -> Any:
    """`value` in JSON's types; what JSON can't say adds to `faults`."""
    value = _unwrapped(value)
    if isinstance(value, Mapping):
        return {key: _plain(item, f"{where}[{key!r}]", faults) for key, item in _text_keys(value, where, faults)}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{where}[{i}]", faults) for i, item in enumerate(value)]
    fault = _scalar_fault(value)
    if fault:
        faults.append(f"{where} {fault}")
    return value


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
        return None if _is_utf8(value) else "isn't valid Unicode text"
    if value is None or isinstance(value, (bool, int, float)):
        return _number_fault(value)
    if isinstance(value, Flag):
        return "holds FLAG inside a list or dictionary; FLAG is a whole value"
    advice = {"set": "use a sorted list", "bytes": "decode it to text", "ndarray": "use .tolist()"}
    hint = "use str(...)" if hasattr(value, "__fspath__") else advice.get(type(value).__name__, "")
    return f"is {seen(value)}, which JSON can't say" + (f"; {hint}" if hint else "; use text, numbers, lists, dicts")


def _number_fault(value: float | None) -> str | None:
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return f"is {value}, which JSON can't say; send it as text, e.g. {str(value)!r}"
    return None


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
