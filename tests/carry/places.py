"""Where these tests find an older Python, and this checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hdp"


def python39() -> str:
    """A Python 3.9 of this machine; skips the test where there is none."""
    candidates = [shutil.which("python3.9"), *map(str, Path.home().glob(".pyenv/versions/3.9*/bin/python"))]
    for python in filter(None, candidates):
        done = subprocess.run([python, "-c", "import sys; assert sys.version_info[:2] == (3, 9)"], check=False)
        if done.returncode == 0:
            return python
    pytest.skip("no python3.9 here; the test in a Debian 11 root does the same and more")
