"""From object keys to paths in a channel's folder, and each host's share of them. Pure.

A key is chosen by whoever writes to the bucket, so it is hostile until proven otherwise: it must not leave the folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hdp.contract.errors import ChannelError

#: Keys that tools write only so that a prefix shows up as a folder.
_MARKER = re.compile(r"(/|_\$folder\$)$")


@dataclass(frozen=True)
class Item:
    """One object or file of a channel."""

    key: str
    """What is sorted and sharded: the object's key, or the path below the source folder."""
    path: str
    """Where it goes: relative, ``/`` between parts, safe."""
    size_bytes: int | None = None


def is_marker(key: str) -> bool:
    """Whether `key` is only the marker of a folder."""
    return bool(_MARKER.search(key))


def safe_path(relative: str, key: str) -> str:
    """`relative` as a path that stays below a folder. Raises ChannelError that names `key`.

    Backslashes count as separators when looking for ``..``, since a later reader may take them so.
    """
    parts = [p for p in relative.split("/") if p not in ("", ".")]
    escapes = (
        relative.startswith(("/", "\\"))
        or "\0" in relative
        or ".." in re.split(r"[/\\]", relative)
        or re.match(r"[A-Za-z]:[/\\]", relative) is not None
    )
    if escapes or not parts:
        raise ChannelError(
            f"the key {key!r} would lead outside the channel's folder (as {relative!r}); rename the object or narrow "
            "the channel's prefix so that it doesn't match"
        )
    return "/".join(parts)


def relative_to_prefix(key: str, prefix: str) -> str:
    """Where the object `key` goes below the channel's folder, for a channel with `prefix`.

    ``data/train`` and ``data/train/`` both put ``data/train/a`` at ``a``, as scripts that read
    ``$SM_CHANNEL_TRAIN/a`` expect. What else starts with ``data/train`` is taken from the prefix's last slash on:
    ``data/train2/b`` is at ``train2/b``, and the object ``data/train`` itself at ``train``.
    """
    if prefix == "" or prefix.endswith("/"):
        return key[len(prefix) :]
    if key.startswith(prefix + "/"):
        return key[len(prefix) + 1 :]
    return key[prefix.rfind("/") + 1 :]


def siblings(keys: Iterable[str], prefix: str) -> list[str]:
    """Keys that a prefix without its trailing slash matches by accident: ``train2/b`` beside ``train/a``."""
    if prefix == "" or prefix.endswith("/"):
        return []
    listed = list(keys)
    below = [k for k in listed if k.startswith(prefix + "/")]
    return [k for k in listed if k != prefix and not k.startswith(prefix + "/")] if below else []


def check_clashes(items: Sequence[Item]) -> None:
    """Raise ChannelError if two items can't be side by side in one file system: same path, or file and folder."""
    seen: dict[str, str] = {}
    for item in items:
        if item.path in seen:
            raise ChannelError(f"the keys {seen[item.path]!r} and {item.key!r} would both be the file {item.path!r}")
        seen[item.path] = item.key
    for item in items:
        parent = item.path.rpartition("/")[0]
        while parent:
            if parent in seen:
                raise ChannelError(
                    f"the key {seen[parent]!r} would be a file where {item.key!r} needs a folder; rename one of them"
                )
            parent = parent.rpartition("/")[0]


def shard(items: Iterable[Item], index: int, count: int) -> list[Item]:
    """Share `index` of `count` of the items: sorted by key, dealt round robin."""
    return sorted(items, key=lambda i: i.key)[index::count]
