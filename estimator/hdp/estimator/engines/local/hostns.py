"""Puts one host of a job into its own mount and UTS namespaces, then becomes the host's agent (Linux).

Run as ``python -m hdp.estimator.engines.local.hostns --spec FILE --parent PID -- argv``. With the right to mount
(root) it unshares mount and UTS namespaces; otherwise it first makes a user namespace, in which the user's own ids
are mapped to themselves. Then the host's tree is bound at ``/opt/ml``, the job's file at ``/etc/hosts``, and the host
name set; ``/dev/shm`` is the host's own. Nothing of it is visible outside, and nothing is left when the host ends.

``/opt/ml`` is never made on the real file system: where it doesn't exist, ``/opt`` becomes a private tmpfs in which
every entry of the real ``/opt`` is bound again, and ``ml`` is added.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWUSER = 0x00020000, 0x04000000, 0x10000000
_MS_BIND, _MS_REC, _MS_PRIVATE, _MS_NOSUID, _MS_NODEV = 0x1000, 0x4000, 0x40000, 0x2, 0x4
_PR_SET_PDEATHSIG, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 1, 47, 2
_CAP_SYS_ADMIN, _CAP_VERSION = 21, 0x20080522

#: A host has its own, so that nothing of it is left, and hosts can't meet there any more than on a cluster.
_SHARED_MEMORY = Path("/dev/shm")

Means = Literal["root", "user", "none"]


@dataclass(frozen=True)
class HostNamespace:
    """What one host shall see."""

    host: str
    """Its host name."""
    tree: str
    """Its tree, to be seen at ``/opt/ml``."""
    etc_hosts: str
    """The file to be seen at ``/etc/hosts``."""
    means: Means
    """``root``: mount as we are; ``user``: in a user namespace; ``none``: change nothing."""


@dataclass(frozen=True)
class Support:
    """What this machine allows."""

    means: Means
    reason: str = ""
    """Why not, where ``means`` is none."""


def probe(folder: Path | None = None) -> Support:
    """Find out what works, by doing all of it in a child process.

    folder: where its temporary files go, which stay there if this process is killed; None: TMPDIR.
    """
    reasons = []
    means: Means
    for means in ("root", "user"):
        failure = _try(means, folder)
        if failure is None:
            return Support(means)
        reasons.append(failure)
    return Support("none", reasons[-1])


def save(spec: HostNamespace, path: Path) -> None:
    """Write `spec` for the helper."""
    path.write_text(json.dumps(asdict(spec)), encoding="utf-8")


def argv(python: str, spec_file: Path, agent_argv: Sequence[str]) -> list[str]:
    """Arguments that start a host: this helper, which becomes ``agent_argv``. The caller is to be its parent."""
    return [python, "-m", __name__, "--spec", str(spec_file), "--parent", str(os.getpid()), "--", *agent_argv]


def enter(spec: HostNamespace) -> None:
    """Move this process, which must have one thread, into the host's namespaces. Raises OSError."""
    if spec.means == "none":
        return
    _unshare(spec.means)
    tree = os.open(spec.tree, os.O_PATH | os.O_CLOEXEC)
    hosts = os.open(spec.etc_hosts, os.O_PATH | os.O_CLOEXEC)
    socket.sethostname(spec.host)
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    if not Path("/opt/ml").is_dir():
        _rebuild_opt()
    _mount(f"/proc/self/fd/{tree}", "/opt/ml", None, _MS_BIND | _MS_REC)
    if Path("/etc/hosts").exists():
        _mount(f"/proc/self/fd/{hosts}", "/etc/hosts", None, _MS_BIND)
    if _SHARED_MEMORY.is_dir():
        _mount("tmpfs", str(_SHARED_MEMORY), "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=1777")
    os.close(tree)
    os.close(hosts)


def _unshare(means: Means) -> None:
    uid, gid = os.geteuid(), os.getegid()
    flags = _CLONE_NEWNS | _CLONE_NEWUTS | (_CLONE_NEWUSER if means == "user" else 0)
    _check(_libc().unshare(flags), "unshare")
    if means == "user":
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1", encoding="ascii")


