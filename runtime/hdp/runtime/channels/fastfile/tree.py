"""The names of a channel: fixed when it is mounted. An inode is a number: 1 is the root, folders and files follow."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence

from hdp.runtime.channels.keys import Entry

ROOT = 1


class Tree:
    """Folders and files. Read only, so any thread may look."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        """entries: in the channel's order; no two have the same path, and none is both file and folder."""
        self.entries = entries
        self._first_file = ROOT
        self._children: dict[int, dict[str, int]] = {ROOT: {}}
        self._parents: dict[int, int] = {ROOT: ROOT}
        folders = {"": ROOT}
        for folder in self._needed(entries):
            above, _, name = folder.rpartition("/")
            inode = folders[folder] = len(folders) + 1
            self._children[inode] = {}
            self._parents[inode] = folders[above]
            self._children[folders[above]][name] = inode
        self._first_file = len(folders) + 1
        for index, entry in enumerate(entries):
            above, _, name = entry.path.rpartition("/")
            self._children[folders[above]][name] = self._first_file + index
        self._folder_of = [folders[e.path.rpartition("/")[0]] for e in entries]

    @staticmethod
    def _needed(entries: Sequence[Entry]) -> Iterator[str]:
        """Every folder once, each after the one that holds it."""
        seen = {""}
        for entry in entries:
            missing = []
            folder = entry.path.rpartition("/")[0]
            while folder not in seen:
                seen.add(folder)
                missing.append(folder)
                folder = folder.rpartition("/")[0]
            yield from reversed(missing)

    def index(self, inode: int) -> int | None:
        """Which entry a file's inode is; None for a folder."""
        return inode - self._first_file if inode >= self._first_file else None

    def folder_of(self, index: int) -> int:
        """The inode of the folder that an entry is in."""
        return self._folder_of[index]

    def lookup(self, folder: int, name: str) -> int | None:
        """The inode of `name` in a folder."""
        return self._children.get(folder, {}).get(name)

    def exists(self, inode: int) -> bool:
        """Whether there is such an inode."""
        return 1 <= inode < self._first_file + len(self.entries)

    def mode(self, inode: int) -> int:
        """Kind and permissions: to be read by everybody, as nobody else gets at the mount."""
        return stat.S_IFDIR | 0o555 if self.index(inode) is None else stat.S_IFREG | 0o444

    def listing(self, folder: int) -> list[tuple[str, int]] | None:
        """Names and inodes, ``.`` and ``..`` first; None where it isn't a folder."""
        if folder not in self._children:
            return None
        return [(".", folder), ("..", self._parents[folder]), *self._children[folder].items()]
