"""FastFile's S3 store against moto (semantics) and against an S3 that answers by script (faults), over real HTTP."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from fastfile_support import MIB, content, mounted_entries, needs_fuse
from s3_by_script import ScriptedS3

from hdp.contract.errors import ChannelError
from hdp.runtime.channels.fastfile import s3store
from hdp.runtime.channels.fastfile.retry import RetryingStore
from hdp.runtime.channels.fastfile.s3store import S3Store, error_of, of_status
from hdp.runtime.channels.fastfile.stats import Stats
from hdp.runtime.channels.fastfile.store import Changed, Denied, Missing, StoreError, Transient
from hdp.runtime.channels.keys import Entry
from hdp.runtime.channels.listing import source_listing
from hdp.runtime.channels.spec import ChannelSpec

pytest.importorskip("obstore", reason="FastFile from S3 needs obstore")
pytestmark = pytest.mark.usefixtures("aws")

BODY = content(300_000, 3)
A = Entry("a", "a", len(BODY), '"e"')


def connect(s3: ScriptedS3, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{s3.port}")
    return S3Store("bucket")


@pytest.mark.parametrize(
    ("status", "kind", "text"),
    [
        (403, Denied, "403: the object may not be read with this job's credentials"),
        (401, Denied, "401: the object may not be read with this job's credentials"),
        (404, Missing, "404: the object is gone"),
        (412, Changed, "412: the object has changed since the job started"),
        (416, Changed, "416: the object is shorter than when the job started"),
    ],
)
def test_what_will_not_pass_is_said_at_once(status, kind, text, monkeypatch):
    """A status that another try doesn't change. Expected: one GET, and what it means."""
    with ScriptedS3({"a": BODY}, lambda *_: (status, "<Error/>")).running() as s3:
        store, stats = connect(s3, monkeypatch), Stats()
        with pytest.raises(kind) as caught:
            RetryingStore(store, stats).get(A, 0, 10)
        assert str(caught.value) == text and caught.value.status == status
        assert stats.snapshot()["retries"] == 0 and s3.counts == {"a": 1}
        assert store.uri(A) == "s3://bucket/a"


@pytest.mark.parametrize("fault", [(500, ""), (503, "<Error><Code>SlowDown</Code></Error>"), (429, ""), "cut"])
def test_what_may_pass_is_tried_again(fault, monkeypatch):
    """Twice a fault, then well. Expected: the bytes, and 2 retries."""
    with ScriptedS3({"a": BODY}, lambda _k, n, _s: fault if n <= 2 else None).running() as s3:
        stats = Stats()
        store = RetryingStore(connect(s3, monkeypatch), stats, first_wait=timedelta(milliseconds=1))
        assert bytes(store.get(A, 5, 200_000)) == BODY[5:200_000]
        assert stats.snapshot()["retries"] == 2


@pytest.mark.parametrize("key", ["a", "a//b"], ids=["obstore", "boto3"])
def test_a_server_that_ignores_ranges_is_told(key, monkeypatch):
    """It answers 200 with the whole object. Expected: one GET, and an error that says so."""
    with ScriptedS3({}, lambda *_: (200, "x" * 1000)).running() as s3:
        store, stats = connect(s3, monkeypatch), Stats()
        with pytest.raises(StoreError) as caught:
            RetryingStore(store, stats).get(Entry(key, "a", 1000, '"e"'), 10, 20)
        assert str(caught.value).startswith(
            "200: the server ignores ranges: asked for a part it answers with the whole"
        )
        assert "AWS_ENDPOINT_URL" in str(caught.value) and "file://" in str(caught.value)
        assert s3.counts == {key: 1}


@pytest.mark.parametrize("key", ["a", "a//b"], ids=["obstore", "boto3"])
def test_without_an_etag_an_object_is_held_to_its_time(key, monkeypatch):
    """Listed at midnight; then a minute later. Expected: bytes; then Changed, though the size is the same."""
    midnight = datetime(2026, 12, 1, tzinfo=timezone.utc).timestamp()
    listed = Entry(key, "a", len(BODY), None, midnight + 0.5)
    with ScriptedS3({key: BODY}, lambda *_: None).running() as s3:
        store, s3.etag = connect(s3, monkeypatch), None
        assert bytes(store.get(listed, 0, 10)) == BODY[:10]
        s3.modified = "Tue, 01 Dec 2026 00:01:00 GMT"
        with pytest.raises(Changed, match="412: the object has changed since the job started"):
            store.get(listed, 10, 20)


