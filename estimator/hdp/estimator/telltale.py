"""Secrets that a small text file gives away by their own shape, so that nobody uploads them unawares.

Only what can hardly be anything else counts. Documentation's own examples, which end in EXAMPLE, don't.
"""

from __future__ import annotations

import re

#: Larger files are data, not settings or keys.
MOST_BYTES = 256 * 1024

_SHAPES = (
    ("a private key", re.compile(rb"^[ \t\"']*-----BEGIN (?:[A-Z]+ )*PRIVATE KEY(?: BLOCK)?-----", re.MULTILINE)),
    ("an AWS access key", re.compile(rb"\b(?:AKIA|ASIA)[A-Z2-7]{16}\b(?<!EXAMPLE)")),
    (
        "an AWS secret access key",
        re.compile(
            rb"(?i:aws_secret_access_key|SecretAccessKey)[\"']?\s*[=:]\s*[\"']?[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+])(?<!EXAMPLEKEY)"
        ),
    ),
    (
        "an access token",
        re.compile(rb"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_\w{60,}|glpat-[\w-]{20}|hf_[A-Za-z]{34})\b"),
    ),
)


def find(content: bytes) -> list[tuple[str, int]]:
    """What is in a file's `content`, and in which line first (from 1); nothing of binary and of large files."""
    if len(content) > MOST_BYTES or b"\0" in content:
        return []
    found = ((what, shape.search(content)) for what, shape in _SHAPES)
    return [(what, content.count(b"\n", 0, match.start()) + 1) for what, match in found if match]
