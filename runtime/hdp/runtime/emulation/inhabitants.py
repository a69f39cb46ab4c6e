"""Ends whatever runs in a set of network namespaces."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection
from pathlib import Path

Identity = tuple[int, int]
"""Device and inode of a namespace: who it is while somebody holds it open, and nobody's before or after."""


def identity(descriptor: int) -> Identity:
    """The namespace that a descriptor holds."""
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def of(namespaces: Collection[Identity]) -> list[int]:
    """Process IDs of all that are in one of the network namespaces. A snapshot; zombies are in none."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            # Gone meanwhile, or another user's.
            with contextlib.suppress(OSError):
                status = (entry / "ns/net").stat()
                if (status.st_dev, status.st_ino) in namespaces:
                    found.append(int(entry.name))
    return found


def evict(namespaces: Collection[Identity], seconds: float = 10.0) -> list[int]:
    """SIGKILL all that is in the network namespaces until nothing is left. The caller holds them open meanwhile.

    Returns who was still there after `seconds`: nobody, unless the kernel holds one.
    """
    deadline = time.monotonic() + seconds
    while left := of(namespaces):
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            break
        time.sleep(0.005)
    return left
