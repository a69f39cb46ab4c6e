"""Pipe mode on one host: FIFOs, RecordIO, gzip, shuffling, augmented manifests; from folders and a real S3 server."""

from __future__ import annotations

import gzip
import io
import json
import logging
import os
import random
import re
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hdp.contract.errors import ChannelError
from hdp.contract.files import Layout, write_json
from hdp.runtime.channels import readahead
from hdp.runtime.channels.keys import Entry
from hdp.runtime.channels.pipemode import in_order
from hdp.runtime.channels.provide import Channels
from hdp.runtime.channels.recordio import MAGIC, framed
from hdp.runtime.channels.stores import BotoStore
from hdp.runtime.environment import load


def records(stream: bytes) -> list[bytes]:
    """RecordIO read back, by the rules of MXNet's reader; every byte of the stream is accounted for."""
    found: list[bytes] = []
    parts: list[bytes] = []
    at = 0
    while at < len(stream):
        magic, word = struct.unpack_from("<4sI", stream, at)
        assert magic == MAGIC
        flag, length = word >> 29, word & ((1 << 29) - 1)
        assert (flag in (0, 1)) == (not parts)
        parts.append(stream[at + 8 : at + 8 + length])
        padded = length + -length % 4
        assert stream[at + 8 + length : at + 8 + padded] == bytes(padded - length)
        at += 8 + padded
        if flag in (0, 3):
            found.append(MAGIC.join(parts))
            parts = []
    assert at == len(stream) and not parts
    return found


@given(st.lists(st.sampled_from([MAGIC, b"", b"a", b"bc", b"0123", MAGIC[:3], MAGIC[1:]]), max_size=8).map(b"".join))
@example(MAGIC)
@example(MAGIC + MAGIC)
@example(b"abc" + MAGIC)
def test_a_record_is_read_back(content: bytes) -> None:
    """Also with the magic number in it, at a multiple of 4 or not; no other header is to be seen in the stream."""
    stream = b"".join(framed(content, "x"))
    assert records(stream) == [content]
    assert len(stream) % 4 == 0


def test_records_as_bytes() -> None:
    """3 bytes: magic, length, content, a zero. The magic number alone: two empty parts, flags 1 and 3."""
    assert b"".join(framed(b"abc", "x")) == bytes.fromhex("0a23d7ce 03000000 61626300")
    assert b"".join(framed(MAGIC, "x")) == bytes.fromhex("0a23d7ce 00000020 0a23d7ce 00000060")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """10 files, each with its name and a line break in it; the names tell the order."""
    folder = tmp_path / "source"
    folder.mkdir()
    for i in range(10):
        (folder / f"{i}").write_text(f"{i}\n")
    return folder


class Provide:
    """Provides a Pipe channel "train" on a host."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._running: list[Channels] = []

    def __call__(self, uri: str, host: int = 0, hosts: int = 1, **item: Any) -> Path:
        """The path to which an epoch's number is added. item: what InputDataConfig has, flat."""
        layout = Layout(self._root / f"host{host}")
        layout.config.mkdir(parents=True, exist_ok=True)
        names = [f"algo-{i + 1}" for i in range(hosts)]
        source = {"S3Uri": uri, **{k: item.pop(k) for k in list(item) if k.startswith(("S3", "Attribute"))}}
        channel = {"ChannelName": "train", "InputMode": "Pipe", "DataSource": {"S3DataSource": source}, **item}
        write_json(layout.resourceconfig, {"hosts": names, "current_host": names[host]})
        write_json(layout.inputdataconfig, {"train": {"TrainingInputMode": "Pipe"}})
        write_json(layout.config / "hdp-channels.json", {"channels": [channel]})
        self._running.append(Channels(load(layout, {})))
        self._running[-1].start()
        return layout.channel("train")

    def failure(self) -> str:
        """Why the channel that was started last can't go on; waits for it."""
        found = None
        end = time.monotonic() + 10
        while found is None and time.monotonic() < end:
            time.sleep(0.01)
            found = self._running[-1].failure()
        assert found is not None
        return found

    def stop(self) -> None:
        """End the channels."""
        for channels in self._running:
            channels.stop()
            channels.stop()


