"""What an agent leaves behind: the report and the failure file; and the folder that it removes."""

from __future__ import annotations

import logging
import os
import secrets
from pathlib import Path

from hdp.contract.errors import LaunchError
from hdp.contract.files import Layout, new_run_folder, write_atomic, write_json
from hdp.contract.outcome import HostReport, to_json

log = logging.getLogger(__name__)


def leave(layout: Layout, report: HostReport) -> None:
    """Write the report and, where the job failed, the failure file. A full disk is logged, not raised."""
    try:
        layout.output.mkdir(parents=True, exist_ok=True)
        write_json(layout.report, to_json(report))
        if report.first_cause is not None:
            write_atomic(layout.failure, report.first_cause.summary(), 0o644)
    except OSError as exc:
        log.error("the report can't be written to %s: %s", layout.output, exc)


def leave_mark(layout: Layout) -> None:
    """Make the file that says that the ranks are about to start. A full disk is logged, not raised."""
    try:
        layout.started.touch()
    except OSError as exc:
        log.error("%s can't be made: %s", layout.started, exc)


def make_run_folder(chosen: Path | None) -> Path:
    """Make the folder (0700, a short path) for the server's socket, the ranks' error files and temporary files.

    ``tmp`` in it is TMPDIR for all that the agent starts, unless somebody has chosen another: processes that are
    killed don't remove what they have there.

    chosen: where the engine wants it, so that it can remove what a killed agent leaves; None: anywhere.
    Raises LaunchError.
    """
    folder = chosen or new_run_folder()
    try:
        folder.mkdir(mode=0o700)
        (folder / "tmp").mkdir(mode=0o700)
    except OSError as exc:
        raise LaunchError(
            f"the folder for this host's sockets can't be made: {exc}; it needs a writable TMPDIR"
        ) from exc
    os.environ.setdefault("TMPDIR", str(folder / "tmp"))
    return folder


def make_secret(path: Path) -> Path:
    """A secret for the only host of a job that has none."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "wb") as f:
        f.write(secrets.token_bytes(32))
    return path
