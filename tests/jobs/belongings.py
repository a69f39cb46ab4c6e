"""What a local job has on this machine, counted from /proc: processes, sockets, memfds, mounts, namespaces, folders.

`of_job` is taken while the job runs and `left` after it: what of the former is still there, and what else has come. A
process belongs to a job by the secret's path in its environment or the job's folder in its arguments, and so do all
processes below it: those need no name of ours.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hdp.contract.errors import HdpError
from hdp.estimator.engines.local import processes, store
from hdp.estimator.engines.local.home import JobDir
from hdp.estimator.engines.local.processes import ProcessId

_NAMESPACES = ("mnt", "uts", "user", "ipc", "net", "pid", "cgroup")
#: A closed TCP connection's number, kept by the kernel for a minute. It is nobody's, and can't be avoided.
_TIME_WAIT = "06"
#: Others' names come and go in it, so only those count that a process of the job had mapped.
_SHARED_MEMORY = "/dev/shm"


@dataclass(frozen=True)
class Belongings:
    """By kind; each thing by a name that no other thing of this boot has."""

    processes: frozenset[ProcessId]
    sockets: frozenset[str]
    memfds: frozenset[str]
    mounts: frozenset[str]
    namespaces: frozenset[str]
    folders: frozenset[str]

    def kinds(self) -> dict[str, frozenset[object]]:
        """Kind to things."""
        return {kind: frozenset(things) for kind, things in vars(self).items()}


def of_job(job: JobDir) -> Belongings:
    """What the job has now."""
    pids = job_pids(job)
    own = _namespaces(os.getpid())
    namespaces = {ns for pid in pids for ns in _namespaces(pid) - own}
    pids |= {pid for pid in _pids() if namespaces & _namespaces(pid)}  # whoever is in there, whatever its name
    return Belongings(
        processes=frozenset(_identify(pids)),
        sockets=frozenset(file for pid in pids for file in _files(pid) if file.startswith("socket:")),
        memfds=frozenset(memfd for pid in pids for memfd in _memfds(pid)),
        mounts=_mounts_of(job),
        namespaces=frozenset(namespaces),
        folders=frozenset(name for pid in pids for name in _shared_names(pid)),
    )


def left(job: JobDir, had: Belongings, folders_before: frozenset[str]) -> dict[str, list[str]]:
    """Kind to what the job has left; a kind of which nothing is left is missing. had: what the job had before."""
    own = {p for p in had.processes if processes.alive(p)} | set(_identify(job_pids(job)))
    found = {
        "processes": own,
        "sockets": (had.sockets & _all_sockets()) | _tcp_sockets(_addresses(job)),
        "memfds": had.memfds & {memfd for pid in _pids() for memfd in _memfds(pid)},
        "mounts": _mounts_of(job),
        "namespaces": had.namespaces & ({ns for p in own for ns in _namespaces(p.pid)} | set(_held_namespaces())),
        "folders": {path for path in (folders() - folders_before) | had.folders if Path(path).exists()},
    }
    return {kind: sorted(map(_shown, things)) for kind, things in found.items() if things}


def folders() -> frozenset[str]:
    """Everything in the folders for temporary things outside the job's own."""
    places = [tempfile.gettempdir(), os.environ.get("XDG_RUNTIME_DIR", "")]
    return frozenset(str(path) for place in places if place and Path(place).is_dir() for path in Path(place).iterdir())


def job_pids(job: JobDir) -> set[int]:
    """Every process of the job that runs, with all below it."""
    marker, folder = f"HDP_SECRET_FILE={job.secret}".encode(), os.fsencode(job.path)
    own = [pid for pid in _pids() if marker in _read(pid, "environ").split(b"\0") or _names(pid, folder)]
    return set(own) | set(_below(own))


def arguments(pid: int) -> list[str]:
    """Argument vector; empty where the process is gone."""
    return os.fsdecode(_read(pid, "cmdline").rstrip(b"\0")).split("\0")


def environment(pid: int) -> Mapping[str, str]:
    """Environment at the start of its program; empty where the process is gone."""
    pairs = (os.fsdecode(line).partition("=") for line in _read(pid, "environ").split(b"\0"))
    return {name: value for name, _, value in pairs}


def parents() -> dict[int, int]:
    """Process to its parent, zombies left out."""
    found = {}
    for pid in _pids():
        fields = _read(pid, "stat").rpartition(b")")[2].split()
        if fields and fields[0] not in (b"Z", b"X"):
            found[pid] = int(fields[1])
    return found


