"""The example that streams: its reader of TFRecord files, and its jobs in both frameworks."""

import os
import random
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch isn't installed: pip install 'hdp-train[torch]'")
EXAMPLE = Path(__file__).parents[2] / "examples/digits_stream"
#: Three records, as TensorFlow 2.21's TFRecordWriter writes them.
CONTENTS = [b"", b"digit", bytes(range(7)) * 3]
WRITTEN = bytes.fromhex(
    "000000000000000029039807d8ea82a2"
    "0500000000000000eab2043e64696769744254e510"
    "1500000000000000d6ab6b2b000102030405060001020304050600010203040506817d1423"
)
needs_fuse = pytest.mark.skipif(
    os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK), reason="needs root and /dev/fuse, to stream"
)


@pytest.fixture(scope="module")
def tfrecord():
    """The example's module; its name is no other example's."""
    sys.path.insert(0, str(EXAMPLE))
    import tfrecord

    yield tfrecord
    sys.path.remove(str(EXAMPLE))


def test_the_checksum_is_crc_32c(tfrecord):
    """The check value of the catalogue of CRCs."""
    assert tfrecord.crc32c(b"123456789") == 0xE3069283


def test_files_are_those_that_tensorflow_writes(tfrecord, tmp_path):
    """Byte for byte; and read back."""
    tfrecord.write_records(tmp_path / "a", CONTENTS)
    assert (tmp_path / "a").read_bytes() == WRITTEN
    assert list(tfrecord.read_records(tmp_path / "a")) == CONTENTS


def test_each_flipped_bit_is_found(tfrecord, tmp_path):
    """A bit of any byte: the records before it come, then an error with the file's name."""
    for place in range(len(WRITTEN)):
        damaged = bytearray(WRITTEN)
        damaged[place] ^= 1 << random.Random(place).randrange(8)
        (tmp_path / "a").write_bytes(damaged)
        read = []
        with pytest.raises(ValueError, match=re.escape(f"{tmp_path}/a: ")):
            read.extend(tfrecord.read_records(tmp_path / "a"))
        assert read == CONTENTS[: len(read)]


@pytest.mark.parametrize("size", [3, 14, 20, 36, len(WRITTEN) - 1])
def test_a_file_that_is_cut_is_told(tfrecord, tmp_path, size):
    """In a head, in a checksum, in a content."""
    (tmp_path / "a").write_bytes(WRITTEN[:size])
    with pytest.raises(ValueError, match=r"no record begins at byte|is cut or damaged"):
        list(tfrecord.read_records(tmp_path / "a"))


def test_the_stream_has_every_digit_in_another_order(tfrecord, tmp_path):
    """3 files x 40 digits, a buffer of 10: each pass over the files has all labels; two seeds differ."""
    for file in range(3):
        records = [bytes([file * 40 + i] * 65) for i in range(40)]
        tfrecord.write_records(tmp_path / f"{file}", records)
    files = sorted(tmp_path.iterdir())
    first, second = ([label for _, label in islice(tfrecord.Records(files, seed, 10), 600)] for seed in (1, 2))
    assert first != second and first[:120] != sorted(first[:120])
    counts = [first.count(label) for label in range(120)]
    assert sum(counts) == 600 and min(counts) >= 4 and max(counts) <= 6


def run(tmp_path: Path, *arguments: str) -> str:
    """What the example prints."""
    environment = {**os.environ, "HDP_HOME": str(tmp_path / "home")}
    command = [sys.executable, str(EXAMPLE / "run.py"), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def accuracy(said: str) -> float:
    """As the example's summary has it."""
    return float(re.search(r"test accuracy   (\S+) on", said)[1])


@pytest.mark.slow
@needs_fuse
@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
def test_digits_stream_from_s3(tmp_path, framework):
    """2 hosts x 1 rank, FastFile from the example's own S3 server: it learns, and every rank has the same weights."""
    if framework == "tensorflow":
        pytest.importorskip("tensorflow", reason="tensorflow isn't installed: pip install 'hdp-train[tensorflow]'")
    said = run(tmp_path, "--framework", framework, "--ranks", "1", "--steps", "150")
    assert accuracy(said) > 0.9
    assert "training from s3://digits/hdp-digits/training/ in FastFile mode" in said
    assert "channel test: File, 1 files" in said
    digests = re.findall(r"weights sha256 (\w+)", said)
    assert len(digests) == 2 and len(set(digests)) == 1


@pytest.mark.slow
def test_digits_are_copied_where_nothing_can_be_mounted(tmp_path):
    """--local, as without FUSE: said so, and trained from file://."""
    said = run(tmp_path, "--local", "--hosts", "1", "--ranks", "1", "--steps", "150")
    assert "not streaming from S3 (--local): the digits are copied from file://" in said
    assert accuracy(said) > 0.9 and "in File mode" in said
