"""Who may connect: both ends of every connection prove that they know the job's secret (DESIGN I9).

::

    client -> server   magic, nonce_c (32 bytes)
    server -> client   nonce_s (32), proof of purpose "server ..." (32)
    client -> server   proof of purpose "client ..." (32), length (4), hello (JSON)

`purpose` keeps a proof for one kind of connection from serving for another. Nothing that the other side sent is
interpreted before its proof has been checked, and every read is bounded in bytes and in time.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from typing import Any

from hdp.contract.errors import CollectiveError
from hdp.contract.secret import NONCE_BYTES, PROOF_BYTES, proof, proves

MAGIC = b"hdp\x01"
HELLO_MAX_BYTES = 1 << 20


class HandshakeError(CollectiveError):
    """The other end did not prove that it knows the job's secret, or did not answer in time."""


def connect(sock: socket.socket, secret: bytes, purpose: str, hello: dict[str, Any], timeout: float = 10.0) -> None:
    """The client's part, on a connected socket. `timeout` is in seconds, for each step."""
    sock.settimeout(timeout)
    nonce = os.urandom(NONCE_BYTES)
    send(sock, MAGIC + nonce)
    theirs = receive(sock, NONCE_BYTES)
    answer = receive(sock, PROOF_BYTES)
    if not proves(answer, secret, f"server {purpose}", nonce, theirs):
        raise HandshakeError("the server does not know the job's secret")
    send(sock, proof(secret, f"client {purpose}", nonce, theirs))
    send_json(sock, hello)


def accept(sock: socket.socket, secret: bytes, purpose: str, timeout: float = 10.0) -> dict[str, Any]:
    """The server's part, on an accepted socket. Returns the client's hello."""
    sock.settimeout(timeout)
    opening = receive(sock, len(MAGIC) + NONCE_BYTES)
    if opening[: len(MAGIC)] != MAGIC:
        raise HandshakeError("a connection that isn't ours")
    theirs = opening[len(MAGIC) :]
    nonce = os.urandom(NONCE_BYTES)
    send(sock, nonce + proof(secret, f"server {purpose}", theirs, nonce))
    answer = receive(sock, PROOF_BYTES)
    if not proves(answer, secret, f"client {purpose}", theirs, nonce):
        raise HandshakeError("the client does not know the job's secret")
    return receive_json(sock)


def send_json(sock: socket.socket, value: dict[str, Any]) -> None:
    """Send a JSON object with its length before it."""
    body = json.dumps(value).encode()
    send(sock, struct.pack("!I", len(body)) + body)


def receive_json(sock: socket.socket) -> dict[str, Any]:
    """Receive what `send_json` sent."""
    (length,) = struct.unpack("!I", receive(sock, 4))
    if length > HELLO_MAX_BYTES:
        raise HandshakeError(f"a message of {length} bytes, expected at most {HELLO_MAX_BYTES}")
    try:
        value = json.loads(receive(sock, length))
    except ValueError as exc:
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
