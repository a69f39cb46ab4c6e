"""How far the log of a job elsewhere was shown, kept on disk, so that following it again goes on from there.

One file a job, below ``cursors`` in $HDP_HOME. Only places in the log are in it, none of its lines.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hdp.contract.files import write_atomic
from hdp.estimator.naming import sanitised


def load(engine: str, where: str, job: str) -> Mapping[str, Any]:
    """The cursor of this job of `engine` in the region `where`; empty where none was kept, or it can't be read."""
    with contextlib.suppress(OSError, ValueError):
        value = json.loads(_file(engine, where, job).read_text(encoding="utf-8"))
        if isinstance(value, dict):
            return value
    return {}


def save(engine: str, where: str, job: str, cursor: Mapping[str, Any]) -> None:
    """Keep it. A disk that is full or read-only costs only the way back."""
    file = _file(engine, where, job)
    with contextlib.suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(file, json.dumps(dict(cursor)))


def _file(engine: str, where: str, job: str) -> Path:
    from hdp.estimator.engines.local.home import home_from

    return home_from().path / "cursors" / sanitised(f"{engine}-{where or 'default'}") / f"{sanitised(job)}.json"
