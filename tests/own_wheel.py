"""The wheel that `make wheel` builds, of the sources as they are now: once, for all tests of a run."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
_SOURCES = ("runtime", "estimator", "pyproject.toml", "README.md", "tools/wheel.sh")


def linux_wheel() -> Path:
    """Its core is for glibc 2.28. Builds it unless one lies in dist that is newer than all it's made of."""
    if found := _found():
        return found
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(
        ["sh", "tools/wheel.sh"], cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout[-6000:]
    found = _found()
    assert found, "tools/wheel.sh has built no wheel for glibc 2.28"
    return found


def _found() -> "Path | None":
    files = [f for name in _SOURCES for f in (ROOT / name, *(ROOT / name).rglob("*"))]
    newest = max(f.stat().st_mtime for f in files if f.is_file() and "__pycache__" not in f.parts)
    wheels = (ROOT / "dist").glob("hdp_train-*-py3-none-manylinux_2_28_*.whl")
    return next((w for w in wheels if w.stat().st_mtime >= newest), None)
