"""From object keys to paths in a channel's folder, and each host's share of them. Pure.

A key is chosen by whoever writes to the bucket, so it is hostile until proven otherwise: it must not leave the folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hdp.contract.errors import ChannelError

#: Keys that tools write only so that a prefix shows up as a folder.
_MARKER = re.compile(r"(/|_\$folder\$)$")


class Entry(NamedTuple):
    """One object or file of a channel."""

    key: str
    """What is sorted and sharded: the object's key, or the path below the source folder."""
    path: str
    """Where it goes: relative, ``/`` between parts, safe."""
    size_bytes: int
    etag: str | None = None
    """As S3 gives it, with its quotes; of a local file its time and size. Another one means another content."""
    mtime: float = 0.0
    """Seconds since 1970; 0 where the server doesn't say."""


@dataclass(frozen=True)
class Listing:
    """What a channel holds."""

    base: str
    """What the keys are relative to: ``s3://bucket``, or an absolute folder."""
    items: tuple[Entry, ...]
    warnings: tuple[str, ...] = ()
    """What the user should hear, without the channel's name."""
    whole: tuple[Entry, ...] = ()
    """What all hosts have together, where each has a share."""
    share: tuple[int, int] = (0, 1)
    """This host's index among those that share, and their number."""

    @property
    def size_bytes(self) -> int:
        """Of all items together."""
        return sum(e.size_bytes for e in self.items)


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


def check_clashes(items: Sequence[Entry]) -> tuple[list[Entry], list[str]]:
    """The items that can be side by side in one file system, and warnings about what was left out.

    An empty object where others need a folder is how some tools mark a folder; it is left out.
    Raises ChannelError if an object with content is in the way of others, or two would be the same file.
    """
    folders = _folders(items)
    kept: dict[str, Entry] = {}
    warnings: list[str] = []
    for item in items:
        if item.path in folders and item.size_bytes > 0:
            raise ChannelError(
                f"the key {item.key!r} would be a file where {folders[item.path]!r} needs a folder; rename one of them"
            )
        if item.path in folders:
            warnings.append(f"the empty object {item.key!r} is left out: others need a folder of that name")
        elif item.path in kept:
            other = kept[item.path].key
            raise ChannelError(f"the keys {other!r} and {item.key!r} would both be the file {item.path!r}")
        else:
            kept[item.path] = item
    return list(kept.values()), warnings


def _folders(items: Sequence[Entry]) -> dict[str, str]:
    """Every folder that the paths need, and a key that needs it."""
    found: dict[str, str] = {}
    for item in items:
        parent = item.path.rpartition("/")[0]
        while parent and parent not in found:
            found[parent] = item.key
            parent = parent.rpartition("/")[0]
    return found


def shard(items: Sequence[Entry], index: int, count: int) -> list[Entry]:
    """Share `index` of `count` of the items, in their own order; dealt round robin by sorted key, whatever that is."""
    mine = set(sorted(i.key for i in items)[index::count])
    return [i for i in items if i.key in mine]
