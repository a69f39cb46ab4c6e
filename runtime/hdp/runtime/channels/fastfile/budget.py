"""How much memory the mounts of a host may hold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hdp.contract import env
from hdp.contract.errors import ChannelError

MIB = 1 << 20
#: Below this a mount can't have a part for each of a few readers.
LEAST_BYTES = 32 * MIB
#: What a file's name, key and ETag take in the mount process: 210 with a million keys of 54 characters, and longer ones
#: take as much more.
_NAME_BYTES = 250
#: Of a mount's budget: what the allocator holds beyond the parts. 16 readers on loopback, with 512 MiB and other work
#: on both cores: 510 to 617 MiB in 5 runs; with a quarter 531 to 680 in 6.
_HOLES = 3
#: Of what the container may have at all: the rest is the script's.
_SHARE = 4


def budget_bytes(environ: Mapping[str, str], root: Path = Path("/")) -> int:
    """For all channels of this host together: what the user says, or 512 MiB, or a quarter of the container's memory.

    Raises ChannelError for a value that isn't a number of MiB.
    """
    text = environ.get(env.FASTFILE_BUDGET.name, "")
    if text:
        if not text.isdecimal() or int(text) * MIB < LEAST_BYTES:
            raise ChannelError(
                f"{env.FASTFILE_BUDGET.name} is {text!r}, expected a number of MiB, at least {LEAST_BYTES // MIB}"
            )
        return int(text) * MIB
    default = int(env.FASTFILE_BUDGET.default) * MIB
    limit = memory_limit(root)
    return default if limit is None else max(LEAST_BYTES, min(default, limit // _SHARE))


def for_parts(budget: int, files: int) -> int:
    """What a mount with so many files may hold of their contents: the rest is names, and holes between parts."""
    return max(LEAST_BYTES // 2, budget - budget // _HOLES - _NAME_BYTES * files)


def memory_limit(root: Path = Path("/")) -> int | None:
    """What the kernel lets this process's control groups have, in bytes; None for no limit."""
    found = []
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        for folder in _groups(root, name):
            try:
                text = (folder / name.rpartition("/")[2]).read_text(encoding="ascii").strip()
            except OSError:
                continue
            if text.isdecimal() and int(text) < 1 << 60:  # version 1 says "no limit" as a huge number
                found.append(int(text))
    return min(found, default=None)


def _groups(root: Path, name: str) -> list[Path]:
    """This process's group and those around it."""
    mounted = root / "sys/fs/cgroup" / name.rpartition("/")[0]
    wanted = "memory" if "/" in name else ""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return [mounted]
    own = [
        line.split(":", 2)[2]
        for line in lines
        if line.split(":", 2)[1:2] and wanted in line.split(":", 2)[1].split(",")
    ]
    path = Path(own[0].lstrip("/")) if own else Path()
    return [mounted / path, *(mounted / above for above in path.parents)]
