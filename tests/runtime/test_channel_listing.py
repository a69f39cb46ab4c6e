"""Listing in parallel: the cutting of ranges by itself with a fake, and the rest with a real S3 server."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hdp.contract.errors import ChannelError
from hdp.runtime.channels import s3list
from hdp.runtime.channels.keys import Entry
from hdp.runtime.channels.listing import channel_listing, source_listing
from hdp.runtime.channels.ranges import Page, between, list_ranges
from hdp.runtime.channels.spec import ChannelSpec
from hdp.runtime.environment import Resources

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)


class Keys:
    """A sorted key space that answers pages of `most` keys and counts how often it was asked."""

    def __init__(self, keys: list[str], most: int) -> None:
        self._keys = sorted(keys)
        self._most = most
        self._lock = threading.Lock()
        self.requests = 0

    def page(self, after: str) -> Page:
        """What follows `after`."""
        with self._lock:
            self.requests += 1
        start = bisect_right(self._keys, after) if after else 0
        some = self._keys[start : start + self._most]
        return Page(tuple(Entry(k, k, 1) for k in some), some[-1] if some else "", start + self._most < len(self._keys))


@given(TEXT, TEXT)
@example("img_0001", "img_0002")
@example("a", "a ")
@example("\ud7ff", "\ue000")
def test_a_text_between_two_others_is_between_them(one: str, other: str) -> None:
    """Or there is none; and it can be sent: no half of a surrogate pair."""
    low, high = min(one, other), max(one, other)
    for end in (high, None):
        middle = between(low, end) if low != end else None
        if middle is not None:
            assert low < middle and (end is None or middle < end)
            middle.encode()


@pytest.mark.parametrize(
    "keys",
    [
        [f"data/img_{i:07d}.jpg" for i in range(5000)],
        [f"data/n{c:04d}/{i:03d}.jpg" for c in range(50) for i in range(100)],
        [f"data/{chr(0x4E00 + i)}/x" for i in range(3000)],
        [f"data/{'x' * i}" for i in range(300)],
        ["data/only"],
        [],
    ],
    ids=["flat", "folders", "chinese", "nested", "one", "none"],
)
@pytest.mark.parametrize("workers", [1, 7])
def test_each_key_is_listed_once(keys: list[str], workers: int) -> None:
    """Pages of 20 keys, 1 and 7 workers: every key, once; at most twice as many requests as pages, and one more."""
    space = Keys(keys, 20)
    found = list_ranges(space.page, "data/", workers)
    assert sorted(e.key for e in found) == sorted(keys)
    assert space.requests <= 2 * (len(keys) // 20 + 1) + workers


def test_a_range_is_shared() -> None:
    """The page after the first is answered only once another worker asks for one, too."""
    keys = [f"data/{i:05d}" for i in range(400)]
    space, several, names = Keys(keys, 10), threading.Event(), set()

    def page(after: str) -> Page:
        names.add(threading.current_thread().name)
        if len(names) == 3:  # the first page is asked for by the caller
            several.set()
        assert not after or several.wait(10)
        return space.page(after)

    assert len(list_ranges(page, "data/", 2)) == 400


def test_an_error_ends_the_listing() -> None:
    """The third page raises: so does the listing, with the workers gone."""
    space = Keys([f"data/{i:05d}" for i in range(400)], 10)

    def page(after: str) -> Page:
        if space.requests >= 2:
            raise ChannelError("not there")
        return space.page(after)

    with pytest.raises(ChannelError, match="not there"):
        list_ranges(page, "data/", 4)
    assert not [t for t in threading.enumerate() if t.name.startswith("hdp-list")]


def put(s3: Any, keys: dict[str, bytes]) -> None:
    """Objects in the bucket ``data``."""
    for key, content in keys.items():
        s3.put_object(Bucket="data", Key=key, Body=content)


def spec(uri: str, **fields: Any) -> ChannelSpec:
    """A channel "train"."""
    return ChannelSpec("train", uri, **fields)


ODD = ["a b", "a+b", "a%20b", "a&b<c>", "é", "日本", "a\u00a0b", "q?x=1#y", "tab\tx", "'\"", "~", "a\\b", "\U0001f600"]


def test_odd_keys_keep_their_names(s3: Any) -> None:
    """Blanks, percent signs, quotes, other scripts, control characters."""
    put(s3, {f"odd/{name}": name.encode() for name in ODD})
    listing = source_listing(spec("s3://data/odd/"))
    assert sorted(e.path for e in listing.items) == sorted(ODD)
    assert {e.path: e.size_bytes for e in listing.items} == {name: len(name.encode()) for name in ODD}


def test_sizes_etags_and_times_are_those_of_the_objects(s3: Any) -> None:
    """As HEAD says them."""
    put(s3, {"t/a": b"12345"})
    (entry,) = source_listing(spec("s3://data/t/")).items
    head = s3.head_object(Bucket="data", Key="t/a")
    assert (entry.size_bytes, entry.etag) == (5, head["ETag"])
    assert entry.mtime == pytest.approx(head["LastModified"].timestamp(), abs=1.0)


@pytest.mark.parametrize("order", ["from a key on", "by token only"])
def test_pages_of_a_real_server(s3: Any, monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    """60 objects in pages of 5, from a key on, or by tokens as for servers that know no starting point."""
    monkeypatch.setattr(s3list, "_FULL", 5)
    if order == "by token only":
        monkeypatch.setattr(s3list, "_DIRECTORY_BUCKET", "data")
    keys = [f"p/{i % 3}/{i:02d}" for i in range(60)]
    put(s3, dict.fromkeys(keys, b"x"))
    assert [e.key for e in source_listing(spec("s3://data/p/")).items] == sorted(keys)


def test_the_client_that_parses_by_itself_agrees_with_botocore(s3: Any) -> None:
    """Without the event (an older botocore) the entries are the same."""
    put(s3, {"p/a b": b"1", "p/c/": b"", "p/d": b"22"})
    plain = s3list.connect(2)
    assert s3list.list_prefix(plain, "s3://data/p/") == s3list.list_prefix(s3list.listing_client(), "s3://data/p/")
    assert len(s3list.list_prefix(plain, "s3://data/p/")[0]) == 2


def test_objects_with_content_that_are_named_like_folders_are_told(s3: Any) -> None:
    """Two with content, by both names; two without; in one page. Expected: one warning, which names the first."""
    put(s3, {"p/a/": b"", "p/b/": b"content", "p/c_$folder$": b"content", "p/d_$folder$": b"", "p/e": b"1"})
    listing = source_listing(spec("s3://data/p/"))
    assert [e.path for e in listing.items] == ["e"]
    assert listing.warnings == (
        "2 objects with content are left out, such as s3://data/p/b/: a key that ends in / or _$folder$ marks a "
        "folder; rename them if they are data",
    )


def test_a_prefix_with_nothing_but_such_objects_says_so(s3: Any) -> None:
    """One object with content, p/b/."""
    put(s3, {"p/b/": b"content"})
    with pytest.raises(ChannelError, match=r"s3://data/p/ has no files; .*; 1 objects with content are left out, such"):
        source_listing(spec("s3://data/p/"))


def test_an_empty_object_that_is_also_a_folder_is_left_out_with_a_warning(s3: Any) -> None:
    """x/a is empty, x/a/b is there."""
    put(s3, {"x/a": b"", "x/a/b": b"b"})
    listing = source_listing(spec("s3://data/x/"))
    assert [e.path for e in listing.items] == ["a/b"]
    assert listing.warnings == ("the empty object 'x/a' is left out: others need a folder of that name",)


def test_an_object_that_is_also_a_folder_is_an_error(s3: Any) -> None:
    """x/a has a byte: it can't be left out without a word."""
    put(s3, {"x/a": b"1", "x/a/b": b"b"})
    with pytest.raises(ChannelError, match="'x/a' would be a file where 'x/a/b' needs a folder; rename one of them"):
        source_listing(spec("s3://data/x/"))


