"""File mode: the channel is copied before the ranks start.

It is built in a hidden folder beside its place and renamed when it is whole, so that a script, or a person who looks
after a failure, never takes half a channel for the data.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from hdp.contract.errors import ChannelError
from hdp.runtime.channels import s3
from hdp.runtime.channels.keys import Listing
from hdp.runtime.channels.local import fetch_local
from hdp.runtime.channels.spec import ChannelSpec


def copy_channel(spec: ChannelSpec, listing: Listing, target: Path, stopped: Callable[[], bool]) -> None:
    """Make the folder `target` with all files of `listing`; nothing there once `stopped()`."""
    require_empty(target)
    partial = target.with_name(f".{spec.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        if listing.base.startswith("s3://"):
            s3.fetch(s3.connect(), listing.base.removeprefix("s3://"), listing.items, partial, stopped)
        else:
            fetch_local(Path(listing.base), listing.items, partial, stopped)
        if not stopped():
            partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def require_empty(target: Path) -> None:
    """Raise ChannelError if something is at the channel's place."""
    if target.is_symlink() or (target.exists() and (not target.is_dir() or any(target.iterdir()))):
        raise ChannelError(f"{target} isn't an empty folder; what is there isn't overwritten. Empty it.")
