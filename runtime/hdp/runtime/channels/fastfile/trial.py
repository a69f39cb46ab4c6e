"""``python -m hdp.runtime.channels.fastfile.trial``: mounts an empty channel for a moment, as a job would.

Prints ``{"by": "mount" or "fusermount3"}``, or, with exit code 1, ``{"why": ...}``. Nothing stays mounted.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hdp.contract.errors import ChannelError
from hdp.runtime.channels.fastfile.budget import LEAST_BYTES
from hdp.runtime.channels.fastfile.mode import Mount
from hdp.runtime.channels.fastfile.mounting import NoFuse, is_mounted
from hdp.runtime.channels.fastfile.wire import Task
from hdp.runtime.launch.linux import Children


class _Noting(Children):
    """Children whose programs can be told afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.programs: set[str] = set()

    def spawn(self, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        self.programs.add(Path(command[0]).name)
        return super().spawn(command, **options)


def try_mount() -> str:
    """Mount, look, unmount. Returns what mounted: ``mount``, the system call, or ``fusermount3``.

    Raises NoFuse that says why there is no FUSE, ChannelError for a mount that doesn't work.
    """
    children = _Noting()
    with tempfile.TemporaryDirectory(prefix="hdp-fuse-") as name:
        folder = Path(name).resolve()
        mount = Mount(Task("trial", str(folder), (), str(folder), LEAST_BYTES), children, lambda: False)
        try:
            seen = is_mounted(folder) and not any(folder.iterdir())
        finally:
            mount.stop()
        if not seen:
            raise ChannelError("a file system was mounted, but it isn't seen")
        if is_mounted(folder):
            raise ChannelError(f"{folder} can't be unmounted; `fusermount3 -u {folder}` may do it")
    return "fusermount3" if "fusermount3" in children.programs else "mount"


def main() -> int:
    """Try it, and print what came of it."""
    try:
        answer = {"by": try_mount()}
    except NoFuse as exc:
        answer = {"why": exc.why}
    except (ChannelError, OSError) as exc:
        answer = {"why": str(exc)}
    print(json.dumps(answer))
    return 0 if "by" in answer else 1


if __name__ == "__main__":
    sys.exit(main())