def manifest(s3: Any, *names: str) -> ChannelSpec:
    """A channel whose manifest has these names below s3://data/m/."""
    s3.put_object(Bucket="data", Key="list.json", Body=json.dumps([{"prefix": "s3://data/m/"}, *names]))
    return spec("s3://data/list.json", manifest=True)


def test_a_manifest_is_looked_up_with_sizes(s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every 7th of 60 objects, in pages of 4: those, in the manifest's order, with size and ETag."""
    monkeypatch.setattr(s3list, "_FULL", 4)
    put(s3, {f"m/{i:02d}": b"x" * i for i in range(60)})
    wanted = [f"{i:02d}" for i in range(56, -1, -7)]
    items = source_listing(manifest(s3, *wanted)).items
    assert [(e.path, e.size_bytes) for e in items] == [(name, int(name)) for name in wanted]
    assert all(e.etag for e in items)


def test_a_name_twice_is_one_object(s3: Any) -> None:
    """With a warning."""
    put(s3, {"m/a": b"a", "m/b": b"b"})
    listing = source_listing(manifest(s3, "b", "a", "b", "b"))
    assert [e.path for e in listing.items] == ["b", "a"]
    assert listing.warnings == (
        "2 names of the manifest s3://data/list.json are repetitions; each object is taken once",
    )


@contextlib.contextmanager
def answering(content: bytes) -> Iterator[str]:
    """The URL of a server that answers every GET so."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_an_answer_that_is_not_xml_is_named(s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy's page in S3's place."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with answering(b"<p>Please log in") as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        with pytest.raises(ChannelError, match="s3://data/x/: S3 answered 500"):
            source_listing(spec("s3://data/x/"))


LISTED = """<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><IsTruncated>false</IsTruncated>
<Contents><Key>x/a</Key><ETag></ETag><Size>3</Size></Contents></ListBucketResult>"""


def test_a_server_without_etags_and_times(s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty ETag, no time. Expected: both unknown, so that nothing is held to them; also by botocore's parser."""
    with answering(LISTED.encode()) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        for client in (s3list.listing_client(), s3list.connect(2)):
            assert s3list.list_prefix(client, "s3://data/x/") == ([Entry("x/a", "a", 3, None, 0.0)], [])
            client.close()


def test_an_endpoint_that_is_no_url_is_named(s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Host and port alone, as many tools want them. Expected: the value, and where it may come from."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "127.0.0.1:9000")
    with pytest.raises(ChannelError, match=r"Invalid endpoint: 127\.0\.0\.1:9000; expected a URL such as http://"):
        source_listing(ChannelSpec("train", "s3://data/p/"))


def test_an_object_of_a_manifest_that_is_not_there_is_named(s3: Any) -> None:
    """m/a is there, m/b and m/c aren't."""
    put(s3, {"m/a": b"a"})
    with pytest.raises(
        ChannelError, match=r"channel 'train': .*names 2 objects that aren't there, such as s3://data/m/b"
    ):
        channel_listing(manifest(s3, "a", "b", "c"), Resources(("h",), "h"))


def test_a_manifest_that_names_nothing_is_an_error(s3: Any) -> None:
    """Only the prefix."""
    with pytest.raises(ChannelError, match=r"s3://data/list.json has no files; expected at least one"):
        source_listing(manifest(s3))


def groups(current: str) -> Resources:
    """algo-1 and algo-2 in the group cpu, algo-3 and algo-4 in the group gpu."""
    named = ({"instance_group_name": "cpu", "hosts": ["algo-1", "algo-2"]},
             {"instance_group_name": "gpu", "hosts": ["algo-3", "algo-4"]})  # fmt: skip
    return Resources(("algo-1", "algo-2", "algo-3", "algo-4"), current, instance_groups=named)


def test_shards_go_to_the_hosts_of_the_channels_groups(tmp_path: Path) -> None:
    """5 files, ShardedByS3Key for the group gpu: its hosts share them."""
    for i in range(5):
        (tmp_path / str(i)).write_text("x" * i)
    sharded = spec(tmp_path.as_uri(), sharded=True, instance_groups=("gpu",))
    shares = [[e.path for e in channel_listing(sharded, groups(h)).items] for h in ("algo-3", "algo-4")]
    assert shares == [["0", "2", "4"], ["1", "3"]]
