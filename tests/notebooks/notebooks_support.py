"""Which notebooks there are, and what all processes of a test run have in common."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMES = [path.stem for path in sorted((ROOT / "notebooks").glob("*.ipynb"))]
#: The one that needs a Docker daemon.
DOCKER = "07_build_containers"


def common(factory: pytest.TempPathFactory, name: str) -> Path:
    """A folder that all of pytest-xdist's processes share."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    folder.mkdir(exist_ok=True)
    return folder


@contextlib.contextmanager
def alone_with(file: Path) -> Iterator[None]:
    """One process at a time; the others wait."""
    with file.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
