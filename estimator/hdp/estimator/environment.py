"""The user's environment variables, checked before they reach a request."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hdp.estimator.faults import is_utf8, seen, shown

#: CreateTrainingJob's limits.
MAX_COUNT = 100
MAX_CHARS = 512

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parse(values: object) -> tuple[dict[str, str], list[str]]:
    """The variables that are fine, and a line for each fault."""
    if not isinstance(values, Mapping):
        return {}, [f"environment is {seen(values)}; expected a dictionary of names to texts"]
    found = {name: _fault(name, value) for name, value in values.items()}
    faults = [f"environment[{shown(name)}]{fault}" for name, fault in found.items() if fault]
    if len(values) > MAX_COUNT:
        return {}, [f"environment has {len(values)} variables; at most {MAX_COUNT}", *faults]
    return {name: value for name, value in values.items() if not found[name]}, faults


def _fault(name: object, value: object) -> str | None:
    """What is wrong with one variable; None for nothing."""
    if not isinstance(name, str):
        return f": the name is {seen(name)}; expected text"
    if not _NAME.fullmatch(name):
        return ": a variable's name has letters, digits and '_' only, and begins with no digit"
    if len(name) > MAX_CHARS:
        return f": the name has {len(name)} characters; at most {MAX_CHARS}"
    return _value_fault(value)


def _value_fault(value: object) -> str | None:
    if not isinstance(value, str):
        return f" is {seen(value)}; expected text"
    if len(value) > MAX_CHARS:
        return f" has {len(value)} characters; at most {MAX_CHARS}"
    if "\x00" in value:
        return " holds a NUL character, which no variable can carry"
    return None if is_utf8(value) else " isn't valid Unicode text"