@pytest.fixture
def provide(tmp_path: Path) -> Iterator[Provide]:
    """See there. At the end no thread and no FIFO may be left."""
    provide = Provide(tmp_path)
    yield provide
    provide.stop()
    assert not [t for t in threading.enumerate() if t.name.startswith("hdp-pipe-train")]
    assert not list(tmp_path.glob("host*/input/data/train*"))


def epoch(target: Path, number: int) -> bytes:
    """Read an epoch to its end."""
    return target.with_name(f"{target.name}_{number}").read_bytes()


def test_each_epoch_has_all_objects_in_order(source: Path, provide: Provide) -> None:
    """Three epochs, opened one right after the other, without waiting for a FIFO to be made."""
    target = provide(source.as_uri())
    everything = b"".join(b"%d\n" % i for i in range(10))
    assert [epoch(target, n) for n in range(3)] == [everything] * 3


def test_the_fifos_of_two_epochs_are_there(source: Path, provide: Provide) -> None:
    """Before the first is opened: train_0 and train_1. After it was read: train_1 and train_2. No folder "train"."""
    target = provide(source.as_uri())
    assert fifos(target) == ["train_0", "train_1"]
    epoch(target, 0)
    wait_for(lambda: fifos(target) == ["train_1", "train_2"])


def test_an_epoch_may_be_left_out(source: Path, provide: Provide) -> None:
    """train_1 is opened first, then train_2 and train_3."""
    target = provide(source.as_uri())
    everything = b"".join(b"%d\n" % i for i in range(10))
    assert [epoch(target, n) for n in (1, 2, 3)] == [everything] * 3


def fifos(target: Path) -> list[str]:
    """What is beside the channel's place."""
    return sorted(path.name for path in target.parent.iterdir())


def wait_for(true: Callable[[], bool]) -> None:
    """Until `true()`."""
    end = time.monotonic() + 10
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_reader_who_leaves_early_finds_the_next_epoch(
    tmp_path: Path, provide: Provide, caplog: pytest.LogCaptureFixture
) -> None:
    """8 MB, of which 10 bytes are read: the next epoch is whole."""
    caplog.set_level(logging.INFO)
    (tmp_path / "large").write_bytes(content := random.Random(7).randbytes(8 << 20))
    target = provide((tmp_path / "large").as_uri())
    with target.with_name("train_0").open("rb") as early:
        assert early.read(10) == content[:10]
    assert epoch(target, 1) == content
    assert "channel train: the reader left epoch 0 after" in caplog.text


def test_two_epochs_may_be_read_at_once(tmp_path: Path, provide: Provide) -> None:
    """A script that opens the next epoch while it still reads one."""
    (tmp_path / "large").write_bytes(content := random.Random(7).randbytes(4 << 20))
    target = provide((tmp_path / "large").as_uri())
    with target.with_name("train_0").open("rb") as first, target.with_name("train_1").open("rb") as second:
        assert second.read() == content
        assert first.read() == content


def test_the_end_of_the_job_finds_no_reader_waiting(tmp_path: Path, provide: Provide) -> None:
    """Stopped in mid-epoch: the reader comes to an end, and nothing is left (the fixture looks)."""
    (tmp_path / "large").write_bytes(bytes(8 << 20))
    target = provide((tmp_path / "large").as_uri())
    with target.with_name("train_0").open("rb") as reader:
        reader.read(10)
        provide.stop()
        assert len(reader.read()) < 8 << 20


def test_a_source_that_goes_away_is_the_channels_failure(source: Path, provide: Provide) -> None:
    """The second epoch's files are gone: no end of the data, and the failure names the file."""
    target = provide(source.as_uri())
    epoch(target, 0)
    for path in source.iterdir():
        path.unlink()
    with target.with_name("train_1").open("rb") as reader:
        assert provide.failure() == f"channel 'train': {source}/0 can't be read: the file is gone"
        os.set_blocking(reader.fileno(), False)
        assert reader.read() is None  # nothing there, and not the end


def test_a_file_that_changes_is_the_channels_failure(source: Path, provide: Provide) -> None:
    """Its new content would be cut to the old size."""
    target = provide(source.as_uri())
    (source / "0").write_text("longer than before")
    with target.with_name("train_0").open("rb"):
        assert "source/0 can't be read: the file has changed since the job started" in provide.failure()


