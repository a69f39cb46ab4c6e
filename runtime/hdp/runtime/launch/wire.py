"""What travels between the agents: first a mutual proof of the job's secret, then sealed JSON lines.

The proof is `hdp.contract.secret`'s: neither side interprets a byte of the other before its proof holds. A line is the
message's seal in hexadecimal, a space, and the message.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hdp.contract.errors import LaunchError
from hdp.contract.secret import PROOF_BYTES, Session, Steps, Unproven, prove_as_client, prove_as_server, run

#: Longest message; a failure with its traceback needs some tens of kilobytes.
MAX_LINE_BYTES = 256 * 1024

_PURPOSE = "agent"
_SEAL_CHARS = 2 * PROOF_BYTES
Message = dict[str, Any]


class WireError(LaunchError):
    """The other side isn't of this job, or doesn't speak our protocol."""


def prove_as_agent(secret: bytes, receive: Callable[[int], bytes], send: Callable[[bytes], object]) -> Session:
    """The agent's side of the proof. Raises WireError if the coordinator doesn't know `secret`."""
    try:
        return run(_prove(secret), send, receive)
    except Unproven as exc:
        raise WireError(
            "the coordinator does not know this job's secret; HDP_SECRET_FILE must be the same on every host"
        ) from exc


def prove_as_coordinator(secret: bytes) -> Steps[Session]:
    """The coordinator's side. Raises Unproven."""
    return prove_as_server(secret, _PURPOSE)


def _prove(secret: bytes) -> Steps[Session]:
    ours, session = yield from prove_as_client(secret, _PURPOSE)
    yield ours, 0
    return session


def encode(message: Message) -> bytes:
    """`message` as text. Raises WireError if it is too long."""
    text = json.dumps(message).encode()
    if len(text) > MAX_LINE_BYTES:
        raise WireError(f"a message of {len(text)} bytes, expected {MAX_LINE_BYTES} at most")
    return text


def seal(session: Session, text: bytes) -> bytes:
    """An encoded message as the next line of `session`."""
    return session.seal(text).hex().encode() + b" " + text + b"\n"


class LineReader:
    """Collects bytes and gives out whole messages."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._rest = b""

    def feed(self, data: bytes) -> list[Message]:
        """The messages that `data` completes. Raises WireError for what isn't one."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if max(map(len, [*lines, self._rest])) > _SEAL_CHARS + 1 + MAX_LINE_BYTES:
            raise WireError(f"a line of more than {MAX_LINE_BYTES} bytes")
        return [self._open(line) for line in lines]

    def _open(self, line: bytes) -> Message:
        given, text = line[:_SEAL_CHARS], line[_SEAL_CHARS + 1 :]
        try:
            genuine = self._session.genuine(text, bytes.fromhex(given.decode("ascii")))
        except ValueError:
            genuine = False
        if not genuine:
            raise WireError("a line that was changed on its way, or isn't the other side's")
        return _decode(text)


def _decode(text: bytes) -> Message:
    try:
        value = json.loads(text)
    except ValueError as exc:
        raise WireError(f"a line that isn't JSON: {text[:60]!r}") from exc
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise WireError(f"a message without a type: {text[:60]!r}")
    return value