def test_without_etag_and_time_an_object_is_taken_as_it_comes(monkeypatch):
    """The server says neither; the listing had a time. Expected: the bytes."""
    with ScriptedS3({"a": BODY}, lambda *_: None).running() as s3:
        store = connect(s3, monkeypatch)
        s3.etag = s3.modified = None
        for key in ("a", "a//b"):
            s3.objects[key] = BODY
            assert bytes(store.get(Entry(key, "a", len(BODY), None, 1e9), 0, 10)) == BODY[:10]


def test_a_server_that_is_silent_is_asked_again(monkeypatch):
    """No byte for longer than we wait, then well. Expected: the bytes, and a retry."""
    monkeypatch.setattr(s3store, "_SILENT", timedelta(seconds=0.2))
    with ScriptedS3({"a": BODY}, lambda _k, n, _s: "hang" if n == 1 else None).running() as s3:
        stats = Stats()
        store = RetryingStore(connect(s3, monkeypatch), stats, first_wait=timedelta(milliseconds=1))
        assert bytes(store.get(A, 0, 1000)) == BODY[:1000]
        assert stats.snapshot()["retries"] == 1


def test_a_server_that_is_gone_is_tried_again_and_then_said(monkeypatch):
    """Nobody listens. Expected: Transient after the last try, which says that there was no answer."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    stats = Stats()
    store = RetryingStore(S3Store("bucket"), stats, tries=3, first_wait=timedelta(milliseconds=1))
    with pytest.raises(Transient, match="no answer"):
        store.get(A, 0, 10)
    assert stats.snapshot()["retries"] == 2


def test_credentials_that_expire_are_looked_up_again(monkeypatch):
    """The first key pair has expired; the environment has another by then. Expected: the bytes, by the second."""
    expired = (400, "<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>")
    script = lambda _k, _n, s3: expired if s3.signed_by[-1] == "first" else None  # noqa: E731
    with ScriptedS3({"a": BODY}, script).running() as s3:
        store = connect(s3, monkeypatch)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "second")
        assert bytes(store.get(A, 0, 100)) == BODY[:100]
        assert bytes(store.get(A, 100, 200)) == BODY[100:200]
        assert s3.signed_by == ["first", "second", "second"]


def test_credentials_that_stay_expired_are_an_error(monkeypatch):
    with ScriptedS3({"a": BODY}, lambda *_: (400, "<Error><Code>ExpiredToken</Code></Error>")).running() as s3:
        with pytest.raises(StoreError, match="400"):
            connect(s3, monkeypatch).get(A, 0, 100)
        assert s3.counts == {"a": 2}


def test_every_error_of_obstore_means_something(monkeypatch):
    """The map from foreign errors is total: each of obstore's exceptions becomes one of ours."""
    from obstore import exceptions

    kinds = [v for v in vars(exceptions).values() if isinstance(v, type) and issubclass(v, Exception)]
    assert len(kinds) >= 10
    assert all(isinstance(error_of(kind("text")), StoreError) for kind in kinds)
    assert isinstance(error_of(exceptions.GenericError("status: 503 Service Unavailable")), Transient)
    assert isinstance(of_status(418, "teapot"), StoreError) and "418: teapot" in str(of_status(418, "teapot"))


