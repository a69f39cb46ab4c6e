"""Channels in File mode, from folders and from a real S3 server."""

from __future__ import annotations

import io
import json
import logging
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from hdp.contract.errors import ChannelError, LaunchError
from hdp.contract.files import Layout, whole_file, write_json
from hdp.runtime.archive import unpack
from hdp.runtime.channels import copying
from hdp.runtime.channels.copying import copy_file
from hdp.runtime.channels.keys import Entry, check_clashes, relative_to_prefix, safe_path, shard
from hdp.runtime.channels.manifest import parse_manifest
from hdp.runtime.channels.provide import Channels
from hdp.runtime.channels.spec import parse_channels
from hdp.runtime.environment import load


def item(uri: str, **source: Any) -> dict[str, Any]:
    """A channel "train" as in InputDataConfig; keys other than S3DataSource's own go to the channel."""
    own = {k: source.pop(k) for k in ("InputMode", "CompressionType", "RecordWrapperType") if k in source}
    return {"ChannelName": "train", "DataSource": {"S3DataSource": {"S3Uri": uri, **source}}, **own}


def provide(root: Path, *items: dict[str, Any], host: int = 0, hosts: int = 1) -> dict[str, str]:
    """Provide the channels on host number `host`. Returns the files of the channel "train" with their content."""
    layout = Layout(root)
    layout.config.mkdir(parents=True, exist_ok=True)
    names = [f"algo-{i + 1}" for i in range(hosts)]
    write_json(layout.resourceconfig, {"hosts": names, "current_host": names[host]})
    write_json(layout.inputdataconfig, {i["ChannelName"]: {"TrainingInputMode": "File"} for i in items})
    write_json(layout.config / "hdp-channels.json", {"channels": list(items)})
    Channels(load(layout, {})).start()
    base = layout.channel("train")
    return {p.relative_to(base).as_posix(): p.read_text() for p in sorted(base.rglob("*")) if p.is_file()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A source folder: a, sub/b, sub/deep/c, each with its own name in it."""
    base = tmp_path / "source"
    for name in ("a", "sub/b", "sub/deep/c"):
        path = base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return base


WHOLE = {"a": "a", "sub/b": "sub/b", "sub/deep/c": "sub/deep/c"}


def test_a_folder_is_copied_whole(folder: Path, tmp_path: Path) -> None:
    """file:///source: every file at its place."""
    assert provide(tmp_path / "host", item(f"file://{folder}")) == WHOLE


def test_a_copy_is_the_hosts_own(folder: Path, tmp_path: Path) -> None:
    """Writing to the channel leaves the source as it is."""
    provide(tmp_path / "host", item(f"file://{folder}"))
    (tmp_path / "host/input/data/train/a").write_text("changed")
    assert (folder / "a").read_text() == "a"


def test_a_single_file_keeps_its_name(folder: Path, tmp_path: Path) -> None:
    """file:///source/a: the channel has the file a."""
    assert provide(tmp_path / "host", item(f"file://{folder}/a")) == {"a": "a"}


def test_a_folder_with_odd_characters(folder: Path, tmp_path: Path) -> None:
    """A space, a percent sign, a hash: as they are, or percent-encoded."""
    odd = folder.rename(tmp_path / "my data 50%#1")
    assert provide(tmp_path / "host-1", item(f"file://{odd}")) == WHOLE
    encoded = str(odd).replace("%", "%25").replace(" ", "%20").replace("#", "%23")
    assert provide(tmp_path / "host-2", item(f"file://{encoded}")) == WHOLE


def test_links_to_files_are_followed_and_loops_end(folder: Path, tmp_path: Path) -> None:
    """A link to a file is the file; a link to the folder itself isn't entered."""
    (folder / "link").symlink_to(folder / "a")
    (folder / "sub/loop").symlink_to(folder)
    assert provide(tmp_path / "host", item(f"file://{folder}")) == {**WHOLE, "link": "a"}


def test_shards_are_disjoint_and_complete(folder: Path, tmp_path: Path) -> None:
    """3 files over 2 hosts by ShardedByS3Key: sorted, round robin."""
    sharded = item(f"file://{folder}", S3DataDistributionType="ShardedByS3Key")
    assert list(provide(tmp_path / "h1", sharded, host=0, hosts=2)) == ["a", "sub/deep/c"]
    assert list(provide(tmp_path / "h2", sharded, host=1, hosts=2)) == ["sub/b"]


def test_more_hosts_than_files_leaves_a_host_without(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """3 files, 4 hosts: algo-4 has an empty channel and a warning."""
    sharded = item(f"file://{folder}", S3DataDistributionType="ShardedByS3Key")
    assert provide(tmp_path / "host", sharded, host=3, hosts=4) == {}
    assert (tmp_path / "host/input/data/train").is_dir()
    assert "3 objects for 4 hosts; this host gets none" in caplog.text


def test_an_empty_folder_is_an_error_that_names_it(tmp_path: Path) -> None:
    """Nothing to train on."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(ChannelError, match=f"channel 'train': file://{tmp_path}/empty has no files"):
        provide(tmp_path / "host", item(f"file://{tmp_path}/empty"))


def test_a_missing_folder_is_an_error_that_names_it(tmp_path: Path) -> None:
    """The message has the channel and the URI; nothing is left at the channel's place."""
    with pytest.raises(ChannelError, match=f"channel 'train': file://{tmp_path}/none can't be read"):
        provide(tmp_path / "host", item(f"file://{tmp_path}/none"))
    assert list(tmp_path.glob("host/input/data/*")) == []


def test_what_is_there_is_not_overwritten(folder: Path, tmp_path: Path) -> None:
    """A channel folder with a file in it."""
    place = tmp_path / "host/input/data/train"
    place.mkdir(parents=True)
    (place / "mine").write_text("mine")
    with pytest.raises(ChannelError, match="isn't an empty folder; what is there is neither overwritten nor hidden"):
        provide(tmp_path / "host", item(f"file://{folder}"))
    assert [p.name for p in place.iterdir()] == ["mine"]


def test_a_full_disk_leaves_no_channel(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ENOSPC in the third file: ChannelError with the cause, and neither the channel nor a part of it is left."""
    real, calls = os.copy_file_range, []

    def full(*args: Any) -> int:
        calls.append(args)
        if len(calls) > 4:
            raise OSError(28, "No space left on device")
        return real(*args)

    monkeypatch.setattr(os, "copy_file_range", full)
    monkeypatch.setattr(copying, "_clone", lambda *_: False)  # a file system that shares extents needs no room
    with pytest.raises(ChannelError, match="No space left on device"):
        provide(tmp_path / "host", item(f"file://{folder}"))
    assert list(tmp_path.glob("host/input/data/*")) == []


def test_on_a_service_channels_are_left_alone(tmp_path: Path) -> None:
    """Without hdp-channels.json, what lies in input/data is the channel."""
    layout = Layout(tmp_path)
    layout.config.mkdir(parents=True)
    layout.channel("train").mkdir(parents=True)
    (layout.channel("train") / "a").write_text("a")
    write_json(layout.resourceconfig, {"hosts": ["algo-1"], "current_host": "algo-1"})
    write_json(layout.inputdataconfig, {"train": {}})
    Channels(load(layout, {})).start()
    assert (layout.channel("train") / "a").read_text() == "a"


def test_a_channel_of_another_group_is_left_out(folder: Path, tmp_path: Path) -> None:
    """InstanceGroupNames=["gpu"] on a host without a group: no folder."""
    assert provide(tmp_path / "host", item(f"file://{folder}", InstanceGroupNames=["gpu"])) == {}
    assert not (tmp_path / "host/input/data/train").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"InputMode": "Fastfile"}, "input mode 'Fastfile', expected one of File, FastFile, Pipe"),
        ({"CompressionType": "Gzip"}, "CompressionType 'Gzip', which belongs to Pipe mode"),
        ({"RecordWrapperType": "RecordIO"}, "RecordWrapperType 'RecordIO', which belongs to Pipe mode"),
        ({"S3DataType": "AugmentedManifestFile"}, "augmented manifest and the input mode File; only Pipe streams"),
        ({"S3DataType": "Folder"}, "S3DataType 'Folder'; expected one of S3Prefix, ManifestFile, Augmented"),
        ({"InputMode": "FastFile", "CompressionType": "Gzip"}, "belongs to Pipe mode; in FastFile mode"),
        ({"InputMode": "Pipe", "CompressionType": "Zip"}, "CompressionType 'Zip', expected Gzip or None"),
        ({"InputMode": "Pipe", "AttributeNames": ["a"]}, "AttributeNames .'a'.; an augmented manifest needs"),
        (
            {"InputMode": "Pipe", "S3DataType": "AugmentedManifestFile"},
            "AttributeNames ..; an augmented",
        ),
        ({"S3DataDistributionType": "Sharded"}, "S3DataDistributionType 'Sharded', expected FullyReplicated"),
    ],
)
def test_what_this_version_cannot_do_is_refused_by_name(change: dict[str, str], message: str) -> None:
    """Nothing is copied first."""
    with pytest.raises(ChannelError, match=message):
        parse_channels([item("s3://bucket/x", **change)], {})


def test_a_file_system_source_is_refused_by_name() -> None:
    """EFS and FSx."""
    source = {"ChannelName": "train", "DataSource": {"FileSystemDataSource": {"FileSystemId": "fs-1"}}}
    with pytest.raises(ChannelError, match="channel 'train' has the data source FileSystemDataSource"):
        parse_channels([source], {})


def test_the_mode_of_inputdataconfig_counts() -> None:
    """An item without InputMode, inputdataconfig.json with Pipe."""
    (spec,) = parse_channels([item("s3://bucket/x")], {"train": {"TrainingInputMode": "Pipe"}})
    assert spec.mode == "Pipe"


@pytest.mark.parametrize(
    "relative", ["../x", "a/../../x", "/etc/passwd", "..\\x", "a\\..\\..\\x", "\\x", "C:\\x", "a\0b", "..", "", "."]
)
def test_a_key_that_would_escape_is_refused(relative: str) -> None:
    """The message names the key."""
    with pytest.raises(ChannelError) as caught:
        safe_path(relative, f"data/{relative}")
    assert repr(f"data/{relative}") in str(caught.value)


@pytest.mark.parametrize(
    ("key", "prefix", "expected"),
    [
        ("data/train/a/b", "data/train/", "a/b"),
        ("data/train/a/b", "data/train", "a/b"),
        ("data/train2/b", "data/train", "train2/b"),
        ("data/train", "data/train", "train"),
        ("data/train-01.csv", "data/train-", "train-01.csv"),
        ("a/b", "", "a/b"),
    ],
)
def test_where_a_key_goes(key: str, prefix: str, expected: str) -> None:
    """With and without the trailing slash."""
    assert relative_to_prefix(key, prefix) == expected


def test_keys_that_cannot_be_side_by_side_are_refused() -> None:
    """The same path twice; a file where another key needs a folder."""
    with pytest.raises(ChannelError, match="'x/a' and 'x//a' would both be the file 'a'"):
        check_clashes([Entry("x/a", "a", 1), Entry("x//a", "a", 1)])
    with pytest.raises(ChannelError, match="'x/a' would be a file where 'x/a/b' needs a folder"):
        check_clashes([Entry("x/a/b", "a/b", 1), Entry("x/a", "a", 1)])


def test_shards_go_by_sorted_key() -> None:
    """5 keys in any order over 2 hosts: 0, 2, 4 and 1, 3, each in the order given."""
    items = [Entry(str(k), str(k), 1) for k in (3, 1, 4, 0, 2)]
    assert [[i.key for i in shard(items, h, 2)] for h in (0, 1)] == [["4", "0", "2"], ["3", "1"]]


def test_a_file_that_is_not_finished_is_not_there(tmp_path: Path) -> None:
    """An error while writing: neither the name nor a temporary file is left."""
    with pytest.raises(ZeroDivisionError), whole_file(tmp_path / "a") as temporary:
        temporary.write_text("half")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_special_file_systems_are_copied_too(tmp_path: Path) -> None:
    """/proc/version says its size is 0 and has content: it arrives whole."""
    copy_file(Path("/proc/version"), tmp_path / "version")
    assert (tmp_path / "version").read_text() == Path("/proc/version").read_text()


# -- S3 ----------------------------------------------------------------------------------------------------------


def put(client: Any, *keys: str) -> None:
    """Objects in the bucket "data", each with its key as its content."""
    for key in keys:
        client.put_object(Bucket="data", Key=key, Body=key.encode())


def test_a_prefix_is_downloaded(s3: Any, tmp_path: Path) -> None:
    """Keys below the prefix, without the folder's marker."""
    put(s3, "set/train/a", "set/train/sub/b", "set/train/", "set/other")
    expected = {"a": "set/train/a", "sub/b": "set/train/sub/b"}
    assert provide(tmp_path / "h1", item("s3://data/set/train/")) == expected
    assert provide(tmp_path / "h2", item("s3://data/set/train")) == expected


def test_a_prefix_that_matches_its_neighbours_warns(s3: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """s3://data/train also matches train2/: they come, as S3 prefixes go, beside the rest, with a warning."""
    put(s3, "train/a", "train2/b")
    assert provide(tmp_path / "host", item("s3://data/train")) == {"a": "train/a", "train2/b": "train2/b"}
    assert "also matches 1 objects beside it, such as train2/b" in caplog.text


def test_a_key_that_would_escape_fails_the_channel(s3: Any, tmp_path: Path) -> None:
    """The object train/../../evil: refused by name, nothing is written."""
    put(s3, "train/a", "train/../../evil")
    with pytest.raises(ChannelError, match=r"'train/\.\./\.\./evil' would lead outside"):
        provide(tmp_path / "host", item("s3://data/train/"))
    assert list(tmp_path.glob("host/input/data/*")) == []


def test_an_empty_prefix_is_an_error_that_names_it(s3: Any, tmp_path: Path) -> None:
    """No such keys."""
    with pytest.raises(ChannelError, match="channel 'train': s3://data/none/ has no files"):
        provide(tmp_path / "host", item("s3://data/none/"))


def test_a_missing_bucket_is_named_with_s3s_answer(s3: Any, tmp_path: Path) -> None:
    """NoSuchBucket."""
    with pytest.raises(ChannelError, match="s3://no-such-bucket/x: S3 answered NoSuchBucket"):
        provide(tmp_path / "host", item("s3://no-such-bucket/x"))


def test_a_manifest_names_its_objects(s3: Any, tmp_path: Path) -> None:
    """Two of three objects, with their paths below the manifest's prefix; sharded over two hosts."""
    put(s3, "m/a", "m/sub/b", "m/c")
    manifest = json.dumps([{"prefix": "s3://data/m/"}, "a", "sub/b"])
    s3.put_object(Bucket="data", Key="x.manifest", Body=manifest.encode())
    channel = item("s3://data/x.manifest", S3DataType="ManifestFile")
    assert provide(tmp_path / "h1", channel) == {"a": "m/a", "sub/b": "m/sub/b"}
    channel = item("s3://data/x.manifest", S3DataType="ManifestFile", S3DataDistributionType="ShardedByS3Key")
    assert provide(tmp_path / "h2", channel, host=1, hosts=2) == {"sub/b": "m/sub/b"}


def test_a_manifest_of_local_files(folder: Path, tmp_path: Path) -> None:
    """file:// manifest with a file:// prefix."""
    manifest = tmp_path / "x.manifest"
    manifest.write_text(json.dumps([{"prefix": f"file://{folder}/"}, "sub/b"]))
    assert provide(tmp_path / "host", item(f"file://{manifest}", S3DataType="ManifestFile")) == {"sub/b": "sub/b"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "isn't JSON"),
        ("[]", "starts with None, expected"),
        ('["a"]', "starts with 'a', expected"),
        ('[{"prefix": "s3://b/"}, {"x": 1}]', "has the entry {'x': 1}"),
    ],
)
def test_a_malformed_manifest_is_named(text: str, message: str) -> None:
    """The message has the URI and the fault."""
    with pytest.raises(ChannelError) as caught:
        parse_manifest(text.encode(), "s3://b/x.manifest")
    assert message in str(caught.value)
    assert "s3://b/x.manifest" in str(caught.value)


# -- the code archive --------------------------------------------------------------------------------------------


def archive(path: Path, *members: tuple[str, str, str]) -> Path:
    """A .tar.gz of (name, type, link or content)."""
    with tarfile.open(path, "w:gz") as tar:
        for name, kind, text in members:
            info = tarfile.TarInfo(name)
            if kind == "file":
                info.size = len(text)
                info.mode = 0o6777
                tar.addfile(info, io.BytesIO(text.encode()))
            else:
                info.type = {"sym": tarfile.SYMTYPE, "hard": tarfile.LNKTYPE, "fifo": tarfile.FIFOTYPE}[kind]
                info.linkname = text
                tar.addfile(info)
    return path


def test_an_archive_is_unpacked(tmp_path: Path) -> None:
    """Files, links inside; no set-uid bits."""
    tar = archive(tmp_path / "x.tar.gz", ("a/b.py", "file", "b"), ("link", "sym", "a/b.py"), ("hard", "hard", "a/b.py"))
    assert unpack(tar, tmp_path / "code") == 3
    assert [(tmp_path / "code" / n).read_text() for n in ("a/b.py", "link", "hard")] == ["b", "b", "b"]
    assert (tmp_path / "code/a/b.py").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize(
    "members",
    [
        [("../evil", "file", "x")],
        [("/tmp/evil-of-hdp", "file", "x")],
        [("a/../../evil", "file", "x")],
        [("link", "sym", "../..")],
        [("link", "sym", "/etc")],
        [("link", "hard", "../evil")],
        [("d/link", "sym", "."), ("d/link/up", "sym", "../.."), ("d/up/evil", "file", "x")],
    ],
)
def test_an_archive_that_would_escape_is_refused(tmp_path: Path, members: list[tuple[str, str, str]]) -> None:
    """Nothing appears outside the code folder; the message names the member."""
    (tmp_path / "in").mkdir()
    tar = archive(tmp_path / "in/x.tar.gz", *members)
    with pytest.raises(LaunchError, match="would lead outside the code folder"):
        unpack(tar, tmp_path / "in/code")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in"]
    assert sorted(p.name for p in (tmp_path / "in").iterdir()) == ["code", "x.tar.gz"]
    assert not Path("/tmp/evil-of-hdp").exists()


def test_a_pipe_in_an_archive_is_refused(tmp_path: Path) -> None:
    """Reading it would hang."""
    with pytest.raises(LaunchError, match="'p', which is a device or pipe"):
        unpack(archive(tmp_path / "x.tar.gz", ("p", "fifo", "")), tmp_path / "code")


def test_a_file_that_is_no_archive_is_named(tmp_path: Path) -> None:
    """Text."""
    (tmp_path / "x.tar.gz").write_text("hello")
    with pytest.raises(LaunchError, match="can't be unpacked"):
        unpack(tmp_path / "x.tar.gz", tmp_path / "code")


def test_a_truncated_archive_is_named(tmp_path: Path) -> None:
    """Cut in the middle of its only file."""
    tar = archive(tmp_path / "x.tar.gz", ("a", "file", os.urandom(50_000).hex()))
    tar.write_bytes(tar.read_bytes()[:20_000])
    with pytest.raises(LaunchError, match="can't be unpacked"):
        unpack(tar, tmp_path / "code")


logging.getLogger("botocore").setLevel(logging.WARNING)
