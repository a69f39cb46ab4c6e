"""A barrier between processes of one machine that puts nothing on any network, however the hosts are emulated.

The ranks map one file. Each has a word of its own, so no atomic read-modify-write is needed: it writes the number of
the barrier into its word; rank 0 waits for every word, then writes the number into the release word, on which the
others sleep. Who waits sleeps in a futex and uses no processor.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
from pathlib import Path

_FUTEX = {"x86_64": 202, "aarch64": 98}
_WAIT, _WAKE = 0, 1
_LINE = 64  # bytes: a cache line a word, so that ranks don't disturb each other
_EVERYBODY = 2**31 - 1
_libc = ctypes.CDLL(None, use_errno=True)


def make(path: Path, size: int) -> None:
    """Make the file of a barrier for `size` ranks."""
    path.write_bytes(bytes(_LINE * (size + 1)))


class Barrier:
    """Rank `rank`'s side of the barrier at `path`, which `make` made for `size` ranks."""

    def __init__(self, path: str, rank: int, size: int) -> None:
        self._syscall = _FUTEX[platform.machine()]
        with Path(path).open("r+b") as file:
            memory = mmap.mmap(file.fileno(), _LINE * (size + 1))
        self._words = [ctypes.c_int32.from_buffer(memory, _LINE * i) for i in range(size)]
        self._release = ctypes.c_int32.from_buffer(memory, _LINE * size)
        self._rank = rank
        self._passed = 0

    def wait(self) -> None:
        """Return when every rank has called this as often as this rank. Ranks that die are the caller's concern."""
        self._passed += 1
        if self._rank:
            self._set(self._words[self._rank])
            self._await(self._release)
            return
        for word in self._words[1:]:
            self._await(word)
        self._set(self._release)

    def _set(self, word: ctypes.c_int32) -> None:
        word.value = self._passed
        self._futex(word, _WAKE, _EVERYBODY)

    def _await(self, word: ctypes.c_int32) -> None:
        while (seen := word.value) != self._passed:
            self._futex(word, _WAIT, seen)  # returns at once where the word has changed

    def _futex(self, word: ctypes.c_int32, operation: int, value: int) -> None:
        # Not the private kind: the futex is the file's page, the same for all processes.
        if _libc.syscall(self._syscall, ctypes.byref(word), operation, value, None, None, 0) < 0:
            error = ctypes.get_errno()
            if error not in (11, 4):  # EAGAIN: the word has changed; EINTR: a signal
                raise OSError(error, f"futex: {os.strerror(error)}")
