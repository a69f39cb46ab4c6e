"""Channels whose source is ``file://``: a folder with all that is below it, or one file."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from hdp.contract.errors import ChannelError
from hdp.contract.uris import local_path
from hdp.runtime.channels.keys import Entry

log = logging.getLogger(__name__)


def list_local(uri: str) -> tuple[Path, list[Entry]]:
    """The folder that `uri` names, or the folder of the file that it names, and what is to be copied from there."""
    path = local_path(uri)
    try:
        if path.is_dir():
            return path, _walk(path)
        found = entry(path.parent, path.name)
    except OSError as exc:
        raise ChannelError(f"{uri} can't be read: {exc.strerror}; expected a folder or a file on this host") from exc
    return path.parent, [found]


def entry(base: Path, relative: str) -> Entry:
    """The file `relative` below `base`. Raises OSError if it isn't there."""
    status = (base / relative).stat()
    return Entry(relative, relative, status.st_size, etag_of(status), status.st_mtime)


def etag_of(status: os.stat_result) -> str:
    """What stands in for an ETag: the time of the last change, and the size."""
    return f"{status.st_mtime_ns:x}-{status.st_size:x}"


def _walk(base: Path) -> list[Entry]:
    items: list[Entry] = []
    seen = {base.resolve()}
    for folder, names, files in os.walk(base, followlinks=True, onerror=_raise):
        # A link that leads to a folder already visited would go round for ever.
        names[:] = sorted(n for n in names if _first_visit(Path(folder) / n, seen))
        for name in sorted(files):
            path = Path(folder) / name
            if not path.is_file():
                log.warning("%s isn't a regular file and is left out", path)
                continue
            items.append(entry(base, path.relative_to(base).as_posix()))
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
