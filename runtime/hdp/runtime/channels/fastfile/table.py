"""Entries by the million, in columns: an `Entry` is made when it is asked for.

As objects a million entries took 400 MB: each text alone has 50 bytes around it, and key and path are mostly the same.
Here the texts of a column are one block of bytes, and a path is the end of its key, as it nearly always is.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from hdp.runtime.channels.keys import Entry


class Texts:
    """Texts that are only added to. Surrogates, by which Python passes on names that aren't UTF-8, are kept."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._ends = array("Q", [0])

    def add(self, text: str) -> None:
        """One more."""
        self._bytes += text.encode("utf-8", "surrogatepass")
        self._ends.append(len(self._bytes))

    def __getitem__(self, index: int) -> str:
        return self._bytes[self._ends[index] : self._ends[index + 1]].decode("utf-8", "surrogatepass")


class Table(Sequence[Entry]):
    """A list of entries, each of about 30 bytes and its texts. Read by any thread once it is whole."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._keys = Texts()
        self._etags = Texts()
        self.sizes = array("Q")
        """Of each entry, in bytes. Only to be read, as the next one."""
        self.mtimes = array("d")
        self._path_lengths = array("I")
        self._other_paths: dict[int, str] = {}
        """Of entries whose path isn't the end of their key."""
        for entry in entries:
            self.add(entry)

    def add(self, entry: Entry) -> None:
        """One more."""
        if not entry.key.endswith(entry.path):
            self._other_paths[len(self)] = entry.path
        self._path_lengths.append(len(entry.path))
        self._keys.add(entry.key)
        self._etags.add(entry.etag or "")
        self.mtimes.append(entry.mtime)
        self.sizes.append(entry.size_bytes)

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Entry]: ...
    def __getitem__(self, index: int | slice) -> Entry | Sequence[Entry]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        etag = self._etags[index] or None
        return Entry(self._keys[index], self.path(index), self.sizes[index], etag, self.mtimes[index])

    def __iter__(self) -> Iterator[Entry]:
        return (self[i] for i in range(len(self)))

    def path(self, index: int) -> str:
        """Where an entry goes."""
        other = self._other_paths.get(index)
        if other is not None:
            return other
        key = self._keys[index]
        return key[len(key) - self._path_lengths[index] :]

    @property
    def size_bytes(self) -> int:
        """Of all entries together."""
        return sum(self.sizes)
