"""What an agent leaves behind: the report and the failure file; and the folder that it removes."""

from __future__ import annotations

import logging
import os
import secrets
import tempfile
from pathlib import Path

from hdp.contract.files import Layout, write_atomic, write_json
from hdp.contract.outcome import HostReport, to_json

log = logging.getLogger(__name__)

#: Longest XDG_RUNTIME_DIR in which a socket's name still fits into the kernel's 108 bytes.
_RUNTIME_DIR_CHARS = 60


def leave(layout: Layout, report: HostReport) -> None:
    """Write the report and, where the job failed, the failure file. A full disk is logged, not raised."""
    try:
        layout.output.mkdir(parents=True, exist_ok=True)
        write_json(layout.report, to_json(report))
        if report.first_cause is not None:
            write_atomic(layout.failure, report.first_cause.summary(), 0o644)
    except OSError as exc:
        log.error("the report can't be written to %s: %s", layout.output, exc)


def make_run_folder() -> Path:
    """A fresh folder (0700) with a short path, for the server's socket and the ranks' error files."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    use_runtime = runtime and len(runtime) < _RUNTIME_DIR_CHARS and os.access(runtime, os.W_OK)
    parent = runtime if use_runtime else "/tmp" if os.access("/tmp", os.W_OK) else None
    return Path(tempfile.mkdtemp(prefix="hdp-", dir=parent))


def make_secret(path: Path) -> Path:
    """A secret for the only host of a job that has none."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "wb") as f:
        f.write(secrets.token_bytes(32))
    return path
