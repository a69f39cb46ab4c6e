"""Makes and removes a FUSE mount: by mount(2) where this process may, else by fusermount3, the user's way.

The descriptor of /dev/fuse is the mount's other end. When nobody has it open any more, all reads fail at once.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import logging
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

from hdp.contract.errors import ChannelError

log = logging.getLogger(__name__)


class NoFuse(ChannelError):
    """This host can't mount. `why`: what the kernel and fusermount3 said."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(
            f"input_mode='FastFile' needs FUSE, which this host doesn't give us ({why}). Either allow it: install "
            "fuse3, and in a container add --device /dev/fuse --cap-add SYS_ADMIN; or use input_mode='File'. "
            "HDP_FASTFILE_FALLBACK=file in the job's environment downloads such channels instead"
        )


Spawn = Callable[..., "subprocess.Popen[bytes]"]

_DEVICE = "/dev/fuse"
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOATIME = 0x1, 0x2, 0x4, 0x400
_MNT_DETACH = 0x2
#: Bytes that the kernel reads ahead of a sequential reader; more gave nothing, at more processor time.
_READ_AHEAD_KIB = 1024
#: For fusermount3, which needs milliseconds.
_SECONDS = 10.0


def mount(target: Path, spawn: Spawn) -> int:
    """Mount on `target`, read only. Returns the descriptor of the other end.

    spawn: starts fusermount3, as subprocess.Popen. Raises NoFuse that says why there is no FUSE and what to do.
    """
    try:
        fd = os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC)
    except OSError as exc:
        # fusermount3 opens it with this user's rights too; what it says about it helps.
        return _by_helper(target, spawn, f"{_DEVICE} can't be opened: {exc.strerror}")
    options = f"fd={fd},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},max_read={1 << 20}"
    flags = _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOATIME
    result = _libc().mount(b"hdp", os.fsencode(target), b"fuse.hdp-fastfile", ctypes.c_ulong(flags), options.encode())
    if result == 0:
        return fd
    number = ctypes.get_errno()
    os.close(fd)
    return _by_helper(target, spawn, f"mount: {os.strerror(number)}")


def unmount(target: Path, spawn: Spawn) -> None:
    """Take the mount away at once; an open file of it stays until it is closed. Nothing if there is no mount."""
    if not is_mounted(target):  # what else is mounted there isn't ours
        return
    if _libc().umount2(os.fsencode(target), _MNT_DETACH) == 0 or ctypes.get_errno() != errno.EPERM:
        return
    helper = shutil.which("fusermount3")
    if helper is not None:
        said = _end(spawn([helper, "-u", "-z", "--", str(target)], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE))
        if is_mounted(target):
            log.warning("%s can't be unmounted: fusermount3: %s", target, said)


def is_mounted(target: Path) -> bool:
    """Whether one of our mounts is there. Asks the kernel's table, so a dead mount doesn't get in the way."""
    path = str(target.parent.resolve() / target.name)  # the table has no links in its paths
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    return any(" - fuse" in line and _unescaped(line.split()[4]) == path for line in lines)


def _unescaped(path: str) -> str:
    """A path as the kernel's table has it, with ``\\040`` for a blank and so on."""
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), path)


def read_far_ahead(target: Path) -> None:
    """Have the kernel read further ahead than its 128 KiB, where this process may say so (root of the machine)."""
    device = target.stat().st_dev
    with contextlib.suppress(OSError):
        knob = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
        knob.write_text(str(_READ_AHEAD_KIB), encoding="ascii")


def _by_helper(target: Path, spawn: Spawn, why_not: str) -> int:
    helper = shutil.which("fusermount3")
    if helper is None:
        raise NoFuse(f"{why_not}, and there is no fusermount3")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        options = f"ro,nosuid,nodev,noatime,fsname=hdp,subtype=hdp-fastfile,max_read={1 << 20}"
        process = spawn(
            [helper, "-o", options, "--", str(target)], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
            env={**os.environ, "_FUSE_COMMFD": str(theirs.fileno())}, pass_fds=[theirs.fileno()],
        )  # fmt: skip
        theirs.close()
        ours.settimeout(_SECONDS)
        fd = _receive(ours)
        said = _end(process)
    if fd is None:
        raise NoFuse(f"{why_not}; fusermount3: {said}")
    return fd


def _end(process: subprocess.Popen[bytes]) -> str:
    """Wait for fusermount3, but not for ever. Returns what it said, or how it ended."""
    assert process.stderr is not None
    try:
        _, said = process.communicate(timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        process.stderr.close()
        return f"it did not end within {_SECONDS:g} s and was killed"
    return said.decode(errors="replace").strip() or f"exit code {process.returncode}"


def _receive(channel: socket.socket) -> int | None:
    fds = array.array("i")
    try:
        _, ancillary, _, _ = channel.recvmsg(1, socket.CMSG_SPACE(fds.itemsize))
    except OSError:
        return None
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: fds.itemsize])
    if fds:
        os.set_inheritable(fds[0], False)
    return fds[0] if fds else None


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
