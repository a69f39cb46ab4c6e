"""Which files of a source folder stay at home: a small, documented part of .gitignore's language.

Supported: comments, ``!`` to take a file in again, ``name`` at any depth, ``a/b`` and ``/a`` from the root, ``name/``
for folders only, ``*``, ``?`` and ``[abc]`` inside one name, ``**`` for any number of folders. The last matching
pattern wins; nothing below an ignored folder comes back. Not supported: ``\\`` escapes, ignore files in subfolders.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

#: Files with patterns, in a source folder's root; later ones win.
IGNORE_FILES = (".gitignore", ".hdpignore")

#: Never travels, whatever a pattern says: history has what was removed, and settings have logins.
NEVER = ".git"
_ALWAYS = ("__pycache__", ".venv", "*.pyc", ".ipynb_checkpoints", ".DS_Store")
_SECRET_FILES = (
    ".env",
    ".env.*",
    ".netrc",
    ".pypirc",
    ".git-credentials",
    ".aws",
    ".ssh",
    "credentials",
    "credentials.json",
)
_SECRET_KEYS = ("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "*.pem", "*.key", "*.p12", "*.pfx")


@dataclass(frozen=True)
class Pattern:
    """One line of an ignore file."""

    segments: tuple[str, ...]
    negated: bool
    folders_only: bool
    secret: bool = False

    def matches(self, path: Sequence[str], is_folder: bool) -> bool:
        """Whether the pattern names this path (segments below the root)."""
        return (is_folder or not self.folders_only) and _match(self.segments, tuple(path))


def parse(lines: Iterable[str]) -> list[Pattern]:
    """The patterns in an ignore file's lines."""
    stripped = (line.strip() for line in lines)
    return [_pattern(line) for line in stripped if line and not line.startswith("#")]


def patterns_of(root: Path) -> list[Pattern]:
    """What applies to the source folder `root`: ours, then its `IGNORE_FILES`. Raises OSError, UnicodeDecodeError."""
    found = parse(_ALWAYS) + [
        Pattern(p.segments, False, False, secret=True) for p in parse(_SECRET_FILES + _SECRET_KEYS)
    ]
    for name in IGNORE_FILES:
        if (root / name).is_file():
            found += parse((root / name).read_text(encoding="utf-8").splitlines())
    return found


def deciding(patterns: Sequence[Pattern], path: Sequence[str], is_folder: bool) -> Pattern | None:
    """The pattern that keeps `path` at home; None where it travels."""
    if path[-1] == NEVER:
        return Pattern(("**", NEVER), False, False)
    last = next((p for p in reversed(patterns) if p.matches(path, is_folder)), None)
    return None if last is None or last.negated else last


def _pattern(line: str) -> Pattern:
    negated, line = line.startswith("!"), line.removeprefix("!")
    body = line.rstrip("/")
    anchored = "/" in body
    segments = tuple(s for s in body.split("/") if s)
    return Pattern(segments if anchored else ("**", *segments), negated, line.endswith("/"))


def _match(pattern: tuple[str, ...], path: tuple[str, ...]) -> bool:
    if not pattern:
        return not path
    if pattern[0] == "**":
        return any(_match(pattern[1:], path[i:]) for i in range(len(path) + 1))
    return bool(path) and fnmatchcase(path[0], pattern[0]) and _match(pattern[1:], path[1:])
