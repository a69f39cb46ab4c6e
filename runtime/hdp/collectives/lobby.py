"""Connections between the processes of a job: made, authenticated, and set up for what follows.

A `Lobby` has one thread, whatever knocks: it accepts, and takes every newcomer through the handshake a few bytes at a
time. Newcomers who haven't proved anything hold at most MAX_NEWCOMERS places. When all are taken the oldest one goes:
who knows the secret needs its place for milliseconds, a stranger who waits for something loses it. So strangers can
keep nobody out, whether they are silent, talk nonsense or are many.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

from hdp.collectives import handshake
from hdp.collectives.eventfd import eventfd, ring
from hdp.contract.errors import CollectiveError, HdpError
from hdp.contract.secret import Dialogue

logger = logging.getLogger(__name__)

#: More than a host has ranks or a job has hosts, as a rule; those who are turned away in a rush try again.
MAX_NEWCOMERS = 256
#: How long a newcomer may take.
GREETING_SECONDS = 10.0
#: Newcomers accepted between two looks at those who are here already: a flood doesn't keep these waiting.
_ACCEPTED_AT_ONCE = 16
#: Rest after a connection could not be accepted, e.g. for want of descriptors, instead of trying at once for ever.
_PAUSE_SECONDS = 0.1
_PEER_CREDENTIALS = struct.Struct("3i")

#: A connection that passed, and what its hello said.
Guest = tuple[handshake.Channel, dict[str, Any]]


class _Newcomer:
    """A connection that has not said who it is yet."""

    def __init__(self, sock: socket.socket, secret: bytes, purpose: str) -> None:
        self.socket = sock
        self.name = _name(sock)
        self.greeting = Dialogue(handshake.greet(secret, purpose))
        self.deadline = time.monotonic() + GREETING_SECONDS

    def listen(self) -> Guest | None:
        """Take what it has sent, and answer. Returns a guest once its hello is whole. Raises HdpError, OSError."""
        data = self.socket.recv(self.greeting.wanted)
        if not data:
            raise handshake.HandshakeError("it closed the connection")
        answer = self.greeting.feed(data)
        if answer and self.socket.send(answer) < len(answer):
            raise handshake.HandshakeError("it does not take our answer")
        if self.greeting.result is None:
            return None
        session, hello = self.greeting.result
        return handshake.Channel(self.socket, session), hello


class Lobby:
    """Accepts connections on a listener in the background, and keeps those that pass the handshake."""

    def __init__(self, listener: socket.socket, secret: bytes, purpose: str, key: Callable[[dict[str, Any]], Any]):
        """key: what `take` will ask for, from a hello; one that it can't read is refused. `close` closes `listener`."""
        self._listener, self._secret, self._purpose, self._key = listener, secret, purpose, key
        self._newcomers: dict[socket.socket, _Newcomer] = {}  # the oldest first
        self._arrived: dict[Any, Guest] = {}
        self._changed = threading.Condition()
        self._reported: set[str] = set()
        self._closing = eventfd(blocking=True)
        self._selector = selectors.DefaultSelector()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._closing, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name=f"lobby-{purpose}", daemon=True)
        self._thread.start()

    def wait_for_any(self, timeout: float | None) -> None:
        """Return when somebody is here, or after `timeout` seconds (None: never)."""
        with self._changed:
            self._changed.wait_for(self._present, timeout)

    def take(self, keys: list[Any], deadline: float) -> dict[Any, Guest]:
        """Remove and return those of `keys` that came until `deadline` (monotonic seconds), or all of them before."""
        with self._changed:
            left = max(0.0, deadline - time.monotonic())
            self._changed.wait_for(lambda: self._present().issuperset(keys), left)
            return {k: self._arrived.pop(k) for k in keys if k in self._arrived}

    def _present(self) -> set[Any]:
        """Keys of those who are here; who has hung up again is forgotten."""
        for key, (channel, _) in list(self._arrived.items()):
            if _has_hung_up(channel.socket):
                del self._arrived[key]
                channel.close()
        return set(self._arrived)

    def close(self) -> None:
        """End the thread, and close the listener and every connection that nobody has taken."""
        ring(self._closing)
        self._thread.join()
        self._selector.close()
        os.close(self._closing)
        self._listener.close()
        with self._changed:
            for sock in [*self._newcomers, *(channel.socket for channel, _ in self._arrived.values())]:
                sock.close()
            self._arrived.clear()

    # -- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            ready = {key.fileobj for key, _ in self._selector.select(self._patience())}
            if self._closing in ready or self._listener.fileno() < 0:
                return
            for newcomer in [self._newcomers[sock] for sock in ready if sock in self._newcomers]:
                self._listen_to(newcomer)
            self._drop_late()
            if self._listener in ready:
                self._accept_some()

    def _patience(self) -> float | None:
        """Seconds until the next deadline."""
        oldest = next(iter(self._newcomers.values()), None)
        return None if oldest is None else max(0.0, oldest.deadline - time.monotonic())

    def _accept_some(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                sock, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as exc:
                self._report("full", logging.ERROR, f"can't accept connections to the {self._purpose} socket: {exc}")
                time.sleep(_PAUSE_SECONDS)
                return
            self._admit(sock)

    def _admit(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        newcomer = _Newcomer(sock, self._secret, self._purpose)
        if not _is_ours(sock):
            return self._refuse(newcomer, "it is a process of another user")
        if len(self._newcomers) >= MAX_NEWCOMERS:
            oldest = next(iter(self._newcomers.values()))
            self._refuse(oldest, f"it has proved nothing, and {MAX_NEWCOMERS} others wait")
        self._newcomers[sock] = newcomer
        self._selector.register(sock, selectors.EVENT_READ)
        return None

    def _listen_to(self, newcomer: _Newcomer) -> None:
        try:
            guest = newcomer.listen()
            if guest is not None:
                self._welcome(newcomer, self._key(guest[1]), guest)
        except BlockingIOError:
            return
        except (HdpError, OSError, KeyError, TypeError, ValueError, OverflowError) as exc:
            self._refuse(newcomer, str(exc))

    def _welcome(self, newcomer: _Newcomer, key: Any, guest: Guest) -> None:
        self._forget(newcomer)
        newcomer.socket.setblocking(True)
        with self._changed:
            old = self._arrived.pop(key, None)
            if old is not None:
                old[0].close()
            self._arrived[key] = guest
            self._changed.notify_all()

    def _drop_late(self) -> None:
        for newcomer in list(self._newcomers.values()):
            if newcomer.deadline > time.monotonic():
                return
            self._refuse(newcomer, f"it has proved nothing within {GREETING_SECONDS:g} s")

    def _refuse(self, newcomer: _Newcomer, why: str) -> None:
        text = f"refused a connection to the {self._purpose} socket from {newcomer.name}: {why}"
        self._report("stranger", logging.WARNING, text)
        self._forget(newcomer)
        newcomer.socket.close()

    def _forget(self, newcomer: _Newcomer) -> None:
        if self._newcomers.pop(newcomer.socket, None) is not None:
            self._selector.unregister(newcomer.socket)

    def _report(self, kind: str, level: int, text: str) -> None:
        """Log the first of each kind; a log that strangers can fill is a weapon."""
        if kind in self._reported:
            logger.debug("%s", text)
            return
        self._reported.add(kind)
        logger.log(level, "%s; from now on this is not logged", text)


def _has_hung_up(sock: socket.socket) -> bool:
    try:
        return sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _credentials(sock: socket.socket) -> tuple[int, int] | None:
    """Process and user at the other end of a Unix socket; None for any other socket."""
    if sock.family != socket.AF_UNIX:
        return None
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    pid, uid, _ = _PEER_CREDENTIALS.unpack(data)
    return pid, uid


def _is_ours(sock: socket.socket) -> bool:
    """Whether the other end may be of this job: on this machine it is of our user, or root's."""
    credentials = _credentials(sock)
    return credentials is None or credentials[1] in (0, os.geteuid())


def _name(sock: socket.socket) -> str:
    """Who is at the other end, for people."""
    credentials = _credentials(sock)
    if credentials is not None:
        return f"process {credentials[0]} of user {credentials[1]}"
    with contextlib.suppress(OSError):  # it has hung up already
        address, port, *_ = sock.getpeername()
        return f"{address}:{port}"
    return "an unknown address"


def dial(address: str, port: int, secret: bytes, hello: dict[str, Any], deadline: float) -> handshake.Channel:
    """Connect to another server, as long as it takes until `deadline`."""
    pause, last = 0.02, "no attempt"
    while time.monotonic() < deadline:
        try:
            return _dial_once(address, port, secret, hello, deadline)
        except (OSError, handshake.HandshakeError) as exc:
            last = str(exc)
        time.sleep(pause)
        pause = min(1.0, pause * 1.5)
    raise CollectiveError(f"no connection to the server at {address}:{port}: {last}")


def _dial_once(address: str, port: int, secret: bytes, hello: dict[str, Any], deadline: float) -> handshake.Channel:
    sock = socket.create_connection((address, port), timeout=GREETING_SECONDS)
    try:
        channel = handshake.connect(sock, secret, "server", hello)
        sock.settimeout(max(1.0, deadline - time.monotonic()))
        answer = channel.receive()
        if "error" in answer:
            raise CollectiveError(f"{address}:{port} refused: {answer['error']}")
        sock.settimeout(None)
    except BaseException:
        sock.close()
        raise
    return channel


def tune(sock: socket.socket) -> None:
    """No delay for small messages, and a vanished host is noticed within about 15 s."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 15000)