def test_shuffling_differs_by_epoch_and_agrees_between_runs(source: Path, provide: Provide) -> None:
    """Seed 7: the same lines in each epoch, in another order; `in_order` says which."""
    target = provide(source.as_uri(), ShuffleConfig={"Seed": 7})
    seen = [epoch(target, n).split() for n in range(3)]
    names = [b"%d" % i for i in range(10)]
    assert all(sorted(lines) == names for lines in seen)
    assert seen[0] != seen[1] != seen[2]
    assert seen == [in_order(names, 7, n, (0, 1)) for n in range(3)]


def test_shards_are_dealt_anew_each_epoch_when_shuffled(source: Path, provide: Provide) -> None:
    """2 hosts: each epoch they have all objects together, and not the same ones each time."""
    sharded = {"S3DataDistributionType": "ShardedByS3Key", "ShuffleConfig": {"Seed": 1}}
    hosts = [provide(source.as_uri(), host=h, hosts=2, **sharded) for h in range(2)]
    shares = [[frozenset(epoch(target, n).split()) for target in hosts] for n in range(3)]
    assert all(a | b == {b"%d" % i for i in range(10)} and not a & b for a, b in shares)
    assert len({a for a, _ in shares}) > 1


def test_shards_without_shuffling_are_those_of_file_mode(source: Path, provide: Provide) -> None:
    """Sorted and dealt, the same in each epoch."""
    hosts = [provide(source.as_uri(), host=h, hosts=2, S3DataDistributionType="ShardedByS3Key") for h in range(2)]
    for n in range(2):
        assert [epoch(t, n) for t in hosts] == [b"0\n2\n4\n6\n8\n", b"1\n3\n5\n7\n9\n"]


def test_each_object_is_a_record(source: Path, provide: Provide) -> None:
    """RecordIO: 11 records, of which one holds the magic number and one is empty."""
    (source / "0").write_bytes(b"1234" + MAGIC + b"5")
    (source / "empty").touch()
    stream = epoch(provide(source.as_uri(), RecordWrapperType="RecordIO"), 0)
    assert records(stream) == [b"1234" + MAGIC + b"5", *(b"%d\n" % i for i in range(1, 10)), b""]


@pytest.mark.parametrize("wrapped", [False, True])
def test_gzip_is_unpacked(tmp_path: Path, provide: Provide, wrapped: bool) -> None:
    """One archive, two in one object with zeros behind (more than is read at once), none, one of 5 MiB of zeros."""
    folder = tmp_path / "zipped"
    folder.mkdir()
    (folder / "a").write_bytes(gzip.compress(b"aaa"))
    (folder / "b").write_bytes(gzip.compress(b"b1") + gzip.compress(b"b2") + bytes(3 << 20))
    (folder / "c").write_bytes(b"")
    (folder / "d").write_bytes(gzip.compress(bytes(5 << 20)))
    wrapper = {"RecordWrapperType": "RecordIO"} if wrapped else {}
    stream = epoch(provide(folder.as_uri(), CompressionType="Gzip", **wrapper), 0)
    contents = [b"aaa", b"b1b2", b"", bytes(5 << 20)]
    assert (records(stream) == contents) if wrapped else (stream == b"".join(contents))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"plain text", "zipped isn't gzip: .*leave compression='Gzip' out"),
        (gzip.compress(b"x" * 1000, mtime=0)[:-9], "zipped is cut short: its gzip archive has no end"),
    ],
    ids=["text", "cut"],
)
def test_what_is_not_gzip_is_named(tmp_path: Path, provide: Provide, content: bytes, message: str) -> None:
    """Plain text; an archive without its end."""
    (tmp_path / "zipped").write_bytes(content)
    target = provide((tmp_path / "zipped").as_uri(), CompressionType="Gzip")
    with target.with_name("train_0").open("rb"):
        assert re.search(message, provide.failure())


def test_a_fifos_place_that_is_taken_is_an_error(source: Path, provide: Provide, tmp_path: Path) -> None:
    """Another channel is called train_3."""
    taken = tmp_path / "host0/input/data/train_3"
    taken.mkdir(parents=True)
    with pytest.raises(ChannelError, match=r"train_3 is where a FIFO of this channel belongs; rename the other"):
        provide(source.as_uri())
    taken.rmdir()


