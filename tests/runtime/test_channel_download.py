"""File mode's download: in parallel, checked, with progress, and resumed after a kill. From a real S3 server."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hdp.contract.errors import ChannelError
from hdp.runtime.channels import download, journal
from hdp.runtime.channels.fastfile.retry import RetryingStore
from hdp.runtime.channels.fastfile.stats import Stats
from hdp.runtime.channels.fastfile.store import Denied, FaultyStore, MemoryStore, Transient
from hdp.runtime.channels.filemode import copy_channel
from hdp.runtime.channels.keys import Entry, Listing
from hdp.runtime.channels.listing import source_listing
from hdp.runtime.channels.spec import ChannelSpec

SPEC = ChannelSpec("train", "s3://data/p/")
Fault = Callable[[Entry, int], None]


def never() -> bool:
    """Nobody stops the channel."""
    return False


def contents(count: int) -> dict[str, bytes]:
    """Objects of some hundred bytes, one of 300 KB, an empty one."""
    rng = random.Random(7)
    small = {f"p/{i % 7}/{i:03d}": rng.randbytes(rng.randrange(400)) for i in range(count)}
    return {**small, "p/large": rng.randbytes(300_000), "p/empty": b""}


def tree(folder: Path) -> dict[str, bytes]:
    """The files below `folder`."""
    return {f"p/{p.relative_to(folder).as_posix()}": p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Listing]:
    """A function that has downloads read from memory, with faults, and gives the listing."""

    def use(objects: dict[str, bytes], fault: Fault = lambda _entry, _n: None, seconds: float = 0.0) -> Listing:
        use.store = FaultyStore(MemoryStore(objects), fault, seconds)  # type: ignore[attr-defined]
        monkeypatch.setattr(download, "open_store", lambda *_: RetryingStore(use.store, Stats(), tries=1))  # type: ignore[attr-defined]
        monkeypatch.setattr(download, "_PART_BYTES", 10_000)
        return Listing("s3://data", tuple(Entry(k, k[2:], len(v), f'"{hash(v)}"') for k, v in objects.items()))

    return use


def test_objects_arrive_byte_for_byte(s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """30 small objects, one in 30 parts, an empty one; nothing else is left beside the folder."""
    monkeypatch.setattr(download, "_PART_BYTES", 10_000)
    for key, content in contents(30).items():
        s3.put_object(Bucket="data", Key=key, Body=content)
    copy_channel(SPEC, source_listing(SPEC), tmp_path / "train", never)
    assert tree(tmp_path / "train") == contents(30)
    assert [p.name for p in tmp_path.iterdir()] == ["train"]


def test_an_object_that_is_not_as_listed_is_refused(s3: Any, tmp_path: Path) -> None:
    """Another ETag, and no such object: named, and no file is left."""
    s3.put_object(Bucket="data", Key="p/a", Body=b"new")
    for entry, message in (
        (Entry("p/a", "a", 3, '"0"'), "s3://data/p/a can't be read: 412: the object has changed since the job"),
        (Entry("p/b", "b", 3), "s3://data/p/b can't be read: 404: the object is gone"),
    ):
        with pytest.raises(ChannelError, match=message):
            copy_channel(SPEC, Listing("s3://data", (entry,)), tmp_path / "train", never)
        assert list(tmp_path.iterdir()) == []


def test_a_download_larger_than_the_disk_is_refused_at_once(tmp_path: Path) -> None:
    """An object of an exabyte, as listed."""
    with pytest.raises(ChannelError, match=r"GB free, the channel needs 1000000000\.00 GB more; ask for a larger"):
        copy_channel(SPEC, Listing("s3://data", (Entry("x", "x", 10**18),)), tmp_path / "train", never)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["n" * 256, "ü" * 128], ids=["ascii", "other"])
def test_a_name_that_no_disk_takes_is_refused_before_the_download(tmp_path: Path, memory: Any, name: str) -> None:
    """S3 takes keys of 1,024 bytes, a file's name has 255 at most."""
    listing = memory({"p/fits": b"x", f"p/a/{name}": b"x"})
    with pytest.raises(ChannelError, match=r"has a name of 256 bytes between slashes, .* takes 255; rename the object"):
        copy_channel(SPEC, listing, tmp_path / "train", never)
    assert list(tmp_path.iterdir()) == []
    assert not memory.store.tries, "nothing is fetched before"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a small disk")
