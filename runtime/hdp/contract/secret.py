"""The job's secret: where it is read, and how it is proved without being sent (DESIGN I9)."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from hdp.contract.errors import ContractError

#: Bytes of a secret, at least.
SECRET_MIN_BYTES = 32
#: Bytes of a challenge, and of a proof.
NONCE_BYTES = PROOF_BYTES = 32


def read_secret(path: str | Path) -> bytes:
    """The job's secret. Raises ContractError that names the file and what is wrong with it, never its content."""
    file = Path(path)
    try:
        secret, mode = file.read_bytes(), file.stat().st_mode & 0o777
    except OSError as exc:
        raise ContractError(f"the job's secret file {file} can't be read: {exc.strerror}") from exc
    if mode & 0o077:
        raise ContractError(f"the job's secret file {file} has mode {mode:o}: others could read it; use 600")
    if len(secret) < SECRET_MIN_BYTES:
        raise ContractError(
            f"the job's secret file {file} holds {len(secret)} bytes, expected {SECRET_MIN_BYTES} random bytes or more"
        )
    return secret


def proof(secret: bytes, purpose: str, *nonces: bytes) -> bytes:
    """What shows knowledge of `secret`: HMAC-SHA256 over `purpose` and both sides' nonces.

    `purpose` says which side of which kind of connection proves itself, so that no proof serves for another.
    """
    return hmac.new(secret, b"".join([f"hdp {purpose} ".encode(), *nonces]), hashlib.sha256).digest()


def proves(given: bytes, secret: bytes, purpose: str, *nonces: bytes) -> bool:
    """Whether `given` is the proof; takes the same time for every wrong one."""
    return hmac.compare_digest(given, proof(secret, purpose, *nonces))
