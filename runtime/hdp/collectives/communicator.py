"""A rank's connection to its host's server, and groups of ranks on it.

`Communicator` and `Group.start` are what the framework adapters build on: addresses and element counts in, a ticket
out. `hdp.collectives` has the operations on arrays.
"""

from __future__ import annotations

import atexit
import ctypes
import operator
import os
import socket
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hdp.collectives import handshake, library, timeline, wires
from hdp.collectives.defaults import FOR_EVER, Defaults
from hdp.collectives.library import DType, Kind, ReduceOp, Status
from hdp.collectives.world import World
from hdp.contract import env
from hdp.contract.errors import CollectiveError, InvalidCollective
from hdp.contract.secret import read_secret

#: Longest time that one call into the library blocks, so that Ctrl-C is noticed.
_SLICE_MS = 200
#: How often a rank tries to get past the handshake.
_ATTEMPTS = 10


class Communicator:
    """This process as one rank. ``world`` is the group of all ranks."""

    def __init__(
        self, sock: socket.socket, rank: int, layout: World, arena_fd: int, event_fd: int, defaults: Defaults
    ) -> None:
        """Take over the connected and welcomed `sock`; use `join`."""
        self._lib = library.load()
        self.defaults = defaults
        """What operations take that are started from now on, where they don't say."""
        self.rank = rank
        self.layout = layout
        text = library.ErrorText()
        host = layout.host_of(rank)
        self._handle: int | None = self._lib.hdp_comm_open(
            ctypes.byref(library.make_layout(host, layout.local_sizes, layout.names)),
            rank,
            sock.detach(),
            arena_fd,
            event_fd,
            *text.arguments,
        )
        if not self._handle:
            raise CollectiveError(f"joining failed: {text}")
        self.socket_path = ""
        """Where it joined."""
        self._closing = threading.Lock()
        self.world = Group(self, 0, tuple(range(layout.size)))
        _open.add(self)

    @property
    def local_rank(self) -> int:
        """Place among the ranks of this host."""
        return self.layout.local_rank(self.rank)

    @property
    def local_size(self) -> int:
        """Ranks on this host."""
        return self.layout.hosts[self.layout.host_of(self.rank)].local_size

    def group(self, ranks: Sequence[int], name: str = "") -> Group:
        """A group of global `ranks`, this one among them; place in the list is the rank within the group.

        Every member must make it, with the same `ranks` and `name`; nobody waits for anybody. Groups of the same
        ranks are told apart by `name`. Raises InvalidCollective.
        """
        ranks = _members(ranks, self.layout.size)
        text = library.ErrorText()
        array = (ctypes.c_int32 * len(ranks))(*ranks)
        group_id = ctypes.c_uint64()
        status = self._lib.hdp_group_add(
            self.handle, array, len(ranks), _encoded(name, "the group's name"), ctypes.byref(group_id), *text.arguments
        )
        text.check(status)
        return Group(self, group_id.value, tuple(ranks))

    @property
    def handle(self) -> int:
        """The ``hdp_comm``. Raises CollectiveError after `close`."""
        if self._handle is None:
            raise CollectiveError("the communicator is closed")
        return self._handle

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._handle is None

    def next_done(self) -> int | None:
        """Ticket of an operation started with ``notify`` that completed; None: none within a moment.

        Raises CollectiveError once `interrupt` was called.
        """
        ticket = ctypes.c_uint64()
        status = self._lib.hdp_next_done(self.handle, _SLICE_MS, ctypes.byref(ticket))
        if status == Status.PENDING:
            return None
        if status != Status.OK:
            raise CollectiveError("the communicator is being closed")
        return ticket.value

    def wait(self, ticket: int, timeout: float | None = None) -> bool:
        """Wait for an operation, at most `timeout` seconds; false: not complete yet. Raises its error."""
        text = library.ErrorText()
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _SLICE_MS if deadline is None else max(0, min(_SLICE_MS, int((deadline - time.monotonic()) * 1000)))
            status = self._lib.hdp_wait(self.handle, ticket, left, *text.arguments)
            if status != Status.PENDING:
                text.check(status)
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False

    def stream_wait(self, ticket: int, stream: int = 0) -> bool:
        """Make a stream of the operation's CUDA device wait until the operation is complete, without blocking here.

        `stream`: a CUstream; 0: the legacy default one. False: this device can't; call `wait`. Raises the error of an
        operation that has failed; one that fails later ends the stream's wait too, and `wait` raises its error.
        """
        text = library.ErrorText()
        status = self._lib.hdp_stream_wait(self.handle, ticket, stream, *text.arguments)
        if status == Status.PENDING:
            return False
        text.check(status)
        return True

    def release(self, ticket: int) -> None:
        """Forget a ticket."""
        if self._handle is not None:
            self._lib.hdp_release(self._handle, ticket)

    def interrupt(self) -> None:
        """Let threads in `next_done` return with an error."""
        if self._handle is not None:
            self._lib.hdp_comm_interrupt(self._handle)

    def close(self) -> None:
        """Leave the job's groups. Operations that aren't complete fail. May be called twice.

        No other thread may be inside a method of this object.
        """
        with self._closing:
            handle, self._handle = self._handle, None
        if handle is not None:
            self._lib.hdp_comm_close(handle)
        _open.discard(self)


