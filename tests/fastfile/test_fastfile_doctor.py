"""`hdp doctor` on FUSE: it mounts, as root, in a user namespace or by fusermount3, and says what is in the way.

Each program gets a mount namespace of its own, with a /dev/fuse as the test wants it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fastfile_support import needs_fuse

sys.path.append(str(Path(__file__).parents[1] / "jobs"))
import user_namespace

pytestmark = needs_fuse

UID = 65534
ASK = """
import sys
from hdp.estimator.cli import doctor
if sys.argv[1] == "off":  # as on a kernel that gives users no namespaces
    doctor.hostns.probe = lambda: doctor.hostns.Support("none", "unshare: Operation not permitted")
finding = doctor.examine_fuse()
print(finding.grade, finding.detail, finding.remedy, sep="\\n")
print([line for line in open("/proc/self/mountinfo") if sys.argv[2] in line and "hdp-fuse-" in line])
"""
needs_helper = pytest.mark.skipif(
    shutil.which("fusermount3") is None, reason="needs fusermount3 (fuse3), by which users mount"
)


@pytest.fixture
def base():
    """A folder that everybody may enter, as pytest's own may not be."""
    folder = Path("/var/tmp") / f"hdp-{os.getpid()}-{os.urandom(4).hex()}"
    folder.mkdir()
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def ask(base):
    """Ask the doctor as a user, with a /dev/fuse of some mode. Returns grade, detail, remedy, and what is mounted."""

    def ask(
        uid: int, mode: int, *, cover: Callable[[Path], None] = lambda _path: None, path: str | None = None,
        namespaces: str = "auto",
    ):  # fmt: skip
        def prepare() -> None:
            user_namespace._open_the_way(user_namespace.needed())
            user_namespace._mount("tmpfs", str(base), "tmpfs", 0, "mode=777")
            device = base / "fuse"
            os.mknod(device, 0o20600, os.makedev(10, 229))
            device.chmod(mode)
            cover(device)
            user_namespace._mount(str(device), "/dev/fuse", None, user_namespace._MS_BIND)
            if uid:
                user_namespace.become(uid)

        environ = {**os.environ, "HOME": str(base), "TMPDIR": str(base), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [sys.executable, "-c", ASK, namespaces, str(base)], cwd=base, preexec_fn=prepare, capture_output=True,
            text=True, timeout=100, env={**environ, "PATH": path or environ["PATH"]},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return ask


def test_root_mounts(ask):
    """Expected: yes, as root; nothing stays mounted."""
    assert ask(0, 0o600) == ["yes", "mounted as root", "", "[]"]


def test_the_whole_report_says_it():
    """`hdp doctor` on this machine, whose /dev/fuse root may use. Expected: FUSE, yes, as root."""
    done = subprocess.run([sys.executable, "-m", "hdp.estimator.cli", "doctor"], capture_output=True, text=True)
    row = next(line for line in done.stdout.splitlines() if line.startswith("FUSE"))
    assert row.split(maxsplit=2)[1:] == ["yes", "mounted as root"] or row.split()[1:] == [
        "yes",
        "mounted",
        "as",
        "root",
    ]


def test_a_device_that_is_there_but_is_none(ask):
    """/dev/fuse is an empty file. Expected: no FUSE, what the kernel said, and how a container gets it."""

    def cover(device):
        device.unlink()
        device.touch()

    grade, detail, remedy, mounted = ask(0, 0o600, cover=cover, path="/nonexistent")
    assert (grade, mounted) == ("note", "[]")
    assert detail == "mount: Invalid argument, and there is no fusermount3"
    assert remedy.startswith("only for FastFile channels: ") and "--device /dev/fuse --cap-add SYS_ADMIN" in remedy


def test_a_user_mounts_in_a_namespace(ask):
    """nobody, a /dev/fuse for all, no fusermount3. Expected: yes, in a user namespace."""
    grade, detail, remedy, mounted = ask(UID, 0o666, path="/nonexistent")
    if "there is no fusermount3" in detail:
        pytest.skip("this kernel gives users no namespaces")
    assert (grade, detail, remedy, mounted) == ("yes", "mounted in a user namespace", "", "[]")


@needs_helper
def test_a_user_mounts_by_fusermount3(ask):
    """nobody, a /dev/fuse for all, no namespaces. Expected: yes, and by what; nothing stays mounted."""
    helper = shutil.which("fusermount3")
    assert ask(UID, 0o666, namespaces="off") == ["yes", f"mounted by {helper}", "", "[]"]


def test_a_user_without_namespaces_and_fusermount3(ask):
    """nobody, a /dev/fuse for all, nothing else. Expected: why, and what to install."""
    grade, detail, remedy, _ = ask(UID, 0o666, path="/nonexistent", namespaces="off")
    assert (grade, detail) == ("note", "mount: Operation not permitted, and there is no fusermount3")
    assert remedy == "only for FastFile channels: `apt install fuse3`, by which users mount"


def test_a_user_who_may_not_open_the_device(ask):
    """nobody, a /dev/fuse for root alone. Expected: why, and how its mode should be."""
    grade, detail, remedy, mounted = ask(UID, 0o600)
    assert (grade, mounted) == ("note", "[]")
    assert detail.startswith("/dev/fuse can't be opened: Permission denied")
    assert remedy == (
        "only for FastFile channels: ask an administrator for `chmod 666 /dev/fuse`, as it is on most machines"
    )