def test_a_disk_that_somebody_fills_meanwhile_is_said(tmp_path: Path, memory: Any) -> None:
    """1 MiB, of which 300 KB are wanted; once the first part is asked for, all is taken. Expected: told, no file."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], check=True)

    def fill(_entry: Entry, n: int) -> None:
        if n == 1:
            with contextlib.suppress(OSError):  # it takes what there is
                (disk / "of-others").write_bytes(bytes(2 << 20))

    try:
        listing = memory({"p/large": bytes(300_000)}, fill)
        with pytest.raises(ChannelError, match=r"disk of .*/disk was full before 0\.00 GB were there .* larger volume"):
            copy_channel(SPEC, listing, disk / "train", never)
        assert not [p for p in disk.iterdir() if "train" in p.name]
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def test_the_first_error_ends_the_download(tmp_path: Path, memory: Any) -> None:
    """The object p/3/010 may not be read: the error names it, all threads end, no channel is there."""

    def fault(entry: Entry, _n: int) -> None:
        if entry.key == "p/3/010":
            raise Denied("403: the object may not be read")

    with pytest.raises(ChannelError, match="memory:p/3/010 can't be read: 403: the object"):
        copy_channel(SPEC, memory(contents(30), fault), tmp_path / "train", never)
    assert not [t for t in threading.enumerate() if t.name == "hdp-download"]
    assert list(tmp_path.iterdir()) == []


def test_what_was_fetched_before_the_network_went_is_kept(
    tmp_path: Path, memory: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The last part of the large object can't be had. Expected: the next try fetches only what is missing."""
    caplog.set_level(logging.INFO)
    objects = {"p/large": contents(0)["p/large"]}

    def fault(_entry: Entry, n: int) -> None:
        if n == 30:
            raise Transient("503: slow down")

    with pytest.raises(ChannelError, match="p/large can't be read: 503: slow down"):
        copy_channel(SPEC, memory(objects, fault), tmp_path / "train", never)
    assert not (tmp_path / "train").exists()
    before = len(list((tmp_path / ".train.partial.parts").read_bytes().splitlines())) - 1
    copy_channel(SPEC, memory(objects), tmp_path / "train", never)
    assert tree(tmp_path / "train") == objects
    assert memory.store.tries["p/large"] == 30 - before > 0 and before >= 25
    assert "channel train: 0.3 MB are there from an earlier download" in caplog.text


def test_an_object_that_changed_meanwhile_is_fetched_whole(tmp_path: Path, memory: Any) -> None:
    """Half of it is there from an earlier try, by another ETag; a file that is no more listed is there, too."""
    old, new = {"p/a": b"1" * 50_000, "p/b": b"b"}, {"p/a": b"2" * 20_000}
    folder = tmp_path / ".train.partial"
    folder.mkdir()
    earlier = journal.Journal(folder, "s3://data")
    for entry in memory(old).items:
        (folder / entry.path).write_bytes(old[entry.key])
        earlier.add(entry, 0, 10_000)
    earlier.close()
    copy_channel(SPEC, memory(new), tmp_path / "train", never)
    assert tree(tmp_path / "train") == new


def half_done(folder: Path, entry: Entry, content: bytes) -> None:
    """What a killed download leaves of `content`: its first part of two, and the journal's line."""
    folder.mkdir()
    (folder / entry.path).write_bytes(content[:10_000])
    earlier = journal.Journal(folder, "s3://data")
    earlier.add(entry, 0, 10_000)
    earlier.close()


@pytest.mark.parametrize("times", [(1000.0, 1060.0), (0.0, 0.0)], ids=["another time", "no time"])
def test_without_an_etag_two_versions_are_not_mixed(tmp_path: Path, memory: Any, times: tuple[float, float]) -> None:
    """Half of an object of the same size is there, from a server without ETags. Expected: all is fetched again."""
    objects = {"p/a": b"2" * 20_000}
    before, now = (Entry("p/a", "a", 20_000, None, time) for time in times)
    half_done(tmp_path / ".train.partial", before, b"1" * 20_000)
    copy_channel(SPEC, replace(memory(objects), items=(now,)), tmp_path / "train", never)
    assert tree(tmp_path / "train") == objects
    assert memory.store.tries == {"p/a": 2}


def test_without_an_etag_the_same_version_goes_on(tmp_path: Path, memory: Any) -> None:
    """The listed time is the same. Expected: only the second part is fetched."""
    objects = {"p/a": b"1" * 20_000}
    entry = Entry("p/a", "a", 20_000, None, 1000.5)
    half_done(tmp_path / ".train.partial", entry, objects["p/a"])
    copy_channel(SPEC, replace(memory(objects), items=(entry,)), tmp_path / "train", never)
    assert tree(tmp_path / "train") == objects
    assert memory.store.tries == {"p/a": 1}


@pytest.mark.parametrize("part_bytes", [15_000, 5_000])
def test_parts_of_another_size_count_for_nothing(
    tmp_path: Path, memory: Any, monkeypatch: pytest.MonkeyPatch, part_bytes: int
) -> None:
    """Parts of 10,000 bytes were fetched by another version of this program. Expected: every byte is right."""
    objects = {"p/a": random.Random(3).randbytes(20_000)}
    listing = memory(objects)
    half_done(tmp_path / ".train.partial", listing.items[0], objects["p/a"])
    monkeypatch.setattr(download, "_PART_BYTES", part_bytes)
    copy_channel(SPEC, listing, tmp_path / "train", never)
    assert tree(tmp_path / "train") == objects


