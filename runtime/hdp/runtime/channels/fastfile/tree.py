"""The names of a channel: fixed when it is mounted. An inode is a number: 1 is the root, folders and files follow.

A folder knows its files by number; their names are the table's, and a hash table of numbers finds them: a dict of names
would take 150 bytes for each.
"""

from __future__ import annotations

import stat
from array import array
from collections.abc import Iterable, Iterator, Sequence

from hdp.runtime.channels.fastfile.table import Table
from hdp.runtime.channels.keys import Entry

ROOT = 1


class _Folder:
    __slots__ = ("below", "by_name", "files", "inode", "name", "parent")

    def __init__(self, name: str, inode: int, parent: int) -> None:
        self.name = name
        self.inode = inode
        self.parent = parent
        self.below: list[_Folder] = []
        self.by_name: dict[str, _Folder] = {}
        """Those below."""
        self.files = array("I")
        """Which entries are in it, in the channel's order."""


class Tree:
    """Folders and files. Read only, so any thread may look."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        """entries: in the channel's order; no two have the same path, and none is both file and folder."""
        self.entries = entries if isinstance(entries, Table) else Table(entries)
        root = _Folder("", ROOT, ROOT)
        self._folders = {ROOT: root}
        self._folder_of = array("I")
        # At most half full, so that a name is found at the first or second place.
        self._places = array("I", bytes(4 << (2 * len(self.entries)).bit_length()))
        """Entries, counted from 1, each at the first free place from its hash on."""
        known = {"": root}
        for index in range(len(self.entries)):
            above, _, name = self.entries.path(index).rpartition("/")
            folder = self._make(above, known)
            folder.files.append(index)
            self._folder_of.append(folder.inode)
            self._places[self._place(folder.inode, name)] = index + 1
        self._first_file = len(self._folders) + 1

    def _make(self, path: str, known: dict[str, _Folder]) -> _Folder:
        """The folder at `path`, and those around it."""
        folder = known.get(path)
        if folder is None:
            around, _, name = path.rpartition("/")
            parent = self._make(around, known)
            folder = known[path] = parent.by_name[name] = _Folder(name, len(self._folders) + 1, parent.inode)
            parent.below.append(folder)
            self._folders[folder.inode] = folder
        return folder

    def _place(self, folder: int, name: str) -> int:
        """Where a file is among the places, or where it would go."""
        last = len(self._places) - 1
        place = hash((folder, name)) & last
        while number := self._places[place]:
            if self._folder_of[number - 1] == folder and self._name(number - 1) == name:
                break
            place = (place + 1) & last
        return place

    def index(self, inode: int) -> int | None:
        """Which entry a file's inode is; None for a folder."""
        return inode - self._first_file if inode >= self._first_file else None

    @property
    def folder_of(self) -> Sequence[int]:
        """The inode of the folder that each entry is in."""
        return self._folder_of

    def files_in(self, folder: int) -> Sequence[int]:
        """Which entries are in a folder, by its inode."""
        return self._folders[folder].files

    def lookup(self, folder: int, name: str) -> int | None:
        """The inode of `name` in a folder."""
        known = self._folders.get(folder)
        if known is None:
            return None
        if name in known.by_name:
            return known.by_name[name].inode
        number = self._places[self._place(folder, name)]
        return self._first_file + number - 1 if number else None

    def find(self, path: str) -> int | None:
        """Which entry is at `path`; None where there is no file."""
        inode: int | None = ROOT
        for name in path.split("/"):
            inode = self.lookup(inode, name) if inode is not None else None
        return self.index(inode) if inode is not None else None

    def exists(self, inode: int) -> bool:
        """Whether there is such an inode."""
        return 1 <= inode < self._first_file + len(self.entries)

    def mode(self, inode: int) -> int:
        """Kind and permissions: to be read by everybody, as nobody else gets at the mount."""
        return stat.S_IFDIR | 0o555 if self.index(inode) is None else stat.S_IFREG | 0o444

    def listing(self, folder: int, first: int = 0) -> Iterator[tuple[str, int]] | None:
        """Names and inodes from place `first` on, ``.`` and ``..`` before all; None where it isn't a folder."""
        known = self._folders.get(folder)
        return self._listed(known, first) if known is not None else None

    def _listed(self, folder: _Folder, first: int) -> Iterator[tuple[str, int]]:
        above = (".", folder.inode), ("..", folder.parent)
        yield from above[first:]
        first = max(0, first - len(above))
        for place in range(first, len(folder.below)):
            yield folder.below[place].name, folder.below[place].inode
        for place in range(max(0, first - len(folder.below)), len(folder.files)):
            yield self._name(folder.files[place]), self._first_file + folder.files[place]

    def _name(self, index: int) -> str:
        return self.entries.path(index).rpartition("/")[2]
