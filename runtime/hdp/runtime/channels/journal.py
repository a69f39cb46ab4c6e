"""What a download has on the disk already, so that one that was killed goes on where it stopped.

A line for each part, written after the part's bytes. It counts only for the same version of the object, by its ETag and
its time, and only until the machine is started anew: then the kernel may have lost bytes that were never written to the
disk, and the line have stayed.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hdp.runtime.channels.keys import Entry

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

#: Which version of which file: path, ETag, time of the last change, size.
Version = tuple[str, str, float, int]
#: Of a part: the version, where it starts and ends.
Line = tuple[str, str, float, int, int, int]
_COLUMNS = 6


class Journal:
    """The file of one download from `base` to `folder`, beside the folder. For several threads."""

    def __init__(self, folder: Path, base: str) -> None:
        """Opens it; what it has of another download, or of another run of the machine, is gone with its folder."""
        self._path = folder.with_name(f"{folder.name}.parts")
        self._lock = threading.Lock()
        head = [base, _BOOT_ID.read_text(encoding="ascii").strip() if _BOOT_ID.exists() else ""]
        lines = list(_lines(self._path))
        self._done: set[Line] = set()
        if lines[:1] == [head]:
            self._done = {tuple(line) for line in lines[1:] if len(line) == _COLUMNS}
        self._file = self._path.open("ab", buffering=0)
        if not self._done:
            self._file.truncate(0)
            self._write(head)

    def has(self, entry: Entry, start: int, end: int) -> bool:
        """Whether the bytes from `start` to before `end` are there, as one part."""
        return (*version(entry), start, end) in self._done

    def known(self) -> set[Version]:
        """The files of which there is something."""
        return {line[:4] for line in self._done}

    def add(self, entry: Entry, start: int, end: int) -> None:
        """The bytes from `start` to before `end` are there now. Not kept where another version would look the same."""
        if entry.etag or entry.mtime:
            self._write((*version(entry), start, end))

    def close(self) -> None:
        """Write nothing more; it can be opened again."""
        self._file.close()

    def remove(self) -> None:
        """The download is through, or given up."""
        self.close()
        self._path.unlink(missing_ok=True)

    def _write(self, line: Any) -> None:
        with self._lock:
            self._file.write(json.dumps(line).encode() + b"\n")


def version(entry: Entry) -> Version:
    """What a file must have in common with another for their bytes to be the same."""
    return entry.path, entry.etag or "", entry.mtime, entry.size_bytes


def _lines(path: Path) -> Iterable[list[Any]]:
    if not path.exists():
        return
    for text in path.read_bytes().split(b"\n"):
        try:
            line = json.loads(text)
        except ValueError:
            return  # the last one, cut short by the end of its writer
        if isinstance(line, list):
            yield line


def keep_only(folder: Path, known: set[str]) -> None:
    """Remove the files below `folder` whose path isn't in `known`."""
    for base, _, names in os.walk(folder):
        for name in names:
            path = Path(base, name)
            if path.relative_to(folder).as_posix() not in known:
                path.unlink()
