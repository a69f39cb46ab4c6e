"""The FUSE face: answers the kernel's messages from /dev/fuse, or a test's from a socket.

A few threads read messages. Each is answered by the thread that has the answer: for a read that has to wait that is
the one that fetches its last part. Nothing here waits for the store.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from hdp.runtime.channels.fastfile import abi
from hdp.runtime.channels.fastfile.abi import Op
from hdp.runtime.channels.fastfile.fs import FileSystem

log = logging.getLogger(__name__)

#: More than the kernel's least (8 KiB), far less than it could send: nothing is written here.
_MESSAGE_BYTES = 64 << 10
#: Python runs one at a time; a second takes the next message while the first is in the kernel.
THREADS = 3
#: Kernel's words for "try again": interrupted, or the request was taken back.
_AGAIN = (errno.EINTR, errno.ENOENT, errno.EAGAIN)

_Body = memoryview


class Server:
    """Serves one file system on one descriptor."""

    def __init__(self, fd: int, fs: FileSystem) -> None:
        self._fd = fd
        self._fs = fs
        self._owner = (os.getuid(), os.getgid())
        self._waiting: dict[int, tuple[threading.Lock, int]] = {}
        """Reads without an answer: who answers takes the lock; and the thread that reads."""
        self._asking = threading.local()
        self._handlers: dict[int, Callable[[int, int, _Body], None]] = {
            Op.LOOKUP: self._lookup, Op.GETATTR: self._getattr, Op.OPEN: self._open, Op.READ: self._read,
            Op.STATFS: self._statfs, Op.RELEASE: self._release, Op.INIT: self._init, Op.READDIR: self._readdir,
            Op.READDIRPLUS: self._readdirplus, Op.INTERRUPT: self._interrupt, Op.DESTROY: self._destroy,
            Op.FORGET: _ignore, Op.BATCH_FORGET: _ignore,
        }  # fmt: skip

    def run(self, threads: int = THREADS) -> None:
        """Answer until the mount is gone."""
        others = [threading.Thread(target=self._loop, name="hdp-fuse", daemon=True) for _ in range(threads - 1)]
        for thread in others:
            thread.start()
        self._loop()
        for thread in others:
            thread.join()

    def _loop(self) -> None:
        buffer = bytearray(_MESSAGE_BYTES)
        view = memoryview(buffer)
        while True:
            try:
                count = os.readv(self._fd, [buffer])
            except OSError as exc:
                if exc.errno in _AGAIN:
                    continue
                if exc.errno != errno.ENODEV:  # what a mount that is gone says
                    log.error("the kernel's messages can't be read: %s", exc)
                return
            if count == 0:
                return
            self._answer(view[:count])

    def _answer(self, message: memoryview) -> None:
        _, opcode, unique, node, _, _, self._asking.pid, *_ = abi.IN_HEADER.unpack_from(message)
        handler = self._handlers.get(opcode)
        if handler is None:
            self._fail(unique, errno.EROFS if opcode in abi.WRITING else errno.ENOSYS)
            return
        try:
            handler(unique, node, message[abi.IN_HEADER.size :])
        except Exception:
            log.exception("a message of kind %d can't be answered", opcode)
            self._fail(unique, errno.EIO)

    # -- each kind of message -----------------------------------------------------------------------------------

    def _init(self, unique: int, _node: int, body: _Body) -> None:
        major, _, max_readahead, _ = abi.INIT_IN.unpack_from(body)
        if major < abi.MAJOR:
            self._fail(unique, errno.EPROTO)
            return
        self._reply(unique, [abi.init_reply(max_readahead)])

    def _lookup(self, unique: int, node: int, body: _Body) -> None:
        name = bytes(body[:-1]).decode("utf-8", "surrogateescape")
        inode = self._fs.tree.lookup(node, name)
        self._reply(unique, [abi.entry_reply(inode or 0, self._attributes(inode) if inode else bytes(88))])

    def _getattr(self, unique: int, node: int, _body: _Body) -> None:
        if not self._fs.tree.exists(node):
            self._fail(unique, errno.ENOENT)
            return
        self._reply(unique, [abi.attr_reply(self._attributes(node))])

    def _open(self, unique: int, node: int, _body: _Body) -> None:
        index = self._fs.tree.index(node)
        if index is None:
            self._fail(unique, errno.EISDIR)
            return
        self._reply(unique, [abi.open_reply(self._fs.open(index))])

    def _read(self, unique: int, _node: int, body: _Body) -> None:
        handle, offset, size, *_ = abi.READ_IN.unpack_from(body)
        once = threading.Lock()
        self._waiting[unique] = once, self._asking.pid

        def reply(pieces: Sequence[memoryview], error: int) -> None:
            if once.acquire(blocking=False):
                self._waiting.pop(unique, None)
                self._reply(unique, pieces, error)

        self._fs.read(handle, offset, size, reply)

    def _interrupt(self, _unique: int, _node: int, body: _Body) -> None:
        """Only for a reader that is being killed: others would take the error for that of a disk (SIGBUS in a map)."""
        (unique,) = abi.INTERRUPT_IN.unpack_from(body)
        once, reader = self._waiting.get(unique, (None, 0))
        if once is not None and is_dying(reader) and once.acquire(blocking=False):
            self._waiting.pop(unique, None)
            self._fail(unique, errno.EINTR)

    def _release(self, unique: int, _node: int, body: _Body) -> None:
        self._fs.close(abi.HANDLE_IN.unpack_from(body)[0])
        self._reply(unique, [])

    def _statfs(self, unique: int, _node: int, _body: _Body) -> None:
        entries = self._fs.tree.entries
        self._reply(unique, [abi.statfs_reply(entries.size_bytes, len(entries))])

    def _readdir(self, unique: int, node: int, body: _Body) -> None:
        self._list(unique, node, body, plus=False)

    def _readdirplus(self, unique: int, node: int, body: _Body) -> None:
        self._list(unique, node, body, plus=True)

    def _list(self, unique: int, node: int, body: _Body, *, plus: bool) -> None:
        _, offset, room, *_ = abi.READ_IN.unpack_from(body)
        names = self._fs.tree.listing(node, offset)
        if names is None:
            self._fail(unique, errno.ENOTDIR)
            return
        found = []
        for place, (name, inode) in enumerate(names, offset):
            item = self._dirent(place, name, inode, plus=plus)
            room -= len(item)
            if room < 0:
                break
            found.append(item)
        self._reply(unique, [b"".join(found)])

    def _dirent(self, place: int, name: str, inode: int, *, plus: bool) -> bytes:
        item = abi.dirent(inode, place + 1, self._fs.tree.mode(inode) >> 12, name.encode("utf-8", "surrogateescape"))
        if not plus:
            return item
        known = place >= 2  # "." and ".." are never entered into the kernel's cache
        return abi.entry_reply(inode if known else 0, self._attributes(inode)) + item

    def _destroy(self, unique: int, _node: int, _body: _Body) -> None:
        self._reply(unique, [])

    # -- answers ------------------------------------------------------------------------------------------------

    def _attributes(self, inode: int) -> bytes:
        tree = self._fs.tree
        index = tree.index(inode)
        size, mtime = (0, 0.0) if index is None else (tree.entries.sizes[index], tree.entries.mtimes[index])
        return abi.attributes(inode, tree.mode(inode), size, mtime, self._owner)

    def _fail(self, unique: int, error: int) -> None:
        self._reply(unique, [], error)

    def _reply(self, unique: int, pieces: Sequence[bytes | memoryview], error: int = 0) -> None:
        try:
            os.writev(self._fd, abi.message(unique, error, pieces))
        except OSError as exc:
            # ENOENT: nobody waits any more. ENODEV, EBADF: the mount is gone.
            if exc.errno not in (errno.ENOENT, errno.ENODEV, errno.EBADF):
                log.error("an answer can't be written: %s", exc)


def is_dying(thread: int) -> bool:
    """Whether a fatal signal waits for the thread; unknown ones aren't."""
    try:
        status = Path(f"/proc/{thread}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    pending = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigPnd:", "ShdPnd:"))]
    return any(signals >> (signal.SIGKILL - 1) & 1 for signals in pending)


def _ignore(_unique: int, _node: int, _body: _Body) -> None:
    """Inodes are kept for good, so that the kernel forgets one changes nothing; it wants no answer."""