class TestMoto:
    """What a real S3 does, as far as moto knows."""

    KEYS = ("plain", "a b", "ü", "x#y", "x?y", "x%41", "x[1]", "a+b", 'q"q', "a//b", "st*r", "deep/er/x")

    @pytest.fixture
    def client(self, endpoint, aws, monkeypatch):
        import boto3

        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        client = boto3.client("s3")
        client.create_bucket(Bucket="bucket")
        yield client
        for item in client.list_objects_v2(Bucket="bucket").get("Contents", []):
            client.delete_object(Bucket="bucket", Key=item["Key"])
        client.close()

    def test_odd_keys_are_read_as_they_are(self, client):
        """Keys with characters that URLs, XML or obstore's paths treat specially. Expected: each its own content."""
        for key in self.KEYS:
            client.put_object(Bucket="bucket", Key=f"p/{key}", Body=f"content of {key}".encode())
        listing = source_listing(ChannelSpec("train", "s3://bucket/p/"))
        store = S3Store("bucket")
        found = {e.key.removeprefix("p/"): bytes(store.get(e, 0, e.size_bytes)).decode() for e in listing.items}
        assert found == {key: f"content of {key}" for key in self.KEYS}

    def test_a_changed_and_a_deleted_object(self, client):
        """Overwritten, removed after the listing. Expected: 412 by its ETag, 404."""
        for key in ("a", "b"):
            client.put_object(Bucket="bucket", Key=key, Body=b"first")
        a, b = source_listing(ChannelSpec("train", "s3://bucket/")).items
        client.put_object(Bucket="bucket", Key="a", Body=b"other")
        client.delete_object(Bucket="bucket", Key="b")
        store = S3Store("bucket")
        with pytest.raises(Changed):
            store.get(a, 0, 5)
        with pytest.raises(Missing):
            store.get(b, 0, 5)

    @needs_fuse
    def test_a_mount_of_a_bucket(self, client, tmp_path):
        """A large object, small ones, and one that is deleted. Expected: the bytes; EIO, named with bucket and key."""
        big = content(3 * MIB + 77, 4)
        client.put_object(Bucket="bucket", Key="p/big", Body=big)
        for i in range(40):
            client.put_object(Bucket="bucket", Key=f"p/s/{i:02}", Body=content(1000 + i, i))
        listing = source_listing(ChannelSpec("train", "s3://bucket/p/"))
        client.delete_object(Bucket="bucket", Key="p/s/39")
        with mounted_entries(listing.base, listing.items, tmp_path / "m") as mount:
            assert (tmp_path / "m" / "big").read_bytes() == big
            assert all((tmp_path / "m" / "s" / f"{i:02}").read_bytes() == content(1000 + i, i) for i in range(39))
            with pytest.raises(OSError, match="Input/output error"):
                (tmp_path / "m" / "s" / "39").read_bytes()
        assert mount.troubles() == ["s3://bucket/p/s/39: 404: the object is gone"]


def test_without_obstore_it_says_what_to_install(monkeypatch):
    import sys

    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(
        ChannelError, match=r"needs obstore, which isn't installed: pip install 'hdp-train\[fastfile\]'"
    ):
        S3Store("bucket")


@pytest.mark.parametrize(
    ("configured", "region", "asked"),
    [
        ("https://s3.us-east-1.amazonaws.com", "eu-west-1", "https://s3.eu-west-1.amazonaws.com"),
        ("https://s3.amazonaws.com", "us-east-1", "https://s3.us-east-1.amazonaws.com"),
        ("https://s3.cn-north-1.amazonaws.com.cn", "cn-north-1", "https://s3.cn-north-1.amazonaws.com.cn"),
        ("https://bucket.vpce-1a.s3.us-east-1.vpce.amazonaws.com", "eu-west-1", None),
        ("https://s3-fips.us-east-1.amazonaws.com", "us-east-1", None),
        ("http://127.0.0.1:9000", "us-east-1", None),
    ],
)
def test_the_endpoint_is_boto3s_or_that_of_the_buckets_region(configured, region, asked):
    """Only a region's usual endpoint is exchanged for another region's; None: what is configured is asked."""
    assert s3store.endpoint_of(configured, region) == (asked or configured)


def test_another_endpoint_in_the_environment_is_not_asked(monkeypatch):
    """AWS_ENDPOINT, which boto3 doesn't read. Expected: the bytes, from the server that boto3 means."""
    monkeypatch.setenv("AWS_ENDPOINT", "http://127.0.0.1:9")
    with ScriptedS3({"a": BODY}, lambda *_: None).running() as s3:
        assert bytes(connect(s3, monkeypatch).get(A, 5, 100)) == BODY[5:100]
