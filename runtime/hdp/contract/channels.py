"""What a job's channels did, in numbers: counted by each host's agent, kept in its report, shown by the client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class ChannelStatistics:
    """One channel on one host. None where a mode has no such number.

    Bytes and requests are those between this host and the channel's source; what the kernel's page cache gave to
    readers isn't seen here.
    """

    host: str
    channel: str
    mode: str
    """File, FastFile or Pipe, as it was provided: File where FastFile fell back to it."""
    files: int
    """That this host got."""
    size_bytes: int
    """Of these files."""
    seconds: float
    """Until the ranks could start: of the whole download (File), of the mount (FastFile), of making FIFOs (Pipe)."""
    fetched_bytes: int
    """That came from the source."""
    requests: int
    """To the source that brought bytes: GETs, or copies of files."""
    retries: int = 0
    errors: int = 0
    """Reads that failed in the end (FastFile)."""
    read_bytes: int | None = None
    """Handed to readers (FastFile, Pipe)."""
    first_byte_seconds: float | None = None
    """From the first read (FastFile), or from opening the first FIFO (Pipe), to its bytes; None: nobody read."""
    waited_seconds: float | None = None
    """That readers waited for the source: summed over all reads (FastFile), or over the FIFOs (Pipe)."""
    waits: int | None = None
    """Reads that had to wait (FastFile)."""
    cache_hits: int | None = None
    """Reads whose bytes were there already (FastFile)."""
    reads: int | None = None
    opens: int | None = None
    """Files opened (FastFile)."""
    seeks: int | None = None
    peak_bytes: int | None = None
    """Most memory that was held at a time (FastFile)."""
    epochs: int | None = None
    """FIFOs that somebody read (Pipe)."""


def to_json(statistics: ChannelStatistics) -> dict[str, Any]:
    """As plain JSON values."""
    return asdict(statistics)


def from_json(value: Mapping[str, Any]) -> ChannelStatistics:
    """Inverse of `to_json`; what another version knows besides is left out. Raises TypeError, KeyError."""
    known = {field.name for field in fields(ChannelStatistics)}
    return ChannelStatistics(**{name: item for name, item in value.items() if name in known})
