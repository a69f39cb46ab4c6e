"""What client and runtime agree on: collateral errors, the first cause, URIs, whole files, short folders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hdp.contract.env import shell_safe
from hdp.contract.errors import CollectiveMismatch, CollectiveTimeout, InvalidCollective, PeerLost, is_collateral
from hdp.contract.files import is_channel_name, new_run_folder, whole_file, write_atomic
from hdp.contract.outcome import Failure, first_cause
from hdp.contract.uris import bucket_and_key, local_path, scheme


class PoorlyMade(RuntimeError):
    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    ("exc", "expected"),
    [
        (PeerLost("rank 1 is gone"), True),
        (CollectiveTimeout("rank 1 is missing"), True),
        (CollectiveMismatch("rank 0 called allreduce, rank 1 barrier"), False),
        (InvalidCollective("complex64"), False),
        (RuntimeError("Got the following error when running the callback: PeerLost: rank 1 on algo-1 is gone"), True),
        (RuntimeError("callback: CollectiveTimeout: allreduce 7: rank 2 is missing since 30 s"), True),
        (RuntimeError("NotPeerLost: x"), False),
        (RuntimeError("PeerLost is a class of ours"), False),
        (ValueError("PeerLost: in a text of the user's"), False),
        (RuntimeError("[gloo/transport/tcp/pair.cc:5] Connection closed by peer [127.0.0.1]:1"), True),
        (RuntimeError("NCCL error: remote process exited or there was a network error"), True),
        (RuntimeError("boom"), False),
        (PoorlyMade(), False),
    ],
)
def test_what_is_collateral(exc: BaseException, expected: bool) -> None:
    """By class; by the text of a RuntimeError that a framework made of ours, or that another library wrote."""
    assert is_collateral(exc) is expected


def raised(outer: BaseException, inner: BaseException, how: str) -> BaseException:
    """`outer`, raised "from" `inner`, "while" handling it, or "from None"."""
    try:
        try:
            raise inner
        except BaseException as caught:
            if how == "while":
                raise outer  # noqa: B904 (that is the point)
            raise outer from (caught if how == "from" else None)
    except BaseException as exc:
        return exc


@pytest.mark.parametrize(("how", "expected"), [("from", True), ("while", True), ("from None", False)])
def test_what_led_to_an_exception_counts(how: str, expected: bool) -> None:
    """ValueError over PeerLost."""
    assert is_collateral(raised(ValueError("cleanup"), PeerLost("rank 1"), how)) is expected


def test_a_chain_that_bites_its_tail_ends() -> None:
    one, other = ValueError("a"), ValueError("b")
    one.__cause__, other.__cause__ = other, one
    assert not is_collateral(one)


def test_the_first_cause_at_the_same_time_is_the_same_on_every_host() -> None:
    """Rank 11, rank 2 and a host fail at the same clock tick, told in any order: rank 2."""
    failures = [Failure("algo-1", None, 5.0), Failure("algo-2", 11, 5.0), Failure("algo-1", 2, 5.0)]
    causes = [first_cause(failures), first_cause(reversed(failures))]
    assert [cause.rank for cause in causes if cause] == [2, 2]


def test_uris() -> None:
    assert [scheme(u) for u in ("s3://b", "FILE:///a", "/a/b", "a b://c")] == ["s3", "file", "", ""]
    assert bucket_and_key("s3://bucket/a/b") == ("bucket", "a/b")
    assert bucket_and_key("s3://bucket") == ("bucket", "")
    for bad in ("s3:///a", "file:///a", "bucket/a"):
        with pytest.raises(ValueError, match="expected s3://bucket/key"):
            bucket_and_key(bad)


def test_a_path_in_a_uri_counts_as_written_where_it_exists_else_decoded(tmp_path: Path) -> None:
    """Names with a space, '#', '?' and a percent sign; the way back is Path.as_uri."""
    for name in ("a b", "run#1", "what?", "100%41"):
        path = tmp_path / name
        assert local_path(path.as_uri()) == path
        path.touch()
        assert local_path(f"file://{path}") == local_path(path.as_uri()) == path
    assert local_path("file://localhost/a%20b") == Path("/a b")
    for bad in ("file://a/b", "/a", "s3://b/a"):
        with pytest.raises(ValueError, match="expected file:///an/absolute/path"):
            local_path(bad)


def test_a_whole_file_has_its_mode_and_its_content(tmp_path: Path) -> None:
    """Text and bytes; 0600 unless said otherwise; an error leaves the old file and nothing else."""
    write_atomic(tmp_path / "a", "é")
    write_atomic(tmp_path / "b", b"\xff", 0o644)
    assert ((tmp_path / "a").read_bytes(), (tmp_path / "b").read_bytes()) == ("é".encode(), b"\xff")
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in "ab"] == [0o600, 0o644]
    with pytest.raises(ZeroDivisionError), whole_file(tmp_path / "a") as part:
        part.write_text("half")
        raise ZeroDivisionError
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
    assert (tmp_path / "a").read_text() == "é"


@pytest.mark.parametrize(("folder", "parent"), [("/var/tmp", "/var/tmp"), ("x" * 80, "/tmp")])
def test_a_run_folder_has_room_for_a_socket(
    folder: str, parent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TMPDIR is short: there. TMPDIR is long: in /tmp."""
    long = tmp_path / folder
    long.mkdir(exist_ok=True)
    monkeypatch.setattr("tempfile.tempdir", str(long))
    found = new_run_folder()
    assert (str(found.parent), found.exists()) == (parent, False)
    assert len(os.fsencode(found / "algo-250" / "server.sock")) < 108


def test_names() -> None:
    assert shell_safe("my-data.x") == "MY_DATA_X"
    assert [is_channel_name(n) for n in ("train-1.x_", ".", "..", "", "a/b", 3, "x" * 65)] == [True] + [False] * 6
