"""Channels whose source is ``file://``: a folder with all that is below it, or one file."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from hdp.contract.errors import ChannelError
from hdp.contract.uris import local_path
from hdp.runtime.channels.copying import copy_file
from hdp.runtime.channels.keys import Item

log = logging.getLogger(__name__)


def list_local(uri: str) -> tuple[Path, list[Item]]:
    """The folder that `uri` names, or the folder of the file that it names, and what is to be copied from there."""
    path = local_path(uri)
    try:
        if path.is_dir():
            return path, _walk(path)
        size = path.stat().st_size
    except OSError as exc:
        raise ChannelError(f"{uri} can't be read: {exc.strerror}; expected a folder or a file on this host") from exc
    return path.parent, [Item(path.name, path.name, size)]


def fetch_local(base: Path, items: Sequence[Item], target: Path, stopped: Callable[[], bool]) -> int:
    """Copy `items` from below `base` to below `target`. Returns the bytes copied."""
    total = 0
    for item in items:
        if stopped():
            break
        total += copy_file(base / item.key, target / item.path)
    return total


def _walk(base: Path) -> list[Item]:
    items: list[Item] = []
    seen = {base.resolve()}
    for folder, names, files in os.walk(base, followlinks=True, onerror=_raise):
        # A link that leads to a folder already visited would go round for ever.
        names[:] = sorted(n for n in names if _first_visit(Path(folder) / n, seen))
        for name in sorted(files):
            path = Path(folder) / name
            if not path.is_file():
                log.warning("%s isn't a regular file and is left out", path)
                continue
            relative = path.relative_to(base).as_posix()
            items.append(Item(relative, relative, path.stat().st_size))
    return items


def _first_visit(folder: Path, seen: set[Path]) -> bool:
    if not folder.is_symlink():
        return True
    real = folder.resolve()
    new = real not in seen and not any(real in s.parents for s in seen)
    seen.add(real)
    return new


def _raise(error: OSError) -> None:
    raise error
