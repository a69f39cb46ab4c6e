"""The job's secret: where it is read, and how both ends of a connection prove that they know it (DESIGN I9).

::

    client -> server   magic, nonce_c (32 bytes)
    server -> client   nonce_s (32), proof of purpose "server ..." (32)
    client -> server   proof of purpose "client ..." (32)

A proof is an HMAC over its purpose and both nonces: the secret is never sent, a recorded proof is of no use, and
`purpose` keeps a proof for one kind of connection from serving for another. From secret and nonces follows the key of
a `Session`, which seals what is said afterwards. Nothing that the other end sent is interpreted before its proof holds.

The protocol is written once, without sockets, as generators (`Steps`); whoever has a socket drives them.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Generic, TypeVar

from hdp.contract.errors import ContractError, HdpError

#: Bytes of a secret, at least.
SECRET_MIN_BYTES = 32
#: Bytes of a challenge, and of a proof or seal.
NONCE_BYTES = PROOF_BYTES = 32
#: First bytes of every connection; the last one is the protocol's version.
MAGIC = b"hdp\x02"

T = TypeVar("T")
#: One end's part of a dialogue: yields (bytes to send, how many to receive then), is sent these, returns a result.
Steps = Generator[tuple[bytes, int], bytes, T]


class Unproven(HdpError):
    """The other end of a connection does not know the job's secret."""


def read_secret(path: str | Path) -> bytes:
    """The job's secret. Raises ContractError that names the file and what is wrong with it, never its content."""
    file = Path(path)
    try:
        with file.open("rb") as opened:
            status = os.fstat(opened.fileno())
            secret = opened.read()
    except OSError as exc:
        raise ContractError(f"the job's secret file {file} can't be read: {exc.strerror}") from exc
    mode = status.st_mode & 0o777
    if mode & 0o077:
        raise ContractError(f"the job's secret file {file} has mode {mode:o}: others could read it; use 600")
    if len(secret) < SECRET_MIN_BYTES:
        raise ContractError(
            f"the job's secret file {file} holds {len(secret)} bytes, expected {SECRET_MIN_BYTES} random bytes or more"
        )
    return secret


def proof(secret: bytes, purpose: str, *nonces: bytes) -> bytes:
    """What shows knowledge of `secret`: HMAC-SHA256 over `purpose` and both sides' nonces."""
    return hmac.digest(secret, b"".join([f"hdp {purpose} ".encode(), *nonces]), hashlib.sha256)


def proves(given: bytes, secret: bytes, purpose: str, *nonces: bytes) -> bool:
    """Whether `given` is the proof; takes the same time for every wrong one."""
    return hmac.compare_digest(given, proof(secret, purpose, *nonces))


class Session:
    """What both ends of a proven connection share: a key, and how many messages went each way.

    A seal covers direction, number and content, so that a message which was changed, repeated, left out or sent back
    on the way is noticed.
    """

    def __init__(self, key: bytes, side: str) -> None:
        """side: which end this is, "client" or "server"."""
        self._key = key
        self._ours, self._theirs = (b"c", b"s") if side == "client" else (b"s", b"c")
        self._sent = self._received = 0

    def seal(self, message: bytes) -> bytes:
        """The seal of the next message from here, PROOF_BYTES long."""
        self._sent += 1
        return self._tag(self._ours, self._sent, message)

    def genuine(self, message: bytes, seal: bytes) -> bool:
        """Whether `message` is the next one that the other end has sealed."""
        self._received += 1
        return hmac.compare_digest(seal, self._tag(self._theirs, self._received, message))

    def derive(self, purpose: str) -> bytes:
        """A key of 32 bytes for something else that these two ends do."""
        return hmac.digest(self._key, f"key {purpose}".encode(), hashlib.sha256)

    def _tag(self, direction: bytes, number: int, message: bytes) -> bytes:
        return hmac.digest(self._key, direction + number.to_bytes(8, "big") + message, hashlib.sha256)


def prove_as_client(secret: bytes, purpose: str) -> Steps[tuple[bytes, Session]]:
    """The client's part. Returns its proof, to be sent with what comes after it. Raises Unproven."""
    mine = os.urandom(NONCE_BYTES)
    answer = yield MAGIC + mine, NONCE_BYTES + PROOF_BYTES
    theirs, given = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
    if not proves(given, secret, f"server {purpose}", mine, theirs):
        raise Unproven("the server does not know the job's secret")
    session = Session(proof(secret, f"session {purpose}", mine, theirs), "client")
    return proof(secret, f"client {purpose}", mine, theirs), session


def prove_as_server(secret: bytes, purpose: str) -> Steps[Session]:
    """The server's part. Raises Unproven."""
    opening = yield b"", len(MAGIC) + NONCE_BYTES
    theirs = opening[len(MAGIC) :]
    if opening[: len(MAGIC)] != MAGIC:
        raise Unproven("it does not speak our protocol")
    mine = os.urandom(NONCE_BYTES)
    given = yield mine + proof(secret, f"server {purpose}", theirs, mine), PROOF_BYTES
    if not proves(given, secret, f"client {purpose}", theirs, mine):
        raise Unproven("it does not know the job's secret")
    return Session(proof(secret, f"session {purpose}", theirs, mine), "server")


def run(steps: Steps[T], send: Callable[[bytes], object], receive: Callable[[int], bytes]) -> T:
    """Drive `steps` over a connection that blocks. receive: gives exactly as many bytes as it is asked for, or raises.

    Returns and raises what the steps do.
    """
    outgoing, wanted = next(steps)
    while True:
        if outgoing:
            send(outgoing)
        try:
            outgoing, wanted = steps.send(receive(wanted) if wanted else b"")
        except StopIteration as stop:
            result: T = stop.value
            return result


class Dialogue(Generic[T]):
    """Runs one end's `Steps` for an event loop: bytes in, bytes out, never more of them in memory than `wanted`."""

    def __init__(self, steps: Steps[T]) -> None:
        """steps: of an end that receives first."""
        self._steps = steps
        self._received = b""
        self.result: T | None = None
        """What the steps returned; None: not there yet."""
        _, self.wanted = next(steps)
        """How many bytes `feed` takes now, at most."""

    def feed(self, data: bytes) -> bytes:
        """Take what came. Returns what is to be sent. Raises what the steps raise."""
        self._received += data
        self.wanted -= len(data)
        outgoing = b""
        if self.wanted == 0:
            received, self._received = self._received, b""
            try:
                outgoing, self.wanted = self._steps.send(received)
            except StopIteration as stop:
                self.result = stop.value
        return outgoing
