"""Unpacks a ``.tar.gz`` of somebody's code without letting it out of its folder.

The rules are those of ``tarfile``'s ``data`` filter, which older Pythons don't have: nothing absolute, no ``..``,
links only to places inside, no devices, no set-uid bits, no foreign owners. What grows beyond all measure when it is
unpacked isn't code, and would fill the host's disk: it is refused by what its members say, before they are written.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path

from hdp.contract.errors import LaunchError

#: Of all files together, and how many: far more than code has, far less than a volume.
MOST_BYTES, MOST_MEMBERS = 20 << 30, 500_000


def unpack(archive: Path, target: Path, most_bytes: int = MOST_BYTES, most_members: int = MOST_MEMBERS) -> int:
    """Unpack `archive` to below `target`. Returns the number of files.

    Raises LaunchError that names the member that would escape, says what is too large, or why the archive can't be
    read.
    """
    target.mkdir(parents=True, exist_ok=True)
    count = size_bytes = 0
    try:
        with tarfile.open(archive, "r:*") as tar:
            for number, member in enumerate(tar, start=1):
                size_bytes += _size(member, target)
                if size_bytes > most_bytes or number > most_members:
                    raise _too_much(archive, size_bytes, number, most_bytes, most_members)
                count += _extract(tar, member, target.resolve())
    except (tarfile.TarError, EOFError, OSError) as exc:
        raise LaunchError(f"the code archive {archive} can't be unpacked: {exc}; expected a .tar.gz") from exc
    return count


def _size(member: tarfile.TarInfo, target: Path) -> int:
    """Bytes that it will take; a hard link becomes a copy of what it leads to."""
    if not member.islnk():
        return member.size
    linked = target / member.linkname
    return linked.stat().st_size if linked.is_file() else 0


def _too_much(archive: Path, size_bytes: int, members: int, most_bytes: int, most_members: int) -> LaunchError:
    return LaunchError(
        f"the code archive {archive} unpacks to {size_bytes} bytes in {members} members or more; expected code, of "
        f"{most_bytes} bytes in {most_members} at most: make data an input channel"
    )


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, root: Path) -> int:
    path = root / member.name
    if ".." in Path(member.name).parts:
        raise _escapes(member, member.name)
    _require_inside(root, path.parent, member, member.name)
    if member.isdir():
        path.mkdir(parents=True, exist_ok=True)
        return 0
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink() or path.is_file():
        path.unlink()  # never write through a link that an earlier member made
    _place(tar, member, path, root)
    return 1


def _place(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path, root: Path) -> None:
    if member.issym():
        _require_inside(root, path.parent / member.linkname, member, member.linkname)
        path.symlink_to(member.linkname)
    elif member.islnk():
        _require_inside(root, root / member.linkname, member, member.linkname)
        shutil.copyfile(root / member.linkname, path)
    elif member.isfile():
        _write(tar, member, path)
    else:
        raise LaunchError(f"the code archive holds {member.name!r}, which is a device or pipe; only files are allowed")


def _require_inside(root: Path, path: Path, member: tarfile.TarInfo, name: str) -> None:
    """Links made so far are followed, so that a chain of them doesn't lead out either."""
    if Path(name).is_absolute() or "\0" in name:
        raise _escapes(member, name)
    real = Path(os.path.realpath(path))
    if real != root and root not in real.parents:
        raise _escapes(member, name)


def _escapes(member: tarfile.TarInfo, name: str) -> LaunchError:
    return LaunchError(
        f"the code archive's member {member.name!r} would lead outside the code folder (to {name!r}); nothing more was "
        "unpacked"
    )


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    content = tar.extractfile(member)
    if content is None:
        raise LaunchError(f"the code archive's member {member.name!r} has no content")
    with content, path.open("wb") as f:
        shutil.copyfileobj(content, f, 1 << 20)
    path.chmod((member.mode & 0o755) | 0o600)
