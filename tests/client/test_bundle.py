"""The code archive: same files, same bytes; what stays at home; what is refused."""

from __future__ import annotations

import io
import os
import tarfile
import time
from pathlib import Path

import pytest

from hdp.contract.errors import SpecError
from hdp.estimator import PyTorch, bundle

from .conftest import MemoryEngine


def write(root: Path, **files: str) -> None:
    """Write texts below `root`, by relative path; nothing is ever written outside it."""
    for name, text in files.items():
        path = root / name
        assert path.resolve().is_relative_to(root.resolve()), f"{name} leads out of {root}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def src(tmp_path: Path) -> Path:
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "train.py").write_text("print(1)\n")
    return folder


def packed(src: Path, dependencies: tuple[str, ...] = ()) -> bundle.Bundle:
    return bundle.pack(bundle.scan("train.py", str(src), dependencies))


def names(src: Path) -> set[str]:
    return set(packed(src).names)


def members(made: bundle.Bundle) -> list[tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(made.archive)) as tar:
        return tar.getmembers()


def test_same_files_same_bytes(src: Path, tmp_path: Path) -> None:
    """A copy elsewhere, made in another order, with other times and modes of reading: the same archive."""
    (src / "lib").mkdir()
    (src / "lib" / "a.py").write_text("a")
    (src / "b.py").write_text("b")
    other = tmp_path / "other"
    (other / "lib").mkdir(parents=True)
    for name in ("b.py", "lib/a.py", "train.py"):
        (other / name).write_text((src / name).read_text())
        (other / name).chmod(0o600)
        os.utime(other / name, (time.time() - 1e6,) * 2)
    assert packed(src) == packed(other)


def test_another_byte_another_digest(src: Path) -> None:
    """One character of one file."""
    before = packed(src).digest
    (src / "train.py").write_text("print(2)\n")
    assert packed(src).digest != before


def test_members_tell_nothing_about_this_machine(src: Path) -> None:
    """Owner, names and time are zero; the mode is 0644, or 0755 where a file is executable."""
    (src / "run.sh").write_text("#!/bin/sh\n")
    (src / "run.sh").chmod(0o700)
    assert packed(src).archive[4:8] == bytes(4)  # gzip's own time stamp
    found = {m.name: (m.mode, m.uid, m.gid, m.uname, m.gname, m.mtime) for m in members(packed(src))}
    assert found == {"run.sh": (0o755, 0, 0, "", "", 0), "train.py": (0o644, 0, 0, "", "", 0)}


def test_contents_travel(src: Path) -> None:
    """Bytes in, bytes out."""
    (src / "blob").write_bytes(bytes(range(256)))
    with tarfile.open(fileobj=io.BytesIO(packed(src).archive)) as tar:
        file = tar.extractfile("blob")
        assert file is not None
        assert file.read() == bytes(range(256))


def test_without_a_folder_only_the_script_travels(src: Path) -> None:
    """source_dir None: not the script's neighbours."""
    (src / "other.py").write_text("x")
    assert bundle.pack(bundle.scan(str(src / "train.py"), None)).names == ("train.py",)


def test_clutter_stays_at_home(src: Path) -> None:
    """Version control, caches, environments."""
    write(
        src,
        **{
            ".git/config": "x",
            "__pycache__/train.cpython-311.pyc": "x",
            "lib/__pycache__/a.pyc": "x",
            "lib/old.pyc": "x",
            "lib/a.py": "x",
            ".venv/bin/python": "x",
            ".ipynb_checkpoints/n.ipynb": "x",
            "lib/.DS_Store": "x",
        },
    )
    assert (src / "__pycache__" / "train.cpython-311.pyc").is_file()
    assert names(src) == {"train.py", "lib/a.py"}


@pytest.mark.parametrize(
    ("pattern", "left_out"),
    [
        ("*.csv", {"a.csv", "data/b.csv", "data/deep/c.csv"}),
        ("/*.csv", {"a.csv"}),
        ("data/", {"data/b.csv", "data/deep/c.csv", "data/d.txt"}),
        ("data/*.csv", {"data/b.csv"}),
        ("data/**/*.csv", {"data/b.csv", "data/deep/c.csv"}),
        ("**/deep", {"data/deep/c.csv"}),
        ("[ab].csv", {"a.csv", "data/b.csv"}),
        ("?.txt", {"data/d.txt"}),
        ("# a.csv", set()),
        ("a.csv/", set()),
        ("*.csv\n!b.csv", {"a.csv", "data/deep/c.csv"}),
        ("data\n!data/d.txt", {"data/b.csv", "data/deep/c.csv", "data/d.txt"}),
    ],
)
@pytest.mark.parametrize("file", [".gitignore", ".hdpignore"])
def test_patterns_keep_files_at_home(src: Path, file: str, pattern: str, left_out: set[str]) -> None:
    """The documented part of .gitignore's language, in both files."""
    everything = {"a.csv", "data/b.csv", "data/deep/c.csv", "data/d.txt"}
    for name in everything:
        (src / name).parent.mkdir(parents=True, exist_ok=True)
        (src / name).write_text("x")
    (src / file).write_text(pattern + "\n")
    assert everything - names(src) == left_out