@pytest.mark.parametrize("what", ["another bucket", "another boot", "a line cut short"])
def test_a_journal_that_does_not_count(tmp_path: Path, memory: Any, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """What is there is of another bucket, or may have been lost when the machine went down: fetched again."""
    objects = {"p/a": b"1" * 15_000}
    listing = memory(objects)
    folder = tmp_path / ".train.partial"
    folder.mkdir()
    (folder / "a").write_bytes(b"0" * 15_000)
    earlier = journal.Journal(folder, "s3://other" if what == "another bucket" else "s3://data")
    if what != "a line cut short":
        earlier.add(listing.items[0], 0, 10_000)
    earlier.close()
    if what == "a line cut short":
        with (tmp_path / ".train.partial.parts").open("ab") as file:
            file.write(b'["a", ')
    if what == "another boot":
        (tmp_path / "boot").write_text("another\n")
        monkeypatch.setattr(journal, "_BOOT_ID", tmp_path / "boot")
    copy_channel(SPEC, listing, tmp_path / "train", never)
    assert tree(tmp_path / "train") == objects


def test_stopped_in_the_middle_nothing_is_there(tmp_path: Path, memory: Any) -> None:
    """The channel is stopped once a few parts were fetched."""
    listing = memory(contents(200), seconds=0.01)
    copy_channel(SPEC, listing, tmp_path / "train", lambda: len(memory.store.tries) > 60)
    assert list(tmp_path.iterdir()) == []
    assert len(memory.store.tries) < 200


def test_progress_is_said(
    tmp_path: Path, memory: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As often as it is looked at: so many of all MB, the rate, the time left."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(download._Bucket, "threads", 2)
    monkeypatch.setattr(download, "_PROGRESS_SECONDS", 0.0)
    monkeypatch.setattr(download, "_LOOK_SECONDS", 0.01)
    objects = {f"p/{i}": bytes(100_000) for i in range(10)}
    copy_channel(SPEC, memory(objects, seconds=0.005), tmp_path / "train", never)
    assert re.search(r"channel train: \d of 1 MB, \d+ MB/s, \S+( s| ms| us)? left", caplog.text)


def test_a_file_that_somebody_cut_is_told(tmp_path: Path, memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder's file is shortened before the channel is put in its place."""
    listing = memory({"p/a": b"12345"})

    def cut(*args: Any) -> None:
        fetch(*args)
        os.truncate(tmp_path / ".train.partial/a", 2)

    fetch = download.download
    monkeypatch.setattr("hdp.runtime.channels.filemode.download", cut)
    with pytest.raises(ChannelError, match="s3://data/p/a: 2 bytes are on the disk, 5 were listed"):
        copy_channel(SPEC, listing, tmp_path / "train", never)


def test_a_folder_without_room_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that would need more than the disk has, on a file system that shares nothing."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source/a").write_bytes(b"12345")
    listing = source_listing(ChannelSpec("train", (tmp_path / "source").as_uri()))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: replace_free(usage))
    monkeypatch.setattr("hdp.runtime.channels.filemode.can_clone", lambda *_: False)
    with pytest.raises(ChannelError, match=r"has 0\.00 GB free, the channel needs 0\.00 GB more"):
        copy_channel(SPEC, listing, tmp_path / "train", never)


def replace_free(usage: Any) -> Any:
    """A disk with 4 bytes left."""
    return usage._replace(free=4)


SLOW = """
import sys
from pathlib import Path
from hdp.runtime.channels import download
from hdp.runtime.channels.fastfile.store import FaultyStore
from hdp.runtime.channels.filemode import copy_channel
from hdp.runtime.channels.listing import source_listing
from hdp.runtime.channels.spec import ChannelSpec

open_store = download.open_store
download._PART_BYTES, download._CONNECTIONS = 10_000, 2
def slow(base, connections):
    store = open_store(base, connections)
    store._store = FaultyStore(store._store, seconds=0.05)
    return store
download.open_store = slow
spec = ChannelSpec("train", "s3://data/p/")
copy_channel(spec, source_listing(spec), Path(sys.argv[1]) / "train", lambda: False)
"""


def test_a_killed_download_goes_on(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """SIGKILL after 5 or more of some 40 parts; then again, here: the rest is fetched, all bytes are right."""
    caplog.set_level(logging.INFO)
    for key, content in contents(10).items():
        s3.put_object(Bucket="data", Key=key, Body=content)
    parts = tmp_path / ".train.partial.parts"
    with subprocess.Popen([sys.executable, "-c", SLOW, str(tmp_path)]) as process:
        end = time.monotonic() + 60
        while not parts.exists() or parts.read_bytes().count(b"\n") < 6:
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    monkeypatch.setattr(download, "_PART_BYTES", 10_000)
    copy_channel(SPEC, source_listing(SPEC), tmp_path / "train", never)
    assert tree(tmp_path / "train") == contents(10)
    assert "are there from an earlier download" in caplog.text
    assert [p.name for p in tmp_path.iterdir()] == ["train"]
