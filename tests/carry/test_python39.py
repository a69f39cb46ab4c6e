"""What runs in a container runs on Python 3.9: the images of older frameworks have it (TensorFlow 2.9's, for one)."""

from __future__ import annotations

import subprocess
import sys

import pytest

from .places import ROOT, python39

RUNTIME = ROOT / "runtime"


def test_the_runtime_asks_for_nothing_newer_than_python_39() -> None:
    """vermin: no call, member or keyword of Python 3.10 or newer in any file of the runtime."""
    pytest.importorskip("vermin", reason="vermin isn't installed: pip install vermin")
    folders = [str(RUNTIME / "hdp"), str(RUNTIME / "smdistributed")]
    command = [sys.executable, "-c", "import vermin; vermin.main()", "-t=3.9-", "--no-tips", "--violations", *folders]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_needs_no_framework_can_be_imported_by_python_39() -> None:
    """Contract, runtime, collectives and metrics, module by module; the adapters are compiled."""
    done = subprocess.run([python39(), "-c", IMPORTS, str(RUNTIME)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout) == len(list(RUNTIME.rglob("*.py")))


IMPORTS = """
import importlib, sys
from pathlib import Path
root = Path(sys.argv[1])
sys.path.insert(0, str(root))
files = sorted(root.rglob("*.py"))
for file in files:
    parts = file.relative_to(root).with_suffix("").parts
    if parts[1] in ("torch", "tensorflow", "keras") or parts[0] == "smdistributed":
        compile(file.read_text(), str(file), "exec")
        continue
    try:
        importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    except ModuleNotFoundError as exc:
        if exc.name != "numpy":  # whose packages few old interpreters have; in the Debian 11 root it is there
            raise
print(len(files))
"""


def test_a_short_column_is_refused_on_every_python() -> None:
    """zip_strict of [1, 2] and [3]: ValueError at the end, by the way of Python 3.9 too."""
    from hdp.contract.zipping import _checked, zip_strict

    assert list(zip_strict([1, 2], "ab")) == list(_checked(([1, 2], "ab"))) == [(1, "a"), (2, "b")]
    for zipped in (zip_strict([1, 2], [3]), _checked(([1, 2], [3]))):
        with pytest.raises(ValueError, match="shorter"):
            list(zipped)
