"""What travels between the agents: first a mutual proof of the job's secret, then JSON lines.

The proof has fixed sizes and nothing to parse. The coordinator sends 32 random bytes; the agent answers 32 of its own
and its proof; the coordinator answers with its own (`hdp.contract.secret`). Neither
side interprets a byte of the other before its proof holds. A recorded proof is of no use: both sides contribute bytes.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from typing import Any

from hdp.contract.errors import LaunchError
from hdp.contract.secret import NONCE_BYTES, PROOF_BYTES, proof, proves

#: Longest message; a failure with its traceback needs some tens of kilobytes.
MAX_LINE_BYTES = 256 * 1024

_AGENT, _COORDINATOR = "agent", "coordinator"
Message = dict[str, Any]


class WireError(LaunchError):
    """The other side isn't of this job, or doesn't speak our protocol."""


def prove_as_agent(secret: bytes, receive: Callable[[int], bytes], send: Callable[[bytes], None]) -> None:
    """The agent's side of the proof. Raises WireError if the coordinator doesn't know `secret`."""
    theirs = receive(NONCE_BYTES)
    mine = secrets.token_bytes(NONCE_BYTES)
    send(mine + proof(secret, _AGENT, theirs, mine))
    if not proves(receive(PROOF_BYTES), secret, _COORDINATOR, theirs, mine):
        raise WireError("the coordinator doesn't know this job's secret")


def check_agent(secret: bytes, coordinator_nonce: bytes, answer: bytes) -> bytes:
    """The coordinator's proof in return for an agent's `answer`. Raises WireError if the answer is wrong."""
    nonce, theirs = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
    if not proves(theirs, secret, _AGENT, coordinator_nonce, nonce):
        raise WireError("it doesn't know this job's secret")
    return proof(secret, _COORDINATOR, coordinator_nonce, nonce)


def encode(message: Message) -> bytes:
    """`message` as one line. Raises WireError if it is too long."""
    line = json.dumps(message).encode() + b"\n"
    if len(line) > MAX_LINE_BYTES:
        raise WireError(f"a message of {len(line)} bytes, expected {MAX_LINE_BYTES} at most")
    return line


class LineReader:
    """Collects bytes and gives out whole messages."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Message]:
        """The messages that `data` completes. Raises WireError for what isn't one."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if max(map(len, [*lines, self._rest])) > MAX_LINE_BYTES:
            raise WireError(f"a line of more than {MAX_LINE_BYTES} bytes")
        return [_decode(line) for line in lines]


def _decode(line: bytes) -> Message:
    try:
        value = json.loads(line)
    except ValueError as exc:
        raise WireError(f"a line that isn't JSON: {line[:60]!r}") from exc
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise WireError(f"a message without a type: {line[:60]!r}")
    return value
