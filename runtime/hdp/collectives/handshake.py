"""How connections between ranks and servers begin: a proof of the job's secret, then a sealed hello (DESIGN I9).

The proof is `hdp.contract.secret`'s. Every message is JSON with its length before it (4 bytes) and a seal (32) behind
it. Every read is bounded in bytes and in time.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from functools import partial
from typing import Any

from hdp.contract.errors import CollectiveError
from hdp.contract.secret import PROOF_BYTES, Session, Steps, Unproven, prove_as_client, prove_as_server, run

#: Longest message. It is accepted only from who knows the secret; the hosts of a large job need some 100 KB.
MESSAGE_MAX_BYTES = 1 << 20
_LENGTH = struct.Struct("!I")


class HandshakeError(CollectiveError):
    """The other end did not prove that it knows the job's secret, did not answer in time, or was interfered with."""


class WrongSecret(HandshakeError):
    """The server has another secret: it belongs to another job. To try again is of no use."""


class Channel:
    """A connection that has passed the handshake: what is said over it is sealed, until the core takes the socket."""

    def __init__(self, sock: socket.socket, session: Session) -> None:
        self.socket = sock
        self._session = session

    def send(self, value: dict[str, Any]) -> None:
        """Send a JSON object. Raises HandshakeError."""
        send(self.socket, _frame(self._session, value))

    def receive(self) -> dict[str, Any]:
        """Receive what the other end's `send` sent, within the socket's timeout. Raises HandshakeError."""
        return run(_read(self._session), partial(send, self.socket), partial(receive, self.socket))

    def key(self, purpose: str) -> bytes:
        """32 bytes that both ends of this connection have, and nobody else; others for another purpose."""
        return self._session.derive(purpose)

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()


def connect(sock: socket.socket, secret: bytes, purpose: str, hello: dict[str, Any], timeout: float = 10.0) -> Channel:
    """The client's part, on a connected socket. `timeout` is in seconds, for each step.

    Raises WrongSecret; HandshakeError where the server hung up or did not answer, e.g. as strangers keep it busy.
    """
    sock.settimeout(timeout)
    try:
        session = run(_introduce(secret, purpose, hello), partial(send, sock), partial(receive, sock))
    except Unproven as exc:
        raise WrongSecret(str(exc)) from exc
    return Channel(sock, session)


def greet(secret: bytes, purpose: str) -> Steps[tuple[Session, dict[str, Any]]]:
    """The server's part, for `hdp.contract.secret.Dialogue`. Returns session and hello.

    Raises Unproven, HandshakeError.
    """
    session = yield from prove_as_server(secret, purpose)
    return session, (yield from _read(session))


def _introduce(secret: bytes, purpose: str, hello: dict[str, Any]) -> Steps[Session]:
    ours, session = yield from prove_as_client(secret, purpose)
    yield ours + _frame(session, hello), 0
    return session


def _frame(session: Session, value: dict[str, Any]) -> bytes:
    body = json.dumps(value).encode()
    return _LENGTH.pack(len(body)) + body + session.seal(body)


def _read(session: Session) -> Steps[dict[str, Any]]:
    head = yield b"", _LENGTH.size
    length = _length(head)
    data = yield b"", length + PROOF_BYTES
    if not session.genuine(data[:length], data[length:]):
        raise HandshakeError("a message was changed on its way")
    return _parse(data[:length])


def _length(head: bytes) -> int:
    (length,) = _LENGTH.unpack(head)
    if length > MESSAGE_MAX_BYTES:
        raise HandshakeError(f"a message of {length} bytes, expected at most {MESSAGE_MAX_BYTES}")
    return int(length)


def _parse(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as exc:
        raise HandshakeError(f"a message that isn't JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise HandshakeError(f"a message that holds a {type(value).__name__}, expected an object")
    return value


def send(sock: socket.socket, data: bytes) -> None:
    """All of `data`. Raises HandshakeError where the other end does not take it."""
    try:
        sock.sendall(data)
    except OSError as exc:
        raise HandshakeError(f"the connection broke: {exc}") from exc


def receive(sock: socket.socket, size: int) -> bytes:
    """Exactly `size` bytes, within the socket's timeout. Raises HandshakeError where the other end stops before."""
    parts: list[bytes] = []
    allowed = sock.gettimeout()
    deadline = None if allowed is None else time.monotonic() + allowed
    while size > 0:
        if deadline is not None and time.monotonic() > deadline:
            raise HandshakeError("no answer in time")  # a byte now and then doesn't count as one
        try:
            part = sock.recv(size)
        except TimeoutError as exc:
            raise HandshakeError("no answer in time") from exc
        except OSError as exc:
            raise HandshakeError(f"the connection broke: {exc}") from exc
        if not part:
            raise HandshakeError("the other end closed the connection")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