def _names(pid: int, folder: bytes) -> bool:
    return any((argument + b"/").startswith(folder + b"/") for argument in _read(pid, "cmdline").split(b"\0"))


def _below(pids: Iterable[int]) -> Iterator[int]:
    children: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        children.setdefault(parent, []).append(pid)
    todo = list(pids)
    while todo:
        below = children.pop(todo.pop(), [])
        todo += below
        yield from below


def _pids() -> list[int]:
    return [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]


def _identify(pids: Iterable[int]) -> Iterator[ProcessId]:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            if processes.alive(process := processes.identify(pid)):
                yield process


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # it is gone, or somebody else's
        return b""


def _files(pid: int) -> Iterator[str]:
    """What the process has open, as its links in /proc say it."""
    return (link for _, link in _named_files(pid))


def _named_files(pid: int) -> Iterator[tuple[str, str]]:
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208 (Path.iterdir is five times as slow here)
            with contextlib.suppress(OSError):
                yield name, os.readlink(f"/proc/{pid}/fd/{name}")  # noqa: PTH115 (the same)


def _all_sockets() -> set[str]:
    """Every socket of this network namespace, as ``socket:[inode]``."""
    tables = [(_table("unix"), 6), *((_table(name), 9) for name in ("tcp", "tcp6", "udp", "udp6"))]
    return {f"socket:[{row[column]}]" for rows, column in tables for row in rows if row[column] != "0"}


def _tcp_sockets(addresses: set[str]) -> set[str]:
    """Sockets on these addresses, in whatever state; also those that no process has any more."""
    found = set()
    for _, local, _, state, *_ in _table("tcp"):
        if state != _TIME_WAIT and (address := _dotted(local)).rpartition(":")[0] in addresses:
            found.add(f"{address} in state {state}")
    return found


def _table(name: str) -> list[list[str]]:
    try:
        return [line.split() for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    except FileNotFoundError:  # a kernel without IPv6
        return []


def _dotted(local: str) -> str:
    address, port = local.split(":")
    return ".".join(str(byte) for byte in reversed(bytes.fromhex(address))) + f":{int(port, 16)}"


def _memfds(pid: int) -> Iterator[str]:
    """Memfds that the process has open or mapped."""
    for line in _read(pid, "maps").splitlines():
        if b"/memfd:" in line:
            yield f"memfd {os.fsdecode(line.split()[4])}"
    for name, link in _named_files(pid):
        if link.startswith("/memfd:"):
            with contextlib.suppress(OSError):
                yield f"memfd {Path(f'/proc/{pid}/fd/{name}').stat().st_ino}"


def _namespaces(pid: int) -> set[str]:
    found = set()
    for kind in _NAMESPACES:
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/{pid}/ns/{kind}"))  # noqa: PTH115
    return found


def _held_namespaces() -> Iterator[str]:
    """Namespaces that are held by an open file or a mount.

    Those of all processes would tell nothing: the kernel gives a namespace's number to the next one at once.
    """
    for pid in _pids():
        yield from (file for file in _files(pid) if file.partition(":")[0] in _NAMESPACES)
    yield from (line.split()[3] for _, line in _mounts() if " - nsfs " in line)


def _mounts_of(job: JobDir) -> frozenset[str]:
    """Mounts of the job's files. Other tests' jobs may have the same name, and lie elsewhere."""
    place = "/".join(job.path.parts[-4:]).replace(" ", "\\040")
    return frozenset(f"{ns} {line}" for ns, line in _mounts() if f"/{place}/" in line)


def _mounts() -> Iterator[tuple[str, str]]:
    """Each mount namespace with each of its mounts; this process's own is among them."""
    one_of_each = {ns: pid for pid in _pids() for ns in _namespaces(pid) if ns.startswith("mnt:")}
    for ns, pid in one_of_each.items():
        yield from ((ns, os.fsdecode(line)) for line in _read(pid, "mountinfo").splitlines())


def _addresses(job: JobDir) -> set[str]:
    with contextlib.suppress(HdpError):
        return {host.address for host in store.read(job).hosts}
    return set()


def _shared_names(pid: int) -> set[str]:
    """Names in the folder that all jobs share which the process has mapped: semaphores, tensors."""
    words = (line.split()[-1] for line in _read(pid, "maps").splitlines())
    return {os.fsdecode(word) for word in words if word.startswith(_SHARED_MEMORY.encode())}


def _shown(thing: object) -> str:
    if isinstance(thing, ProcessId):
        return f"{thing.pid} {' '.join(arguments(thing.pid))}".strip()
    return str(thing)
