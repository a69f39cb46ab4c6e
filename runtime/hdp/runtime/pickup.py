"""Takes the job's secret from the channel in which a service delivers it (see `hdp.contract.delivery`)."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from hdp.contract.delivery import SECRET, SECRET_CHANNEL
from hdp.contract.errors import ContractError
from hdp.contract.files import write_atomic
from hdp.runtime.settings import Settings


def with_secret(settings: Settings) -> Settings:
    """`settings` with the delivered secret, where HDP_SECRET_FILE names none.

    The service writes files that all may read; from now on only this user may. Raises ContractError.
    """
    delivered = settings.layout.channel(SECRET_CHANNEL) / SECRET
    if settings.secret_file is not None or not delivered.is_file():
        return settings
    try:
        return replace(settings, secret_file=_private(delivered, settings.layout.root / "hdp-secret"))
    except OSError as exc:
        raise ContractError(f"the job's secret {delivered} can't be made private: {exc}") from exc


def _private(delivered: Path, other: Path) -> Path:
    """The file itself where it is ours, else a copy of it."""
    if delivered.stat().st_uid == os.geteuid() and os.access(delivered.parent, os.W_OK):
        delivered.chmod(0o600)
        return delivered
    write_atomic(other, delivered.read_bytes())
    return other
