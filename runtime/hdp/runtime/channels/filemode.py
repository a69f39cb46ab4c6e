"""File mode: the channel is copied before the ranks start.

It is built in a hidden folder beside its place and renamed when it is whole, so that a script, or a person who looks
after a failure, never takes half a channel for the data. What a killed agent has left of it is used by the next one.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from hdp.contract.errors import ChannelError
from hdp.runtime.channels.copying import can_clone
from hdp.runtime.channels.download import download
from hdp.runtime.channels.fastfile.stats import Stats
from hdp.runtime.channels.fastfile.store import Transient
from hdp.runtime.channels.journal import Journal
from hdp.runtime.channels.keys import Listing
from hdp.runtime.channels.spec import ChannelSpec


def copy_channel(
    spec: ChannelSpec, listing: Listing, target: Path, stopped: Callable[[], bool], stats: Stats | None = None
) -> None:
    """Make the folder `target` with all files of `listing`; nothing there once `stopped()`.

    stats: takes the requests and bytes that it needed.
    Raises ChannelError and OSError. What was copied stays only where S3 could not be reached: another try may go on.
    """
    require_empty(target)
    partial = target.with_name(f".{spec.name}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    journal = Journal(partial, listing.base)
    keep = False
    try:
        _require_names(listing, partial)
        _require_room(listing, partial)
        download(spec.name, listing, partial, journal, stopped, stats or Stats())
        if not stopped():
            _check_sizes(listing, partial)
            partial.rename(target)
    except ChannelError as exc:
        keep = isinstance(exc.__cause__, Transient)
        raise
    except OSError as exc:
        if exc.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise ChannelError(
            f"the disk of {target.parent} was full before {listing.size_bytes / 1e9:.2f} GB were there "
            f"({exc.strerror}), though it had room at the start; see what else writes to it, or ask for a larger volume"
        ) from exc
    finally:
        if keep:
            journal.close()
        else:
            journal.remove()
            shutil.rmtree(partial, ignore_errors=True)


def require_empty(target: Path) -> None:
    """Raise ChannelError if something is at the channel's place."""
    if target.is_symlink() or (target.exists() and (not target.is_dir() or any(target.iterdir()))):
        raise ChannelError(
            f"{target} isn't an empty folder; what is there is neither overwritten nor hidden. Empty it."
        )


def _require_names(listing: Listing, target: Path) -> None:
    most = os.pathconf(target, "PC_NAME_MAX")
    for entry in listing.items:
        if len(entry.path) > most or not entry.path.isascii():
            longest = max(len(os.fsencode(name)) for name in entry.path.split("/"))
            if longest > most:
                raise ChannelError(
                    f"the key {entry.key!r} has a name of {longest} bytes between slashes, the disk of {target.parent} "
                    f"takes {most}; rename the object, or use input_mode='FastFile', which takes any key"
                )


def _require_room(listing: Listing, target: Path) -> None:
    there = sum(p.stat().st_blocks * 512 for p in target.rglob("*") if p.is_file())
    needed, free = listing.size_bytes - there, shutil.disk_usage(target).free
    if needed > free and not _shares(listing, target):
        raise ChannelError(
            f"the disk of {target.parent} has {free / 1e9:.2f} GB free, the channel needs {needed / 1e9:.2f} GB more; "
            "ask for a larger volume or a smaller prefix, or use input_mode='FastFile'"
        )


def _shares(listing: Listing, target: Path) -> bool:
    """Whether copies would share their blocks with the source."""
    return not listing.base.startswith("s3://") and can_clone(Path(listing.base, listing.items[0].key), target)


def _check_sizes(listing: Listing, folder: Path) -> None:
    if not listing.base.startswith("s3://"):
        return  # a file that grew while it was copied is whole all the same
    for entry in listing.items:
        size = (folder / entry.path).stat().st_size
        if size != entry.size_bytes:
            raise ChannelError(
                f"{listing.base}/{entry.key}: {size} bytes are on the disk, {entry.size_bytes} were listed; something "
                "else writes to the channel's folder. Start the job again."
            )
