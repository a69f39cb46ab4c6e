"""What processes hold open, by Linux's /proc."""

import contextlib
from pathlib import Path


def targets(pid: int) -> dict[Path, str]:
    """Where each descriptor of a process leads, by its path; not those that are closed meanwhile. Raises OSError."""
    found = {}
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found[descriptor] = str(descriptor.readlink())
    return found
