"""Runs programs as other users, for tests that are root. Nothing is made outside: no account, no mount, no file mode.

The interpreter may be in a folder that is root's alone (``/root/.pyenv``). So each program gets a mount namespace of
its own in which an empty folder that everybody may enter covers such a folder, with what Python needs bound into it.
"""

from __future__ import annotations

import ctypes
import encodings.idna  # noqa: F401  (getaddrinfo needs it, and `outcome`'s children may not be able to load it)
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

_CLONE_NEWNS, _MS_BIND, _MS_REC, _MS_PRIVATE = 0x00020000, 0x1000, 0x4000, 0x40000
_libc = ctypes.CDLL(None, use_errno=True)


def needed() -> list[Path]:
    """What a program needs to import `hdp` and to run the core."""
    import hdp.collectives
    import hdp.estimator

    core = os.environ.get("HDP_CORE_LIBRARY")
    sources = [Path(module.__file__).parents[2] for module in (hdp.collectives, hdp.estimator)]
    return [Path(sys.base_prefix), Path(sys.prefix), *sources, *([Path(core).parent] if core else [])]


def become(uid: int) -> None:
    """Become user `uid`, for good, with no group but its own."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def start(uid: int, argv: Sequence[str], environ: dict[str, str], cwd: Path) -> subprocess.Popen[str]:
    """Start a program as user `uid`, who can read what Python needs. Its output is in a pipe."""
    paths = needed()

    def prepare() -> None:
        _open_the_way(paths)
        become(uid)

    return subprocess.Popen(
        argv, env=environ, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=prepare
    )


def outcome(uid: int, act: Callable[[], object]) -> str:
    """What `act` comes to as user `uid`: the name of its exception, or its result as text."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            become(uid)
            said = f"done: {act()!r}"
        except BaseException as exc:
            said = type(exc).__name__
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


def _open_the_way(paths: Sequence[Path]) -> None:
    _check(_libc.unshare(_CLONE_NEWNS))
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    for closed in {p for path in paths for p in _closed(path)}:
        inside = [(path, os.open(path, os.O_PATH)) for path in paths if path.is_relative_to(closed)]
        _mount("tmpfs", str(closed), "tmpfs", 0, "mode=755")
        for path, fd in inside:
            path.mkdir(parents=True, exist_ok=True)
            _mount(f"/proc/self/fd/{fd}", str(path), None, _MS_BIND | _MS_REC)
            os.close(fd)


def _closed(path: Path) -> list[Path]:
    """The first folder on the way to `path` that isn't everybody's to enter."""
    return [p for p in reversed(path.resolve().parents) if not p.stat().st_mode & 0o001][:1]


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    def as_bytes(text: str | None) -> bytes | None:
        return None if text is None else text.encode()

    _check(_libc.mount(as_bytes(source), as_bytes(target), as_bytes(kind), ctypes.c_ulong(flags), as_bytes(data)))


def _check(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
