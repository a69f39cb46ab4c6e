"""Who may connect: both ends of every connection prove that they know the job's secret (DESIGN I9).

::

    client -> server   magic, nonce_c (32 bytes)
    server -> client   nonce_s (32), HMAC-SHA256(secret, "server" | purpose | nonce_c | nonce_s)
    client -> server   HMAC-SHA256(secret, "client" | purpose | nonce_c | nonce_s), length (4), hello (JSON)

`purpose` keeps a proof for one kind of connection from serving for another. Nothing that the other side sent is
interpreted before its proof has been checked, and every read is bounded in bytes and in time.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
import struct
from pathlib import Path
from typing import Any

from hdp.contract.errors import CollectiveError

MAGIC = b"hdp\x01"
NONCE_BYTES = 32
SECRET_MIN_BYTES = 16
HELLO_MAX_BYTES = 1 << 20


class HandshakeError(CollectiveError):
    """The other end did not prove that it knows the job's secret, or did not answer in time."""


def read_secret(path: str | Path) -> bytes:
    """The job's secret. Raises HandshakeError for a file that others may read, or that is too short."""
    file = Path(path)
    try:
        mode = file.stat().st_mode
        secret = file.read_bytes()
    except OSError as exc:
        raise HandshakeError(f"the job's secret file {file} can't be read: {exc}") from exc
    if mode & 0o077:
        raise HandshakeError(f"the job's secret file {file} has mode {mode & 0o777:o}; others could read it, use 600")
    if len(secret) < SECRET_MIN_BYTES:
        raise HandshakeError(
            f"the job's secret file {file} has {len(secret)} bytes, expected {SECRET_MIN_BYTES} or more"
        )
    return secret


def connect(sock: socket.socket, secret: bytes, purpose: str, hello: dict[str, Any], timeout: float = 10.0) -> None:
    """The client's part, on a connected socket. `timeout` is in seconds, for each step."""
    sock.settimeout(timeout)
    nonce = os.urandom(NONCE_BYTES)
    send(sock, MAGIC + nonce)
    theirs = receive(sock, NONCE_BYTES)
    proof = receive(sock, NONCE_BYTES)
    if not hmac.compare_digest(proof, _proof(secret, "server", purpose, nonce, theirs)):
        raise HandshakeError("the server does not know the job's secret")
    send(sock, _proof(secret, "client", purpose, nonce, theirs))
    send_json(sock, hello)


def accept(sock: socket.socket, secret: bytes, purpose: str, timeout: float = 10.0) -> dict[str, Any]:
    """The server's part, on an accepted socket. Returns the client's hello."""
    sock.settimeout(timeout)
    opening = receive(sock, len(MAGIC) + NONCE_BYTES)
    if opening[: len(MAGIC)] != MAGIC:
        raise HandshakeError("a connection that isn't ours")
    theirs = opening[len(MAGIC) :]
    nonce = os.urandom(NONCE_BYTES)
    send(sock, nonce + _proof(secret, "server", purpose, theirs, nonce))
    proof = receive(sock, NONCE_BYTES)
    if not hmac.compare_digest(proof, _proof(secret, "client", purpose, theirs, nonce)):
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
    """Exactly `size` bytes. Raises HandshakeError where the other end stops before."""
    parts: list[bytes] = []
    while size > 0:
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


def _proof(secret: bytes, role: str, purpose: str, client_nonce: bytes, server_nonce: bytes) -> bytes:
    text = f"hdp {role} {purpose} ".encode() + client_nonce + server_nonce
    return hmac.new(secret, text, hashlib.sha256).digest()
