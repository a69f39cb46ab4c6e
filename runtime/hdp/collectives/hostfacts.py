"""What this host is made of: processors, memory, and how fast one core moves data. Reads /proc and /sys."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hdp.collectives.topology import NumaNode

_NODES = Path("/sys/devices/system/node")
#: Out of the caches that a core has to itself, and small enough that a look at it costs milliseconds.
_BUFFER_BYTES = 16 << 20
#: A chunk in the arena: what a rank adds to stays in its core's cache.
_CHUNK_BYTES = 256 << 10
_REPEATS = 3


def usable_cpus() -> frozenset[int]:
    """Numbers of the processors that this process may run on."""
    return frozenset(os.sched_getaffinity(0))


def cpu_model() -> str:
    """The processor's name; empty where the kernel doesn't say."""
    match = re.search(r"^model name\s*: (.*)$", _text(Path("/proc/cpuinfo")), re.MULTILINE)
    return match[1].strip() if match else ""


def machine_id() -> str:
    """The same for all processes under one kernel, and different after a restart."""
    return _text(Path("/proc/sys/kernel/random/boot_id")).strip()


def memory_bytes() -> int:
    """Memory that this host's processes may use: the machine's, or less where their control group has a limit."""
    match = re.search(r"^MemTotal:\s*(\d+) kB", _text(Path("/proc/meminfo")), re.MULTILINE)
    total = int(match[1]) << 10 if match else 0
    limits = [_text(path).strip() for path in _limit_files()]
    return min([total, *(int(limit) for limit in limits if limit.isdigit())])


def numa_nodes() -> tuple[NumaNode, ...]:
    """The memory nodes that have processors for us; one of everything where the kernel shows none."""
    usable, nodes = usable_cpus(), []
    for folder in sorted(_NODES.glob("node[0-9]*"), key=lambda path: int(path.name.removeprefix("node"))):
        cpus = tuple(sorted(usable & parse_cpu_list(_text(folder / "cpulist"))))
        match = re.search(r"MemTotal:\s*(\d+) kB", _text(folder / "meminfo"))
        if cpus:
            nodes.append(NumaNode(cpus, int(match[1]) << 10 if match else 0))
    return tuple(nodes) or (NumaNode(tuple(sorted(usable)), memory_bytes()),)


def parse_cpu_list(text: str) -> frozenset[int]:
    """The kernel's ``0-3,8`` as numbers."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def core_speed() -> tuple[float, float]:
    """`Host.copy_rate` and `Host.add_rate`: the best of a few tries, in some 30 ms."""
    source, target = np.ones(_BUFFER_BYTES // 4, np.float32), np.zeros(_BUFFER_BYTES // 4, np.float32)
    chunk = np.zeros(_CHUNK_BYTES // 4, np.float32)
    pieces = source.reshape(-1, chunk.size)

    def add() -> None:
        for piece in pieces:
            np.add(chunk, piece, out=chunk)

    return _best(lambda: np.copyto(target, source)), _best(add)


def facts() -> dict[str, Any]:
    """What a `topology.Host` holds of this host, but for its name, address, ranks and speed."""
    return {
        "machine": machine_id(),
        "cpus": len(usable_cpus()),
        "cpu_model": cpu_model(),
        "memory_bytes": memory_bytes(),
        "numa": [{"cpus": list(node.cpus), "memory_bytes": node.memory_bytes} for node in numa_nodes()],
    }


def _best(action: Callable[[], object]) -> float:
    times = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return _BUFFER_BYTES / min(times)


def _limit_files() -> list[Path]:
    """Where the limits of this process's control groups are, from its own up to the root."""
    root = Path("/sys/fs/cgroup")
    match = re.search(r"^0::/(.*)$", _text(Path("/proc/self/cgroup")), re.MULTILINE)
    if match is None:
        return [root / "memory" / "memory.limit_in_bytes"]
    own = root / match[1]
    return [folder / "memory.max" for folder in (own, *own.parents) if folder.is_relative_to(root)]


def _text(path: Path) -> str:
    """What is in `path`; empty where it can't be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
