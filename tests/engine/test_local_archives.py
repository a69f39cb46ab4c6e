"""Archives: merged over hosts, deterministic, and what can't be archived is said."""

from __future__ import annotations

import contextlib
import os
import tarfile
from pathlib import Path

import pytest

from hdp.contract.errors import EngineError
from hdp.estimator.engines.local import archives, publish


def tree(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    folder.mkdir(exist_ok=True)
    return folder


def members(archive: Path) -> dict[str, bytes | None]:
    with tarfile.open(archive) as packed:
        return {m.name: packed.extractfile(m).read() if m.isfile() else None for m in packed}  # type: ignore[union-attr]


def test_the_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    """Two trees with equal files, made in another order at another time with other modes. Expected: equal archives."""
    one = tree(tmp_path / "one", {"a/x": "1", "b": "2"})
    two = tree(tmp_path / "two", {"b": "2", "a/x": "1"})
    os.utime(two / "b", (1, 1))
    (two / "b").chmod(0o600)
    for i, root in enumerate((one, two)):
        archives.write(archives.merge({"algo-1": root}), tmp_path / f"{i}.tar.gz")
    assert (tmp_path / "0.tar.gz").read_bytes() == (tmp_path / "1.tar.gz").read_bytes()


def test_hosts_are_merged_and_a_clash_is_noted(tmp_path: Path) -> None:
    """Both hosts have same.txt with one content and w.pt with two. Expected: algo-1's w.pt, one note about it."""
    roots = {
        "algo-1": tree(tmp_path / "1", {"w.pt": "one", "same.txt": "s", "only1": "1"}),
        "algo-2": tree(tmp_path / "2", {"w.pt": "two", "same.txt": "s", "d/only2": "2"}),
    }
    listing = archives.merge(roots)
    archives.write(listing, tmp_path / "m.tar.gz")
    found = members(tmp_path / "m.tar.gz")
    assert found == {"d": None, "d/only2": b"2", "only1": b"1", "same.txt": b"s", "w.pt": b"one"}
    assert listing.notes == ("w.pt: algo-2 and algo-1 wrote different files; algo-1's was kept",)


def test_output_of_one_host_has_no_host_folder(tmp_path: Path) -> None:
    roots = {"algo-1": tree(tmp_path / "1", {}), "algo-2": tree(tmp_path / "2", {"o": "2"})}
    assert list(archives.by_host(roots).members) == ["o"]


def test_output_of_several_hosts_is_kept_apart(tmp_path: Path) -> None:
    roots = {"algo-1": tree(tmp_path / "1", {"o": "1"}), "algo-2": tree(tmp_path / "2", {"o": "2"})}
    archives.write(archives.by_host(roots), tmp_path / "o.tar.gz")
    assert members(tmp_path / "o.tar.gz") == {"algo-1": None, "algo-1/o": b"1", "algo-2": None, "algo-2/o": b"2"}


def test_links_stay_links_inside_and_become_files_outside(tmp_path: Path) -> None:
    """last -> step-2 stays, copy -> ../outside is the file, gone -> nowhere outside is noted."""
    root = tree(tmp_path / "model", {"step-2/w": "2"})
    (tmp_path / "outside").write_text("far")
    (root / "last").symlink_to("step-2")
    (root / "copy").symlink_to("../outside")
    (root / "gone").symlink_to("../nowhere")
    listing = archives.merge({"algo-1": root})
    archives.write(listing, tmp_path / "m.tar.gz")
    with tarfile.open(tmp_path / "m.tar.gz") as packed:
        assert packed.getmember("last").linkname == "step-2"
    assert members(tmp_path / "m.tar.gz")["copy"] == b"far"
    assert [note.split(":")[0] for note in listing.notes] == ["gone"]


def test_a_fifo_is_left_out_and_noted(tmp_path: Path) -> None:
    root = tree(tmp_path / "model", {"w": "1"})
    os.mkfifo(root / "pipe")
    listing = archives.merge({"algo-1": root})
    assert list(listing.members) == ["w"]
    assert listing.notes[0].startswith("pipe: left out")


def test_a_failed_archive_leaves_no_part(tmp_path: Path) -> None:
    """A listed file is gone by the time it is read. Expected: FileNotFoundError, no file in the target folder."""
    target = tmp_path / "artifacts" / "m.tar.gz"
    target.parent.mkdir()
    with pytest.raises(FileNotFoundError):
        archives.write(archives.Listing({"x": archives.Member(tmp_path / "gone")}), target)
    assert list(target.parent.iterdir()) == []


def test_a_full_disk_says_so_and_keeps_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/dev/full takes the copy. Expected: EngineError with the reason, the remedy and the kept path."""
    archive = tmp_path / "model.tar.gz"
    archive.write_bytes(bytes(100_000))
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(publish, "whole_file", lambda *_: contextlib.nullcontext(Path("/dev/full")))
    with pytest.raises(EngineError, match=f"the disk is full.*hdp clean.*it is kept in {archive}"):
        publish.publish(archive, f"file://{tmp_path}/out/model.tar.gz")
    assert archive.stat().st_size == 100_000


def test_a_copied_archive_is_moved(tmp_path: Path) -> None:
    archive = tmp_path / "model.tar.gz"
    archive.write_bytes(b"abc")
    uri = publish.destination(f"file://{tmp_path}/out%20dir/", "digits", "model.tar.gz")
    assert publish.publish(archive, uri) == f"file://{tmp_path}/out%20dir/digits/output/model.tar.gz"
    assert (tmp_path / "out dir/digits/output/model.tar.gz").read_bytes() == b"abc"
    assert not archive.exists()