def test_hdpignore_wins_over_gitignore(src: Path) -> None:
    """A generated file that git ignores and the job needs."""
    (src / "generated.py").write_text("x")
    (src / ".gitignore").write_text("generated.py\n")
    assert "generated.py" not in names(src)
    (src / ".hdpignore").write_text("!generated.py\n")
    assert "generated.py" in names(src)


@pytest.mark.parametrize("name", [".env", "conf/.env.local", "id_rsa", "keys/id_ed25519", "credentials", "server.pem"])
def test_secrets_stay_at_home_and_are_named(src: Path, name: str) -> None:
    """Left out, with a note that says how to send it anyhow."""
    (src / name).parent.mkdir(exist_ok=True)
    (src / name).write_text("secret")
    made = packed(src)
    assert name not in made.names
    assert made.notes == (f"{name} looks like a secret and stays here; add '!{name}' to .hdpignore to send it",)
    (src / ".hdpignore").write_text(f"!{name}\n")
    assert name in names(src)


def test_notes_about_secrets_are_in_the_plan(project: Path, engine: MemoryEngine) -> None:
    """plan() shows what stays at home."""
    (project / ".env").write_text("x")
    notes = PyTorch("train.py", source_dir=".", engine=engine).plan().notes
    assert ".env looks like a secret and stays here; add '!.env' to .hdpignore to send it" in notes


def test_too_much_code_is_refused_with_the_largest_files(src: Path) -> None:
    """201 MiB (sparse): refused by size, without reading it."""
    with (src / "data.bin").open("wb") as f:
        f.truncate(201 * 2**20)
    with pytest.raises(SpecError) as raised:
        packed(src)
    assert raised.value.faults == (
        "source_dir and dependencies hold 201 MiB; at most 200. Largest: data.bin (201.0 MiB), train.py (0.0 MiB). "
        "List them in .hdpignore, or make them an input channel",
    )


def test_dependencies_lie_beside_the_script(src: Path, tmp_path: Path) -> None:
    """A folder and a file, each under its own name."""
    write(tmp_path / "shared", **{"util.py": "x", "sub/b.py": "y"})
    (tmp_path / "one.py").write_text("z")
    made = packed(src, (str(tmp_path / "shared") + "/", str(tmp_path / "one.py")))
    assert made.names == ("one.py", "shared/sub/b.py", "shared/util.py", "train.py")


def test_clashing_names_are_refused(src: Path, tmp_path: Path) -> None:
    """A dependency called like a file of source_dir."""
    (tmp_path / "train.py").write_text("other")
    with pytest.raises(SpecError, match=r"would both be 'train\.py' in the archive; rename one of them"):
        packed(src, (str(tmp_path / "train.py"),))


def test_a_link_inside_is_followed(src: Path) -> None:
    """A file and a folder behind links travel as what they are."""
    write(src, **{"real/a.py": "a"})
    (src / "link.py").symlink_to("real/a.py")
    (src / "linked").symlink_to("real")
    assert {"link.py", "linked/a.py", "real/a.py"} <= names(src)
    assert all(m.isfile() for m in members(packed(src)))


def test_a_link_that_leads_outside_is_refused(src: Path, tmp_path: Path) -> None:
    """The fault names the link, its target and what to do."""
    (tmp_path / "outside.txt").write_text("x")
    (src / "link").symlink_to(tmp_path / "outside.txt")
    with pytest.raises(SpecError) as raised:
        packed(src)
    assert raised.value.faults == (
        f"source_dir: the link {src}/link points outside, to {tmp_path}/outside.txt; copy the file, "
        f"name it in dependencies, or list it in .hdpignore",
    )


def test_a_link_that_goes_round_is_refused(src: Path) -> None:
    """A link to the folder that it is in."""
    (src / "loop").symlink_to(src)
    with pytest.raises(SpecError, match=r"the link .*/loop leads back to a folder above it; remove it"):
        packed(src)


def test_a_broken_link_is_refused(src: Path) -> None:
    """Its target is missing."""
    (src / "gone").symlink_to("nowhere")
    with pytest.raises(SpecError, match="gone doesn't exist; check the path"):
        packed(src)


def test_a_pipe_is_refused(src: Path) -> None:
    """Reading one would wait for ever."""
    os.mkfifo(src / "pipe")
    with pytest.raises(SpecError, match="pipe isn't a regular file"):
        packed(src)


def test_an_ignored_script_is_refused(src: Path) -> None:
    """The entry point itself is in .gitignore."""
    (src / ".gitignore").write_text("*.py\n")
    with pytest.raises(SpecError, match=r"entry_point: train\.py is left out by an ignore pattern"):
        packed(src)


def test_an_archive_on_s3_is_passed_through(project: Path, engine: MemoryEngine) -> None:
    """source_dir s3://...tar.gz: nothing is packed or uploaded."""
    PyTorch("train.py", source_dir="s3://bucket/code.tar.gz", engine=engine).fit(logs=None, job_name="a")
    assert engine.calls == [("submit", "a")]
    values = engine.requests["a"].training_job["HyperParameters"]
    assert values["sagemaker_submit_directory"] == '"s3://bucket/code.tar.gz"'
