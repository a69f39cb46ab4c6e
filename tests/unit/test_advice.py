"""What is said of a channel's data, from numbers alone."""

from __future__ import annotations

import pytest

from hdp.contract.advice import Shape, after, before

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SMALL = Shape.of([20 * KIB] * 2000)
LARGE = Shape.of([128 * MIB] * 8)


def test_a_shape_counts() -> None:
    """Three sizes: sum, median, largest, and how many are small."""
    assert Shape.of([3 * MIB, 1, 100]) == Shape(3, 3 * MIB + 101, 100, 3 * MIB, 2)
    assert Shape.of([]) == Shape(0, 0, 0, 0, 0)


def test_a_shape_is_said() -> None:
    """In one line."""
    assert str(SMALL) == "2,000 files, 39.1 MiB: median 20 KiB, largest 20 KiB"
    assert str(Shape.of([5])) == "1 file of 5 B"


@pytest.mark.parametrize(
    ("shape", "arguments", "said"),
    [
        (LARGE, {"mode": "FastFile"}, ""),
        (LARGE, {"mode": "File"}, ""),
        (LARGE, {"mode": "Pipe", "record_io": True}, ""),
        (SMALL, {"mode": "File"}, ""),
        (
            SMALL,
            {"mode": "FastFile"},
            "2,000 files of 20 KiB, read in shuffled order: pack them into files of 100 MB or more (TFRecord, tar), or "
            "expect 35 files/s a worker from S3 until they are fetched in the background",
        ),
        (
            Shape.of([20 * KIB] * 1_000_000),
            {"mode": "File", "hosts": 2, "sharded": True},
            "500,000 files of 20 KiB a host: pack them into files of 100 MB or more (TFRecord, tar), or expect 1500 "
            "files/s from S3, 333 s before the ranks start",
        ),
        (
            Shape.of([20 * KIB] * 100_000),
            {"mode": "Pipe"},
            "100,000 files of 20 KiB: pack them into files of 100 MB or more (TFRecord, tar), or expect 1000 files/s "
            "from S3, 100 s an epoch",
        ),
        (
            Shape.of([GIB] * 100),
            {"mode": "File", "hosts": 4},
            "File mode copies 100 GiB to each host before the ranks start: 85.9 s or more at 10 Gbit/s, and as much "
            "disk; input_mode='FastFile' starts at once",
        ),
        (
            Shape.of([GIB] * 3),
            {"mode": "FastFile", "hosts": 8, "sharded": True},
            "3 files for 8 hosts by ShardedByS3Key: 5 hosts get none",
        ),
        (
            Shape.of([GIB] * 10),
            {"mode": "FastFile", "hosts": 4, "sharded": True},
            "10 files for 4 hosts by ShardedByS3Key: 2 hosts get 3, the others 2; hosts that go step by step together "
            "wait for each other",
        ),
        (
            Shape.of([GIB]),
            {"mode": "Pipe", "record_io": True},
            "the largest file has 1073741824 bytes; a RecordIO record has at most 536870911",
        ),
    ],
)
def test_what_is_said_before_a_job(shape: Shape, arguments: dict[str, object], said: str) -> None:
    """One line, or none."""
    assert before(shape, **arguments) == ([said] if said else [])  # type: ignore[arg-type]


NUMBERS = {"waited_seconds": 0.0, "small_out_of_order": 0.0, "read_bytes": 1e9, "fetched_bytes": 1.01e9}


@pytest.mark.parametrize(
    ("counted", "said"),
    [
        ({}, ""),
        ({"small_out_of_order": 5000, "waited_seconds": 2}, ""),
        (
            {"small_out_of_order": 5000, "waited_seconds": 81.4},
            "5,000 small files were opened in shuffled order, and reads waited 81 s for them in all: pack them into "
            "files of 100 MB or more (TFRecord, tar), or tell the order beforehand (HDP_FASTFILE_ORDER)",
        ),
        (
            {"fetched_bytes": 3.2e9},
            "3.2 bytes were fetched for each byte read: reads jump within files, or files are left early; read them "
            "from first to last, or use input_mode='File'",
        ),
        ({"read_bytes": 0.0}, ""),
    ],
)
def test_what_is_said_after_a_job(counted: dict[str, float], said: str) -> None:
    """One line, or none."""
    assert after({**NUMBERS, **counted}) == ([said] if said else [])
