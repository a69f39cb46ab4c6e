"""A file that the agent touches while its loop turns: ``python -m hdp.runtime.launch.heartbeat`` is a health check.

It says whether the agent lives, not whether the training gets on: for that there is the stall message.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from hdp.contract import env

SECONDS = 5.0
#: The loop may be busy with a long line of events on a machine that is short of processors.
_LATE_SECONDS = 60.0


def beat(environ: Mapping[str, str] = os.environ) -> None:
    """Touch the file, if one is wanted. What can't be touched gets old, and that is noticed."""
    if path := environ.get(env.HEARTBEAT_FILE.name):
        with contextlib.suppress(OSError):
            Path(path).touch()


def complaint(environ: Mapping[str, str], now: float) -> str:
    """What is wrong with the agent of this container; empty: it lives. now: Unix seconds."""
    path = environ.get(env.HEARTBEAT_FILE.name)
    if not path:
        return f"{env.HEARTBEAT_FILE.name} isn't set, so nobody can tell"
    try:
        age = now - Path(path).stat().st_mtime
    except OSError as exc:
        return f"{path}: {exc.strerror}; no agent has started here"
    return "" if age <= _LATE_SECONDS else f"the agent's loop was last seen {age:.0f} s ago"


if __name__ == "__main__":
    wrong = complaint(os.environ, time.time())
    print(wrong or "the agent lives")
    sys.exit(1 if wrong else 0)