def _rebuild_opt() -> None:
    """Make ``/opt`` a tmpfs with everything that it has now, and ``ml``."""
    real = os.open("/opt", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    entries = [(entry.name, entry.stat(follow_symlinks=False).st_mode) for entry in os.scandir("/opt")]
    links = {name: Path("/opt", name).readlink() for name, mode in entries if stat.S_ISLNK(mode)}
    _mount("tmpfs", "/opt", "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=755")
    for name, mode in entries:
        target = Path("/opt", name)
        if name in links:
            target.symlink_to(links[name])
        elif stat.S_ISDIR(mode):
            target.mkdir()
            _mount(f"/proc/self/fd/{real}/{name}", str(target), None, _MS_BIND | _MS_REC)
        elif stat.S_ISREG(mode):
            target.touch()
            _mount(f"/proc/self/fd/{real}/{name}", str(target), None, _MS_BIND)
    Path("/opt/ml").mkdir(exist_ok=True)
    os.close(real)


def _try(means: Means, parent: Path | None) -> str | None:
    """Enter namespaces in a child; None where all went well, else what went wrong."""
    with tempfile.TemporaryDirectory(prefix="hdp-probe-", dir=parent) as folder:
        tree, hosts, spec_file = Path(folder, "tree"), Path(folder, "hosts"), Path(folder, "spec.json")
        tree.mkdir()
        hosts.touch()
        save(HostNamespace("algo-1", str(tree), str(hosts), means), spec_file)
        command = argv(sys.executable, spec_file, [sys.executable, "-S", "-c", _PROBE, str(tree.stat().st_ino)])
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        return None if done.returncode == 0 else (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]


_PROBE = """
import os, socket, sys
seen = os.stat("/opt/ml").st_ino == int(sys.argv[1]) and os.access("/opt/ml", os.W_OK)
ok = seen and socket.gethostname() == "algo-1"
sys.exit(0 if ok else "the mounts were made, but aren't seen")
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Enter the namespaces that the spec asks for, arrange to die with the supervisor, become the agent."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--spec", required=True, type=Path)
    parser.add_argument("--parent", required=True, type=int)
    parser.add_argument("argv", nargs="+")
    options = parser.parse_args(arguments)
    spec = HostNamespace(**json.loads(options.spec.read_text(encoding="utf-8")))
    try:
        enter(spec)
    except OSError as exc:
        sys.exit(f"{spec.host} can't have namespaces of its own: {exc}")
    _die_with(options.parent)
    if spec.means == "user":
        _keep_right_to_mount()
    if spec.means != "none":
        # The old working directory is the tree by its real path; inside, it is /opt/ml.
        os.chdir("/opt/ml")
    os.execvp(options.argv[0], options.argv)


def _keep_right_to_mount() -> None:
    """Let the agent mount FastFile channels in this user namespace: execve takes rights away that aren't ambient.

    The agent doesn't pass it on to the ranks.
    """
    header, sets = (ctypes.c_uint32 * 2)(_CAP_VERSION, 0), (ctypes.c_uint32 * 6)()
    _check(_libc().capget(header, sets), "capget")
    sets[2] |= 1 << _CAP_SYS_ADMIN  # inheritable, which ambient needs; the lower half of effective, permitted, it
    _check(_libc().capset(header, sets), "capset")
    unused = ctypes.c_ulong(0)
    raised = _libc().prctl(
        _PR_CAP_AMBIENT, ctypes.c_ulong(_PR_CAP_AMBIENT_RAISE), ctypes.c_ulong(_CAP_SYS_ADMIN), unused, unused
    )
    _check(raised, "prctl")


def _die_with(parent: int) -> None:
    """Be killed when the parent ends. The kernel forgets this at unshare(), so it is set after it; exec keeps it."""
    _check(_libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL), "prctl")
    if os.getppid() != parent:
        sys.exit("the supervisor ended before this host had started")


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    result = _libc().mount(_c(source), _c(target), _c(kind), ctypes.c_ulong(flags), _c(data))
    _check(result, f"mount on {target}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _c(text: str | None) -> bytes | None:
    return None if text is None else os.fsencode(text)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