class Group:
    """An ordered set of ranks of a communicator."""

    def __init__(self, comm: Communicator, group_id: int, ranks: tuple[int, ...]) -> None:
        self.comm = comm
        self.id = group_id
        self.ranks = ranks
        self.rank = ranks.index(comm.rank)
        """This process's rank within the group."""
        self.size = len(ranks)
        """Number of ranks."""

    def start(
        self,
        kind: Kind,
        dtype: DType = DType.UINT8,
        source: int = 0,
        target: int = 0,
        count: int = 0,
        *,
        op: ReduceOp = ReduceOp.SUM,
        root: int = 0,
        send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
        shape: Sequence[int] = (),
        tag: str | None = None,
        timeout: float | None = None,
        notify: bool = False,
        once: bool = False,
        wire: str | None = None,
        device: int | None = None,
        stream: int = 0,
    ) -> int:
        """Start an operation on the memory at the addresses `source` and `target`; returns a ticket.

        `count`, `root` and the lists of counts: as in ``hdp_request`` (hdp.h), in elements. The memory must stay valid
        and untouched until `Communicator.wait` says that the operation is complete. `shape`: compared between ranks.
        `timeout`: seconds until it fails with CollectiveTimeout; None: that of `Communicator.defaults`. `notify`:
        `next_done` will return the ticket. `once`: `tag` is used for this operation alone. `wire`: see
        `wires.choose`. `device`: ordinal of the CUDA device on which both buffers are; None: host memory. `stream`: of
        that device (a CUstream; 0: the legacy default one), in which the source was written and the target last used;
        the copies wait for what is in it now. Raises InvalidCollective; CollectiveError: the driver can't serve it.
        """
        comm, defaults = self.comm, self.comm.defaults
        seconds = min(defaults.timeout if timeout is None else timeout, FOR_EVER)
        if not seconds >= 0:
            raise InvalidCollective(f"timeout is {seconds}; expected seconds, 0 or more")
        request = library.Request(
            kind=kind,
            dtype=dtype,
            op=op if kind in library.REDUCTIONS else 0,
            root=root if kind in library.ROOTED else 0,
            count=count,
            group=self.id,
            out=target or None,
            send_counts=self._counts(send_counts),
            recv_counts=self._counts(recv_counts),
            shape=_numbers(shape),
            dims=len(shape),
            tag=None if tag is None else _encoded(tag, "the tag"),
            timeout_ms=max(1, int(seconds * 1000)),
            stall_ms=int(defaults.stall * 1000),
            notify=notify,
            once=once,
            wire=wires.choose(wire, defaults.wire, kind, dtype, op, self._elements(kind, count, recv_counts)),
            stream=stream,
            device=0 if device is None else device + 1,
        )
        setattr(request, "in", source or None)
        ticket, text = ctypes.c_uint64(), library.ErrorText()
        text.check(comm._lib.hdp_submit(comm.handle, request, ticket, *text.arguments))
        return ticket.value

    def _elements(self, kind: Kind, count: int, counts: Sequence[int] | None) -> int:
        """Of the whole array, the same on every rank."""
        if kind != Kind.REDUCE_SCATTER:
            return count
        return count * self.size if counts is None else sum(counts)

    def _counts(self, counts: Sequence[int] | None) -> Any:
        if counts is None:
            return None
        if len(counts) != self.size or min(counts) < 0:
            raise InvalidCollective(f"counts are {list(counts)}; expected {self.size} numbers, none below 0")
        return _numbers(counts)


def _members(ranks: Sequence[int], size: int) -> tuple[int, ...]:
    try:
        members = tuple(operator.index(r) for r in ranks)
    except TypeError as exc:
        raise InvalidCollective(f"the ranks of a group are {ranks!r}; expected integers") from exc
    if not members or len(set(members)) < len(members) or not all(0 <= r < size for r in members):
        raise InvalidCollective(f"a group of ranks {list(members)}; expected some of 0 to {size - 1}, each once")
    return members


def _encoded(text: str, what: str) -> bytes:
    if not isinstance(text, str):
        raise InvalidCollective(f"{what} is {text!r}; expected a string")
    try:
        raw = text.encode()
    except UnicodeEncodeError as exc:
        raise InvalidCollective(f"{what} {text!r} isn't text: {exc.reason}") from exc
    if b"\0" in raw:
        raise InvalidCollective(f"{what} {text!r} has a NUL in it")
    return raw


