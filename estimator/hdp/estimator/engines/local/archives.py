"""``model.tar.gz`` and ``output.tar.gz``: the same files always give the same bytes.

Members are sorted, belong to nobody, have one of two modes and no time, so an archive's digest tells whether two jobs
made the same model.
"""

from __future__ import annotations

import filecmp
import os
import stat
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hdp.estimator import tarballs

#: Weights hardly shrink: level 1 is about five times as fast as 6, for a few percent more bytes.
GZIP_LEVEL = 1


@dataclass(frozen=True)
class Member:
    """One entry of an archive: a file or a folder on disk, or, with ``link``, a link to a place in the archive."""

    path: Path
    link: str | None = None


@dataclass(frozen=True)
class Listing:
    """What goes into an archive."""

    members: Mapping[str, Member]
    """By name in the archive."""
    notes: tuple[str, ...] = ()
    """What was left out, a line each."""


def merge(roots: Mapping[str, Path]) -> Listing:
    """All hosts' folders as one. The first host's file stays where others have a different one of the same name.

    roots: host name to its folder, in the hosts' order.
    """
    members: dict[str, Member] = {}
    owner: dict[str, str] = {}
    notes: list[str] = []
    for host, root in roots.items():
        for name, member in _walk(root, notes).items():
            first = members.setdefault(name, member)
            owner.setdefault(name, host)
            if not _same(first, member):
                notes.append(f"{name}: {host} and {owner[name]} wrote different files; {owner[name]}'s was kept")
    return Listing(members, tuple(notes))


def by_host(roots: Mapping[str, Path]) -> Listing:
    """All hosts' folders; each in a folder of the host's name, unless only one host wrote anything."""
    notes: list[str] = []
    found = {host: _walk(root, notes) for host, root in roots.items()}
    wrote = [host for host in found if found[host]]
    if len(wrote) == 1:
        return Listing(found[wrote[0]], tuple(notes))
    members = {f"{host}/{name}": member for host in wrote for name, member in found[host].items()}
    return Listing({**{host: Member(roots[host]) for host in wrote}, **members}, tuple(notes))


def write(listing: Listing, target: Path) -> None:
    """Write the archive to `target`, whole or not at all. Raises OSError (a full disk, a file that can't be read)."""
    part = target.with_name(f".{target.name}.part")
    try:
        with part.open("wb") as raw, tarballs.writing(raw, GZIP_LEVEL) as archive:
            for name in sorted(listing.members):
                _add(archive, name, listing.members[name])
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _walk(root: Path, notes: list[str]) -> dict[str, Member]:
    found: dict[str, Member] = {}
    if not root.is_dir():  # the script removed it
        return found
    for folder, folders, files in os.walk(root, onerror=_raise):
        folders.sort()
        for entry in sorted([*folders, *files]):
            path = Path(folder, entry)
            name = str(path.relative_to(root))
            member = _member(root, path)
            if member is None:
                notes.append(
                    f"{name}: left out; it is neither a file, a folder, nor a link to a file or to a place beside it"
                )
            else:
                found[name] = member
    return found


def _raise(error: OSError) -> None:
    """A folder that can't be read isn't silently left out."""
    raise error


def _member(root: Path, path: Path) -> Member | None:
    """A link that stays within `root` is kept as a link; one that leaves it is replaced by the file it leads to."""
    if path.is_symlink():
        link = str(path.readlink())
        target = Path(os.path.normpath(path.parent / link))
        if not Path(link).is_absolute() and target.is_relative_to(root):
            return Member(path, link)
        return Member(path) if path.is_file() else None
    return Member(path) if path.is_file() or path.is_dir() else None


def _same(one: Member, other: Member) -> bool:
    if one == other:
        return True
    if one.link is not None or other.link is not None:
        return one.link == other.link
    if one.path.is_dir() or other.path.is_dir():
        return one.path.is_dir() and other.path.is_dir()
    return filecmp.cmp(one.path, other.path, shallow=False)


def _add(archive: tarfile.TarFile, name: str, member: Member) -> None:
    if not member.link and not member.path.is_dir():
        with member.path.open("rb") as content:
            status = os.fstat(content.fileno())
            tarballs.add_file(archive, name, content, status.st_size, bool(status.st_mode & stat.S_IXUSR))
        return
    entry = tarfile.TarInfo(name)
    if member.link is not None:
        entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, member.link, 0o777
    else:
        entry.type, entry.mode = tarfile.DIRTYPE, 0o755
    archive.addfile(entry)
