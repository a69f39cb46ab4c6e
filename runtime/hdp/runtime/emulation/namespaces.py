"""The kernel's calls for namespaces and mounts, and what one host sees of the file system.

Only a process of one thread may make or join a user or a mount namespace: the keeper's, before it does anything else.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

from hdp.runtime.emulation.errors import EmulationError, step

NEWNS, NEWUTS, NEWUSER, NEWNET = 0x00020000, 0x04000000, 0x10000000, 0x40000000
KINDS = {"net": NEWNET, "uts": NEWUTS, "mnt": NEWNS}
"""What a host has of its own, in the order in which it is joined: joining ``mnt`` changes what paths mean."""

_MS_BIND, _MS_REC, _MS_PRIVATE, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 0x1000, 0x4000, 0x40000, 0x2, 0x4, 0x8
_MNT_DETACH = 2
_PLACE = "/tmp"
"""A folder that is there, on which something is mounted for a moment in a mount namespace of our own."""

_NSSWITCH = "/etc/nsswitch.conf"
_HOSTS_LINE = re.compile(r"^\s*hosts:.*$", re.MULTILINE)
_NET_VIEWS = ("class/net", "devices/virtual/net")

Means = Literal["root", "user"]


def isolate() -> Means:
    """Give this process the namespaces from which it builds: as root, else in a user namespace, to which all belong.

    Raises EmulationError, which says what is missing.
    """
    uid, gid = os.geteuid(), os.getegid()
    means: Means = "root"
    try:
        _unshare(NEWNET | NEWUTS | NEWNS)
    except PermissionError:
        means = "user"
        allowed = (
            "root, or a kernel that lets ordinary users make user namespaces: see the sysctls "
            "user.max_user_namespaces, kernel.unprivileged_userns_clone and "
            "kernel.apparmor_restrict_unprivileged_userns; a container's seccomp profile may forbid them too"
        )
        with step("make a user namespace", allowed):
            _unshare(NEWUSER | NEWNET | NEWUTS | NEWNS)
            Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
            Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1", encoding="ascii")
            Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1", encoding="ascii")
    except OSError as exc:
        needs = (
            "a kernel with CONFIG_NET_NS, and free namespaces: see the sysctls user.max_net_namespaces, "
            "user.max_mnt_namespaces and user.max_uts_namespaces"
        )
        raise EmulationError(f"could not make a network namespace: {exc.strerror}. It needs {needs}") from exc
    with step("mount in a namespace of its own", "the right to mount there (CAP_SYS_ADMIN, seccomp)"):
        _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    return means


def current(kind: str) -> int:
    """A file descriptor of this process's namespace of that kind."""
    return os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)


@contextlib.contextmanager
def inside(namespaces: Mapping[str, int]) -> Iterator[None]:
    """Be in those namespaces (kind -> descriptor) inside the block, and back where we were after it."""
    with _coming_back(namespaces):
        for kind, descriptor in namespaces.items():
            _setns(descriptor, KINDS[kind])
        yield


def make_host(name: str, hosts_file: str) -> dict[str, int]:
    """Make the namespaces of the host `name`; this process stays outside. Returns kind -> descriptor.

    hosts_file: the text to be seen at ``/etc/hosts``.
    """
    limits = "free namespaces (see the sysctls user.max_net_namespaces, user.max_mnt_namespaces)"
    with step(f"make the namespaces of {name}", limits), _coming_back(KINDS):
        _unshare(sum(KINDS.values()))
        socket.sethostname(name)
        _show_names(hosts_file)
        _show_interfaces()
        return {kind: current(kind) for kind in KINDS}


@contextlib.contextmanager
def _coming_back(kinds: Iterable[str]) -> Iterator[None]:
    """Be in the same namespaces of those kinds after the block as before it."""
    back = {kind: current(kind) for kind in kinds}
    try:
        yield
    finally:
        for kind, descriptor in back.items():
            _setns(descriptor, KINDS[kind])
            os.close(descriptor)


def _show_names(hosts_file: str) -> None:
    """Have names come from `hosts_file` alone: no name server can be reached.

    The files are a tmpfs's that has no place any more: nothing is left to tidy.
    """
    with step("lay a file over /etc/hosts", f"an /etc/hosts, a {_PLACE}, and the right to mount"):
        _mount("tmpfs", _PLACE, "tmpfs", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, "mode=755,size=1m")
        _lay("/etc/hosts", hosts_file)
        if Path(_NSSWITCH).exists():
            # With "dns", whoever looks up the name of an address waits for a server, and is told to try again.
            services = Path(_NSSWITCH).read_text(encoding="utf-8", errors="replace")
            _lay(_NSSWITCH, _HOSTS_LINE.sub("hosts: files", services))
        _unmount(_PLACE)


def _lay(target: str, text: str) -> None:
    source = Path(_PLACE, Path(target).name)
    source.write_text(text, encoding="utf-8")
    source.chmod(0o644)
    _mount(str(source), target, None, _MS_BIND)


def _show_interfaces() -> None:
    """Lay this network namespace's interfaces over the outside's in ``/sys``, and leave the rest of it (cgroups).

    A sysfs shows the namespace in which it was mounted. Where the kernel refuses (a container that masks parts of
    ``/sys``), only programs that list interfaces there see the wrong ones.
    """
    try:
        _mount("sysfs", _PLACE, "sysfs", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    except OSError:
        return
    for view in _NET_VIEWS:
        with contextlib.suppress(OSError):
            _mount(f"{_PLACE}/{view}", f"/sys/{view}", None, _MS_BIND)
    _unmount(_PLACE)


def _unshare(flags: int) -> None:
    _check(_libc().unshare(flags), "unshare")


def _setns(descriptor: int, kind: int) -> None:
    _check(_libc().setns(descriptor, kind), "setns")


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    result = _libc().mount(_c(source), _c(target), _c(kind), ctypes.c_ulong(flags), _c(data))
    _check(result, f"mount on {target}")


def _unmount(target: str) -> None:
    _check(_libc().umount2(_c(target), _MNT_DETACH), f"unmount {target}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _c(text: str | None) -> bytes | None:
    return None if text is None else os.fsencode(text)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