def _numbers(values: Sequence[int]) -> Any:
    return (ctypes.c_uint64 * len(values))(*values) if values else None


def join(socket_path: str, secret_file: str | Path, rank: int, local_rank: int, timeout: float = 600.0) -> Communicator:
    """Connect to this host's server and wait until every rank of the job has joined, at most `timeout` seconds.

    Raises CollectiveError: there is no server, the secret is wrong, or ranks or hosts are missing (they are named);
    InvalidCollective: this process has joined as this rank already, or the environment has wrong defaults.
    """
    if any((c.socket_path, c.rank) == (socket_path, rank) for c in list(_open)):
        raise InvalidCollective(
            f"this process has joined as rank {rank} already (init_process_group with backend hdp joins too); "
            "use that communicator, or close it first"
        )
    defaults, timelines = Defaults.from_environment(), timeline.folder_of()
    hello = {"rank": rank, "local_rank": local_rank, "pid": os.getpid()}
    channel = _enter(socket_path, read_secret(secret_file), hello, timeout)
    sock = channel.socket
    try:
        # The server's own time limit is the one that counts; it can name who is missing.
        sock.settimeout(timeout + 30)
        welcome = channel.receive()
        if "error" in welcome:
            raise CollectiveError(welcome["error"])
        _, fds, _, _ = socket.recv_fds(sock, 1, 2)
        if len(fds) != 2:
            raise CollectiveError(f"the server handed over {len(fds)} descriptors, expected 2; is the limit reached?")
        sock.settimeout(None)
    except BaseException:
        sock.close()
        raise
    try:
        arena_fd, event_fd = fds
        comm = Communicator(sock, rank, World.from_json(welcome["hosts"]), arena_fd, event_fd, defaults)
        comm.socket_path = socket_path
        if timelines is not None:
            timeline.trace(comm._lib, comm.handle, timelines, rank)
        return comm
    finally:
        for fd in fds:
            os.close(fd)


def _enter(path: str, secret: bytes, hello: dict[str, Any], timeout: float) -> handshake.Channel:
    """Connect and prove who we are. A server that strangers rush may hang up on us: then again, some times."""
    for attempt in range(1, _ATTEMPTS + 1):
        sock = _dial(path, timeout)
        try:
            return handshake.connect(sock, secret, "rank", hello)
        except handshake.HandshakeError as exc:
            sock.close()
            if isinstance(exc, handshake.WrongSecret) or attempt == _ATTEMPTS:
                raise
        time.sleep(0.05 * attempt)
    raise AssertionError("not reached")


def _dial(path: str, timeout: float) -> socket.socket:
    deadline, pause = time.monotonic() + timeout, 0.01
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(path)
            return sock
        except OSError as exc:
            sock.close()
            if time.monotonic() >= deadline:
                raise CollectiveError(f"no server at {path}: {exc}; is this host's agent running?") from exc
        time.sleep(pause)
        pause = min(0.5, pause * 2)


_open: weakref.WeakSet[Communicator] = weakref.WeakSet()


@atexit.register
def _leave_all() -> None:
    """A process that ends in order leaves its groups in order; one that is killed doesn't get here."""
    for comm in list(_open):
        comm.interrupt()
        comm.close()


def from_environment(environ: dict[str, str] | Any = os.environ) -> Communicator:
    """Join as the launcher's environment says. Raises CollectiveError where no launcher of ours started this rank."""
    names = (env.SERVER_SOCKET.name, env.SECRET_FILE.name, "RANK", "LOCAL_RANK")
    missing = [n for n in names if not environ.get(n)]
    if missing:
        raise CollectiveError(
            f"{', '.join(missing)} not set: this process was not started by hdp's launcher. Use "
            'Estimator(distribution={"hdp": {"enabled": True}}), or torchrun with init_process_group("hdp")'
        )
    timeout = float(environ.get(env.START_TIMEOUT.name, env.START_TIMEOUT.default))
    socket_path, secret_file, rank, local_rank = (environ[n] for n in names)
    comm = join(socket_path, secret_file, int(rank), int(local_rank), timeout)
    if environ.get(env.TOPOLOGY.name) == "1":
        from hdp.collectives import probe  # it builds on this module

        probe.at_start(comm, environ)
    return comm


def check_rank(rank: int, size: int, what: str) -> None:
    """Raise InvalidCollective unless `rank` is an integer and 0 <= rank < size."""
    if not hasattr(rank, "__index__") or not 0 <= rank < size:
        raise InvalidCollective(f"{what} is {rank}; expected 0 to {size - 1}")
