"""Logs' filter patterns, as far as they are terms: ``ERROR "out of memory"``, ``?a ?b``, ``-debug``."""

from __future__ import annotations

import re
from collections.abc import Callable

from hdp.estimator.serve.errors import invalid_parameter

_TERM = re.compile(r'\s*([-?]?)(?:"((?:[^"\\]|\\.)*)"|([^\s"]+))')


def matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a message has every plain term, one of those with ``?``, and none with ``-``; case counts.

    Raises ServiceError for the other kinds of patterns, which aren't served.
    """
    if pattern.strip()[:1] in ("{", "[", "%"):
        raise invalid_parameter(
            f"filterPattern={pattern!r}: here only terms are matched, not JSON, columns or regular expressions"
        )
    terms: dict[str, list[str]] = {"": [], "?": [], "-": []}
    for sign, term in _terms(pattern):
        terms[sign].append(term)

    def matches(message: str) -> bool:
        return (
            all(term in message for term in terms[""])
            and not any(term in message for term in terms["-"])
            and (not terms["?"] or any(term in message for term in terms["?"]))
        )

    return matches


def _terms(pattern: str) -> list[tuple[str, str]]:
    found, end = [], 0
    while pattern[end:].strip():
        match = _TERM.match(pattern, end)
        if match is None:
            raise invalid_parameter(f"filterPattern={pattern!r} can't be read from {pattern[end:]!r} on")
        found.append((match[1], match[3] or re.sub(r"\\(.)", r"\1", match[2] or "")))
        end = match.end()
    return found