def test_what_a_killed_agent_left_is_replaced(source: Path, provide: Provide, tmp_path: Path) -> None:
    """Its FIFOs are there, to which nobody writes: a reader gets the data all the same."""
    folder = tmp_path / "host0/input/data"
    folder.mkdir(parents=True)
    for n in (0, 4):
        os.mkfifo(folder / f"train_{n}")
    target = provide(source.as_uri())
    assert epoch(target, 0) == b"".join(b"%d\n" % i for i in range(10))
    assert not (folder / "train_4").exists()


# -- S3 --------------------------------------------------------------------------------------------------------------


def test_objects_stream_in_parts_and_in_order(s3: Any, provide: Provide, monkeypatch: pytest.MonkeyPatch) -> None:
    """30 small objects and one of 3 MB, parts of 64 KiB, at most 256 KiB ahead: byte for byte."""
    monkeypatch.setattr(readahead, "_FIRST_BYTES", 16 << 10)
    monkeypatch.setattr(readahead, "_PART_BYTES", 64 << 10)
    monkeypatch.setattr(readahead, "_AHEAD_BYTES", 256 << 10)
    rng = random.Random(7)
    contents = {f"p/{i:02d}": rng.randbytes(rng.randrange(100)) for i in range(30)} | {
        "p/15large": rng.randbytes(3 << 20)
    }
    for key, content in contents.items():
        s3.put_object(Bucket="data", Key=key, Body=content)
    target = provide("s3://data/p/")
    for n in range(2):
        assert epoch(target, n) == b"".join(contents[k] for k in sorted(contents))


def test_an_object_that_changes_ends_the_channel(s3: Any, provide: Provide) -> None:
    """It is pinned by the ETag that was listed."""
    s3.put_object(Bucket="data", Key="p/a", Body=b"one")
    target = provide("s3://data/p/")
    s3.put_object(Bucket="data", Key="p/a", Body=b"two")
    with target.with_name("train_0").open("rb"):
        assert "s3://data/p/a can't be read: 412: the object has changed since the job started" in provide.failure()


def test_without_obstore_boto3_reads(s3: Any) -> None:
    """A range, an object that changed, one that is gone."""
    s3.put_object(Bucket="data", Key="a", Body=b"0123456789")
    etag = s3.head_object(Bucket="data", Key="a")["ETag"]
    store = BotoStore("data", 2)
    assert bytes(store.get(Entry("a", "a", 10, etag), 3, 6)) == b"345"
    for entry, message in ((Entry("a", "a", 10, '"0"'), "412: the object has changed"), (Entry("b", "b", 1), "404")):
        with pytest.raises(ChannelError, match=message):
            store.get(entry, 0, 1)


IMAGES = {"i/1": b"image one", "i/2": MAGIC + b"image two"}


def augmented(s3: Any, *lines: Any) -> None:
    """The images, and s3://data/lines.manifest with these lines; a line that isn't text is written as JSON."""
    for key, content in IMAGES.items():
        s3.put_object(Bucket="data", Key=key, Body=content)
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    s3.put_object(Bucket="data", Key="lines.manifest", Body=text.encode())


def stream_lines(provide: Provide, *attributes: str, **item: Any) -> Path:
    """The channel of that manifest."""
    return provide("s3://data/lines.manifest", S3DataType="AugmentedManifestFile", AttributeNames=attributes, **item)


LINES = [
    {"source-ref": "s3://data/i/1", "label": 3, "note": "left out"},
    {"source-ref": "s3://data/i/2", "label": {"box": [1, 2], "of": "é"}},
]


def test_attributes_are_streamed_line_by_line(s3: Any, provide: Provide) -> None:
    """RecordIO: object, label, object, label; the labels as JSON."""
    augmented(s3, *LINES)
    stream = epoch(stream_lines(provide, "source-ref", "label", RecordWrapperType="RecordIO"), 0)
    assert records(stream) == [IMAGES["i/1"], b"3", IMAGES["i/2"], '{"box":[1,2],"of":"é"}'.encode()]


