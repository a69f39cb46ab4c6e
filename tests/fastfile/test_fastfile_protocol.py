"""The FUSE face against the kernel's messages, over a socket pair: no kernel, no mount, no privilege."""

from __future__ import annotations

import errno
import socket
import stat
import struct
import threading
from collections.abc import Iterator

import pytest
from fastfile_support import Rig, content

from hdp.runtime.channels.fastfile import abi, server
from hdp.runtime.channels.fastfile.server import Server
from hdp.runtime.channels.fastfile.store import FaultyStore, MemoryStore

OBJECTS = {"a.bin": content(10_000, 1), "d/b": content(300_000, 2), "d/e/ü c": b"", "d/f": b"x"}
ENTRY = struct.Struct("<QQQQII")
ATTR = struct.Struct("<QQQQQQIIIIIIIIII")
DIRENT = struct.Struct("<QQII")


class Kernel:
    """Sends messages and reads answers."""

    def __init__(self, channel: socket.socket) -> None:
        self._socket = channel
        self._unique = 100

    def send(self, opcode: int, node: int = 1, body: bytes = b"") -> int:
        """Returns the message's number."""
        self._unique += 2
        length = abi.IN_HEADER.size + len(body)
        self._socket.send(abi.IN_HEADER.pack(length, opcode, self._unique, node, 0, 0, 1, 0, 0) + body)
        return self._unique

    def receive(self) -> tuple[int, int, bytes]:
        """Number, errno, body of an answer."""
        data = self._socket.recv(2 << 20)
        length, error, unique = abi.OUT_HEADER.unpack_from(data)
        assert length == len(data)
        return unique, -error, data[abi.OUT_HEADER.size :]

    def ask(self, opcode: int, node: int = 1, body: bytes = b"") -> tuple[int, bytes]:
        """Errno and body of the answer to one message."""
        unique = self.send(opcode, node, body)
        answered, error, data = self.receive()
        assert answered == unique
        return error, data

    def lookup(self, *names: str) -> int:
        """The inode of a path."""
        node = 1
        for name in names:
            error, data = self.ask(abi.Op.LOOKUP, node, name.encode() + b"\0")
            assert error == 0
            node = ENTRY.unpack_from(data)[0]
        return node


@pytest.fixture
def rig() -> Rig:
    return Rig(OBJECTS)


@pytest.fixture
def kernel(rig: Rig) -> Iterator[Kernel]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(20)
    server = threading.Thread(target=Server(theirs.fileno(), rig.fs).run, args=(2,))
    server.start()
    yield Kernel(ours)
    ours.close()
    server.join(10)
    theirs.close()
    rig.fs.end()
    assert not server.is_alive()


def read_in(handle: int, offset: int, size: int) -> bytes:
    return abi.READ_IN.pack(handle, offset, size, 0, 0, 0, 0)


def test_init_agrees_on_protocol_and_size(kernel):
    """The kernel speaks 7.42. Expected: 7.31, requests of 256 pages, the read-ahead that it offers."""
    error, data = kernel.ask(abi.Op.INIT, 0, struct.pack("<IIII", 7, 42, 131072, 0xFFFFFFFF) + bytes(48))
    assert error == 0 and len(data) == 64
    major, minor, readahead, flags, background, _, _, _, pages = struct.unpack_from("<IIIIHHIIH", data)
    assert (major, minor, readahead, pages) == (7, 31, 131072, 256)
    assert background == 64
    assert flags & (1 << 22), "without MAX_PAGES the kernel keeps to 128 KiB a request"


