"""The user's code as a content-addressed archive: the same files give the same bytes (with the same zlib).

A folder's files travel, less what `hdp.estimator.ignore` keeps at home; without a folder only the entry script does.
Dependencies (files or folders) lie beside them under their own names. Empty folders don't travel. A symbolic link
is followed where it stays inside the folder. Owner, group and time are zero, the mode is 0644 or 0755.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from hdp.contract.errors import SpecError
from hdp.estimator import ignore, tarballs, telltale

#: Sum of the files before compression. Code is small; more is data, which belongs in a channel.
MAX_BYTES = 200 * 1024 * 1024
#: A file above this is probably data.
LARGE_BYTES = 10 * 1024 * 1024
_LARGEST_SHOWN = 5
#: gzip's own default.
_GZIP_LEVEL = 6


@dataclass(frozen=True)
class Member:
    """One file: where it lies in the archive, and here."""

    name: str
    path: Path
    size_bytes: int
    executable: bool


@dataclass
class Listing:
    """What would travel. Filled by `scan`; no file's content is read."""

    members: dict[str, Member] = field(default_factory=dict)
    secrets: list[str] = field(default_factory=list)
    """Files left out because they look like secrets."""
    faults: list[str] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        """Sum of the files."""
        return sum(m.size_bytes for m in self.members.values())


@dataclass(frozen=True)
class Bundle:
    """The archive. ``digest`` is its SHA-256 in hexadecimal."""

    digest: str
    archive: bytes
    names: tuple[str, ...]
    notes: tuple[str, ...] = ()


def scan(entry_point: str, source_dir: str | None, dependencies: Sequence[str] = ()) -> Listing:
    """List the files that `entry_point` needs, with the faults found (missing, escaping, too large, clashing)."""
    listing = Listing()
    if source_dir is None:
        _add(listing, Path(entry_point).name, Path(entry_point), "entry_point")
    else:
        _add_folder(listing, "", Path(source_dir), "source_dir")
        _check_entry(listing, entry_point, Path(source_dir))
    for dependency in dependencies:
        path = Path(dependency)
        name = path.resolve().name if path.name in ("", ".", "..") else path.name
        add = _add_folder if path.is_dir() else _add
        add(listing, name, path, f"dependencies {dependency!r}")
    if listing.size_bytes > MAX_BYTES:
        listing.faults.append(_too_large(listing))
    return listing


def pack(listing: Listing) -> Bundle:
    """Read the listed files into a .tar.gz. Raises SpecError for the listing's faults and for unreadable files."""
    if listing.faults:
        raise SpecError(listing.faults, "the user's code")
    members = [listing.members[name] for name in sorted(listing.members)]
    raw, notes = io.BytesIO(), _notes(listing)
    with tarballs.writing(raw, _GZIP_LEVEL) as tar:
        for member in members:
            content = _read(member)
            notes += _telltales(member.name, content)
            tarballs.add_file(tar, member.name, io.BytesIO(content), len(content), member.executable)
    archive = raw.getvalue()
    return Bundle(hashlib.sha256(archive).hexdigest(), archive, tuple(m.name for m in members), tuple(notes))


def _notes(listing: Listing) -> list[str]:
    kept = [
        f"{name} looks like a secret and stays here; add '!{name}' to .hdpignore to send it" for name in listing.secrets
    ]
    large = [m for m in sorted(listing.members.values(), key=lambda m: m.name) if m.size_bytes > LARGE_BYTES]
    return kept + [
        f"{m.name} has {m.size_bytes / 2**20:.1f} MiB and travels with the code; data belongs in an input channel, and "
        "what isn't needed in .hdpignore"
        for m in large
    ]


def _telltales(name: str, content: bytes) -> list[str]:
    """Notes about secrets in a file's text; it travels all the same, for code may well quote such words."""
    return [
        f"{name} seems to hold {what} (line {line}), and travels; take it out: hosts have a role for that"
        for what, line in telltale.find(content)
    ]


def _read(member: Member) -> bytes:
    try:
        return member.path.read_bytes()
    except OSError as exc:
        raise SpecError([f"{member.path} can't be read: {exc.strerror}"], "the user's code") from exc


def _add(listing: Listing, name: str, path: Path, where: str) -> None:
    """List one file under `name`."""
    if not path.is_file():
        kind = "isn't a regular file" if path.exists() else "doesn't exist"
        listing.faults.append(f"{where}: {path} {kind}; check the path")
    elif name in listing.members:
        other = listing.members[name].path
        listing.faults.append(f"{where}: {path} and {other} would both be {name!r} in the archive; rename one of them")
    else:
        status = path.stat()
        listing.members[name] = Member(name, path, status.st_size, bool(status.st_mode & 0o111))


def _add_folder(listing: Listing, prefix: str, root: Path, where: str) -> None:
    """List the files below `root`, under `prefix` in the archive."""
    if not root.is_dir():
        listing.faults.append(f"{where}: {root} isn't a folder; check the path")
        return
    try:
        patterns = ignore.patterns_of(root)
        _walk(_Walk(listing, root.resolve(), prefix, tuple(patterns), where), root, (), ())
    except (OSError, UnicodeDecodeError) as exc:
        listing.faults.append(f"{where}: {root} can't be read: {exc}")


@dataclass(frozen=True)
class _Walk:
    listing: Listing
    root: Path
    prefix: str
    patterns: tuple[ignore.Pattern, ...]
    where: str


def _walk(walk: _Walk, folder: Path, below: tuple[str, ...], parents: tuple[Path, ...]) -> None:
    """List `folder`, which is `below` the root; `parents` are the real folders above it."""
    real = folder.resolve()
    if real in parents:
        walk.listing.faults.append(f"{walk.where}: the link {folder} leads back to a folder above it; remove it")
        return
    for path in sorted(folder.iterdir()):
        parts = (*below, path.name)
        kept_back = ignore.deciding(walk.patterns, parts, path.is_dir())
        if kept_back is not None:
            if kept_back.secret:
                walk.listing.secrets.append("/".join(parts))
        elif path.is_symlink() and not path.resolve().is_relative_to(walk.root):
            walk.listing.faults.append(
                f"{walk.where}: the link {path} points outside, to {path.resolve()}; copy the file, "
                f"name it in dependencies, or list it in .hdpignore"
            )
        elif path.is_dir():
            _walk(walk, path, parts, (*parents, real))
        else:
            _add(walk.listing, str(PurePosixPath(walk.prefix, *parts)), path, walk.where)


def _check_entry(listing: Listing, entry_point: str, root: Path) -> None:
    """The entry script must be among the listed files."""
    name = PurePosixPath(entry_point).as_posix()
    if name in listing.members or not root.is_dir():
        return
    if (root / name).is_file():
        listing.faults.append(f"entry_point: {entry_point} is left out by an ignore pattern; see {root}/.gitignore")
    else:
        listing.faults.append(f"entry_point: {entry_point} isn't in source_dir {root}; give its path inside it")


def _too_large(listing: Listing) -> str:
    largest = sorted(listing.members.values(), key=lambda m: -m.size_bytes)[:_LARGEST_SHOWN]
    shown = ", ".join(f"{m.name} ({m.size_bytes / 2**20:.1f} MiB)" for m in largest)
    return (
        f"source_dir and dependencies hold {listing.size_bytes / 2**20:.0f} MiB; at most {MAX_BYTES // 2**20}. "
        f"Largest: {shown}. List them in .hdpignore, or make them an input channel"
    )
