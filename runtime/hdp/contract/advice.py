"""What the sizes and the number of a channel's files mean for a job: told before it, by `hdp lint-input` and in the
plan, and after it, from what a mount has counted. Pure.

The rates are S3's, as measured on its like with 25 ms to the first byte and 90 MB/s a connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hdp.contract.units import format_size, format_time

SMALL_BYTES = 1 << 20
#: Fewer small files than these are read in a moment, whatever the order.
MANY = 500
#: Small files a second: a worker that waits for each; File mode's 48 connections; Pipe mode's 32.
_RATES = {"FastFile": 35.0, "File": 1500.0, "Pipe": 1000.0}
#: 10 Gbit/s.
_BYTES_PER_SECOND = 1.25e9
_LONG = 60.0
_RECORD_BYTES = (1 << 29) - 1
#: Reads that jump fetch more than they read; this is worth a word.
_FETCHED_OVER_READ = 1.5
_WAITED_SECONDS = 10.0
_PACK = "pack them into files of 100 MB or more (TFRecord, tar)"


@dataclass(frozen=True)
class Shape:
    """The files of a channel's source, of all hosts together."""

    count: int
    size_bytes: int
    median_bytes: int
    largest_bytes: int
    small: int
    """Files below `SMALL_BYTES`."""

    @classmethod
    def of(cls, sizes: Iterable[int]) -> Shape:
        """From the files' sizes in bytes."""
        ordered = sorted(sizes)
        if not ordered:
            return cls(0, 0, 0, 0, 0)
        small = sum(size < SMALL_BYTES for size in ordered)
        return cls(len(ordered), sum(ordered), ordered[len(ordered) // 2], ordered[-1], small)

    def __str__(self) -> str:
        if self.count == 1:
            return f"1 file of {format_size(self.size_bytes)}"
        return (
            f"{self.count:,} files, {format_size(self.size_bytes)}: median {format_size(self.median_bytes)}, largest "
            f"{format_size(self.largest_bytes)}"
        )


def before(shape: Shape, mode: str, hosts: int = 1, *, sharded: bool = False, record_io: bool = False) -> list[str]:
    """What a person should know before a job reads this, a line each; none where all is well.

    mode: File, FastFile or Pipe. hosts: those that get the channel.
    """
    mine = -(-shape.count // hosts) if sharded else shape.count
    lines = _shares(shape, hosts) if sharded else []
    many = shape.median_bytes < SMALL_BYTES and mine >= MANY
    seconds = mine / _RATES[mode]
    what = f"{mine:,} files of {format_size(shape.median_bytes)}" + (" a host" if sharded else "")
    if many and mode == "FastFile":
        lines.append(
            f"{what}, read in shuffled order: {_PACK}, or expect {_RATES[mode]:.0f} files/s a worker from S3 until "
            "they are fetched in the background"
        )
    elif many and seconds >= _LONG:
        when = "before the ranks start" if mode == "File" else "an epoch"
        lines.append(f"{what}: {_PACK}, or expect {_RATES[mode]:.0f} files/s from S3, {format_time(seconds)} {when}")
    lines += _volume(shape.size_bytes // (hosts if sharded else 1)) if mode == "File" else []
    if record_io and shape.largest_bytes > _RECORD_BYTES:
        lines.append(f"the largest file has {shape.largest_bytes} bytes; a RecordIO record has at most {_RECORD_BYTES}")
    return lines


def _shares(shape: Shape, hosts: int) -> list[str]:
    if shape.count < hosts:
        return [f"{shape.count} files for {hosts} hosts by ShardedByS3Key: {hosts - shape.count} hosts get none"]
    if shape.count % hosts and shape.count < 4 * hosts:
        most = shape.count // hosts + 1
        return [
            f"{shape.count} files for {hosts} hosts by ShardedByS3Key: {shape.count % hosts} hosts get {most}, the "
            f"others {most - 1}; hosts that go step by step together wait for each other"
        ]
    return []


def _volume(size_bytes: int) -> list[str]:
    seconds = size_bytes / _BYTES_PER_SECOND
    if seconds < _LONG:
        return []
    return [
        f"File mode copies {format_size(size_bytes)} to each host before the ranks start: {format_time(seconds)} or "
        "more at 10 Gbit/s, and as much disk; input_mode='FastFile' starts at once"
    ]


def after(numbers: Mapping[str, float]) -> list[str]:
    """What a FastFile channel's counters say should be done otherwise, a line each. numbers: as the mount counts."""
    lines = []
    waited, shuffled = numbers["waited_seconds"], numbers["small_out_of_order"]
    if shuffled >= MANY and waited >= _WAITED_SECONDS:
        lines.append(
            f"{shuffled:,.0f} small files were opened in shuffled order, and reads waited {waited:.0f} s for them in "
            f"all: {_PACK}, or tell the order beforehand (HDP_FASTFILE_ORDER)"
        )
    read, fetched = numbers["read_bytes"], numbers["fetched_bytes"]
    if read and fetched > _FETCHED_OVER_READ * read and fetched - read > 64 * SMALL_BYTES:
        lines.append(
            f"{fetched / read:.1f} bytes were fetched for each byte read: reads jump within files, or files are left "
            "early; read them from first to last, or use input_mode='File'"
        )
    return lines
