"""What happened when to every operation, for Perfetto and chrome://tracing: HDP_TIMELINE=1.

Each rank and each host's server write a file of their own, in Chrome's trace event format: a JSON array, an event a
line, which lacks its end where the process was killed. ``hdp timeline`` merges them. The files are in the job's output
($SM_OUTPUT_DATA_DIR), elsewhere in $HDP_TIMELINE_DIR, by default the current folder.

The core writes them; here is where they are and how they are opened. What it can't write doesn't fail a job.
"""

from __future__ import annotations

import ctypes
import fcntl
import logging
import os
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from hdp.collectives import library
from hdp.contract import env
from hdp.contract.errors import InvalidCollective

logger = logging.getLogger(__name__)

#: The folder that becomes the job's output.
OUTPUT = "SM_OUTPUT_DATA_DIR"
#: The core takes a lower descriptor for none.
_LEAST_FD = 3
#: How often each file was begun: a process may join again, and keeps what it did before.
_opened: Counter[Path] = Counter()


def folder_of(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Where timelines go; None: none is asked for. Raises InvalidCollective that names the variable."""
    value = environ.get(env.TIMELINE.name) or env.TIMELINE.default
    if value not in ("0", "1"):
        raise InvalidCollective(f"${env.TIMELINE.name} is {value!r}; expected 0 or 1")
    if value == "0":
        return None
    return Path(environ.get(OUTPUT) or environ.get(env.TIMELINE_DIR.name) or ".").absolute()


def open_file(folder: Path, who: str) -> int:
    """A descriptor of the new, empty file of `who` ("rank-3"); 0, with a line in the log: there can be none."""
    stem = f"hdp-timeline-{re.sub(r'[^A-Za-z0-9._-]', '_', who)}"
    _opened[folder / stem] += 1
    again = _opened[folder / stem]
    path = folder / (f"{stem}.json" if again == 1 else f"{stem}.{again}.json")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    except OSError as exc:
        logger.warning("there is no timeline of %s: %s can't be written: %s", who, path, exc.strerror)
        return 0
    try:
        return fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, _LEAST_FD)
    finally:
        os.close(opened)


def trace(lib: ctypes.CDLL, handle: int, folder: Path, rank: int) -> None:
    """Let the communicator `handle` write a timeline from now on."""
    fd = open_file(folder, f"rank-{rank}")
    if not fd:
        return
    try:
        text = library.ErrorText()
        if lib.hdp_comm_timeline(handle, fd, _log_function, *text.arguments) != library.Status.OK:
            logger.warning("there is no timeline of rank %d: %s", rank, text)
    finally:
        os.close(fd)


def _log(line: bytes) -> None:
    """Why the core writes no more."""
    logger.warning("%s", line.decode(errors="replace"))


_log_function = library.LogFunction(_log)