def test_the_order_of_attributes_is_that_of_attribute_names(s3: Any, provide: Provide) -> None:
    """Label first; lines shuffled as wholes."""
    augmented(s3, *LINES)
    target = stream_lines(provide, "label", "source-ref", RecordWrapperType="RecordIO", ShuffleConfig={"Seed": 3})
    for n in range(3):
        got = records(epoch(target, n))
        assert {(got[0], got[1]), (got[2], got[3])} == {
            (b"3", IMAGES["i/1"]), ('{"box":[1,2],"of":"é"}'.encode(), IMAGES["i/2"])
        }  # fmt: skip


def test_lines_are_dealt_to_hosts(s3: Any, provide: Provide) -> None:
    """2 hosts, 3 lines: the first has lines 1 and 3."""
    augmented(s3, *({"label": i} for i in range(3)))
    sharded = {"S3DataDistributionType": "ShardedByS3Key", "RecordWrapperType": "RecordIO"}
    hosts = [stream_lines(provide, "label", host=h, hosts=2, **sharded) for h in range(2)]
    assert [records(epoch(t, 0)) for t in hosts] == [[b"0", b"2"], [b"1"]]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 of s3://data/lines.manifest isn't JSON"),
        ([1], "line 2 of s3://data/lines.manifest is .1.; expected an object with the attributes source-ref, label"),
        ({"label": 1}, "line 2 of s3://data/lines.manifest lacks the attribute 'source-ref'; it has label"),
        ({"source-ref": "i/1", "label": 1}, "has source-ref 'i/1'; expected s3://bucket/key"),
        ({"source-ref": "s3://data", "label": 1}, "has source-ref 's3://data'; expected s3://bucket/key"),
        ({"source-ref": "s3://data/", "label": 1}, "has source-ref 's3://data/'; expected s3://bucket/key"),
        ({"source-ref": "file://x", "label": 1}, "has source-ref 'file://x'; expected s3://bucket/key"),
        ({"source-ref": "file:///no/such", "label": 1}, "channel 'train' from s3://data/lines.manifest: .*/no/such"),
        (
            {"source-ref": "s3://data/i/9", "label": 1},
            "lines.manifest names 1 objects that aren't there, such as s3://data/i/9",
        ),
    ],
)
def test_a_fault_of_a_line_is_told_before_the_job_starts(s3: Any, provide: Provide, line: Any, message: str) -> None:
    """The second line is at fault; no FIFO is there."""
    augmented(s3, LINES[0], line)
    with pytest.raises(ChannelError, match=message):
        stream_lines(provide, "source-ref", "label")


def test_an_empty_augmented_manifest_is_an_error(s3: Any, provide: Provide) -> None:
    """No lines."""
    augmented(s3)
    with pytest.raises(ChannelError, match=r"the augmented manifest s3://data/lines.manifest has no lines"):
        stream_lines(provide, "label")


def test_a_reader_gets_the_first_bytes_before_the_rest_is_fetched() -> None:
    """`read_ahead` holds no more than it may: with 1 byte allowed, at most two parts are asked for before the first."""
    asked: list[int] = []

    class Counting:
        def get(self, entry: Entry, start: int, end: int) -> memoryview:
            asked.append(start)
            return memoryview(bytes(end - start))

        def uri(self, entry: Entry) -> str:
            return entry.key

    values = [readahead_object(i) for i in range(50)]
    with ThreadPoolExecutor(4) as pool, pytest.MonkeyPatch.context() as patch:
        patch.setattr(readahead, "_AHEAD_BYTES", 1)
        chunks = readahead.read_ahead(values, lambda _base: Counting(), pool)
        first = next(chunks)
        chunks.close()  # type: ignore[attr-defined]
    assert (len(first.data), first.last) == (10, True)
    assert len(asked) <= 2


def readahead_object(i: int) -> Any:
    """An object of 10 bytes."""
    from hdp.runtime.channels.augmented import Object

    return Object("memory", Entry(str(i), str(i), 10))


def test_the_stream_of_records_needs_no_more_than_its_reader(provide: Provide, source: Path) -> None:
    """A reader through Python's buffered file sees each record at once."""
    target = provide(source.as_uri(), RecordWrapperType="RecordIO")
    with io.BufferedReader(io.FileIO(target.with_name("train_0"))) as reader:  # type: ignore[arg-type]
        assert reader.read(8) == MAGIC + struct.pack("<I", 2)
        assert reader.read(4) == b"0\n\0\0"