def test_a_path_leads_to_its_attributes(kernel):
    error, data = kernel.ask(abi.Op.GETATTR, kernel.lookup("d", "b"))
    assert error == 0 and len(data) == 16 + 88
    attr = ATTR.unpack_from(data, 16)
    assert attr[1] == 300_000 and attr[2] == -(-300_000 // 512)
    assert attr[9] == stat.S_IFREG | 0o444
    error, data = kernel.ask(abi.Op.GETATTR, kernel.lookup("d", "e"))
    assert ATTR.unpack_from(data, 16)[9] == stat.S_IFDIR | 0o555


def test_a_name_that_is_not_there_is_remembered_as_such(kernel):
    """Expected: inode 0 with a long validity, so that the kernel doesn't ask again."""
    error, data = kernel.ask(abi.Op.LOOKUP, 1, b"nothing\0")
    node, _, valid, *_ = ENTRY.unpack_from(data)
    assert (error, node) == (0, 0) and valid > 86400 and len(data) == 128


def test_open_read_close(kernel):
    """All of d/b in pieces, and behind its end. Expected: its bytes, then none; the page cache is to keep them."""
    node = kernel.lookup("d", "b")
    error, data = kernel.ask(abi.Op.OPEN, node, struct.pack("<II", 0, 0))
    handle, flags, _ = struct.unpack("<QII", data)
    assert error == 0 and flags & abi.KEEP_CACHE
    found = b"".join(kernel.ask(abi.Op.READ, node, read_in(handle, o, 131072))[1] for o in range(0, 300_000, 131072))
    assert found == OBJECTS["d/b"]
    assert kernel.ask(abi.Op.READ, node, read_in(handle, 300_000, 4096)) == (0, b"")
    assert kernel.ask(abi.Op.RELEASE, node, struct.pack("<QIIQ", handle, 0, 0, 0)) == (0, b"")
    assert kernel.ask(abi.Op.READ, node, read_in(handle, 0, 10)) == (errno.EBADF, b"")


@pytest.mark.parametrize("opcode", [abi.Op.READDIR, abi.Op.READDIRPLUS])
def test_a_folder_is_listed_whole_however_small_the_buffer(kernel, opcode):
    """Room for one or two names at a time. Expected: each name once, with its inode."""
    folder, offset, found = kernel.lookup("d"), 0, {}
    for _ in range(10):
        error, data = kernel.ask(opcode, folder, read_in(0, offset, 200))
        assert error == 0
        if not data:
            break
        position = 0
        while position < len(data):
            if opcode == abi.Op.READDIRPLUS:
                assert ENTRY.unpack_from(data, position)[0] in (0, DIRENT.unpack_from(data, position + 128)[0])
                position += 128
            inode, offset, length, kind = DIRENT.unpack_from(data, position)
            name = data[position + 24 : position + 24 + length].decode()
            assert name not in found
            found[name] = inode, kind
            position += 24 + -(-length // 8) * 8
    assert set(found) == {".", "..", "b", "e", "f"}
    assert found["b"] == (kernel.lookup("d", "b"), stat.S_IFREG >> 12)
    assert found["e"] == (kernel.lookup("d", "e"), stat.S_IFDIR >> 12)
    assert found["."][0] == folder and found[".."][0] == 1


@pytest.mark.parametrize("opcode", sorted(abi.WRITING))
def test_what_would_change_something_is_refused(kernel, opcode):
    """SETATTR, MKDIR, UNLINK, WRITE, CREATE, ... Expected: EROFS."""
    assert kernel.ask(opcode, 1, bytes(64)) == (errno.EROFS, b"")


@pytest.mark.parametrize(
    ("opcode", "what"), [(22, "GETXATTR"), (34, "ACCESS"), (25, "FLUSH"), (27, "OPENDIR"), (99, "?")]
)
def test_what_we_do_not_have_the_kernel_need_not_ask_again(kernel, opcode, what):
    assert kernel.ask(opcode, 1, bytes(64)) == (errno.ENOSYS, b""), what


def test_a_malformed_message_is_answered_and_the_next_one_too(kernel, caplog):
    """A READ of 3 bytes. Expected: EIO, a log line, and the server lives."""
    assert kernel.ask(abi.Op.READ, 1, b"abc") == (errno.EIO, b"")
    assert "can't be answered" in caplog.text
    assert kernel.lookup("a.bin")


class TestSlow:
    """A store that answers when the test says so."""

    @pytest.fixture
    def hold(self) -> threading.Event:
        return threading.Event()

    @pytest.fixture
    def rig(self, hold: threading.Event) -> Rig:
        return Rig(OBJECTS, FaultyStore(MemoryStore(OBJECTS), lambda _e, _n: hold.wait(15) and None))

    def test_a_read_that_waits_holds_up_nobody(self, kernel, hold):
        """More reads wait than the server has threads. Expected: other messages are answered; then the reads."""
        node = kernel.lookup("a.bin")
        handle = struct.unpack("<QII", kernel.ask(abi.Op.OPEN, node, bytes(8))[1])[0]
        waiting = {kernel.send(abi.Op.READ, node, read_in(handle, o, 10)): o for o in range(0, 100, 10)}
        assert kernel.lookup("d", "b")
        hold.set()
        for _ in range(10):
            unique, error, data = kernel.receive()
            offset = waiting.pop(unique)
            assert (error, data) == (0, OBJECTS["a.bin"][offset : offset + 10])

    def test_a_read_of_a_dying_process_ends(self, kernel, hold, monkeypatch):
        """A fatal signal to the reader. Expected: EINTR at once, and no second answer when the bytes come."""
        monkeypatch.setattr(server, "is_dying", lambda thread: True)
        node = kernel.lookup("a.bin")
        handle = struct.unpack("<QII", kernel.ask(abi.Op.OPEN, node, bytes(8))[1])[0]
        unique = kernel.send(abi.Op.READ, node, read_in(handle, 0, 10))
        kernel.send(abi.Op.INTERRUPT, 0, struct.pack("<Q", unique))
        assert kernel.receive() == (unique, errno.EINTR, b"")
        hold.set()
        error, data = kernel.ask(abi.Op.READ, node, read_in(handle, 0, 10))
        assert (error, data) == (0, OBJECTS["a.bin"][:10])

    def test_a_read_outlives_a_signal_that_is_handled(self, kernel, hold):
        """SIGCHLD, say: an error would be SIGBUS to whoever reads through a map. Expected: the bytes."""
        node = kernel.lookup("a.bin")
        handle = struct.unpack("<QII", kernel.ask(abi.Op.OPEN, node, bytes(8))[1])[0]
        unique = kernel.send(abi.Op.READ, node, read_in(handle, 0, 10))
        kernel.send(abi.Op.INTERRUPT, 0, struct.pack("<Q", unique))
        hold.set()
        assert kernel.receive() == (unique, 0, OBJECTS["a.bin"][:10])
