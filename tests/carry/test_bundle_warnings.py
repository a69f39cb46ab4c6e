"""What a bundle warns of, what never travels, and what a host doesn't unpack."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from hdp.contract.errors import LaunchError
from hdp.estimator import bundle
from hdp.estimator.telltale import find
from hdp.runtime.archive import unpack

# Put together here, so that no file of this repository has the shape of a secret.
KEY_ID = "AKIA" + "Z7QWERTYUIOPASDF"
SECRET_KEY = "aws_secret_access_key = " + "abcdEFGH12345678/+" * 2 + "wxyz"
PRIVATE = "-----BEGIN " + "OPENSSH PRIVATE KEY-----"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "train.py").write_text("print(1)\n")
    return folder


def packed(source: Path) -> bundle.Bundle:
    return bundle.pack(bundle.scan("train.py", str(source)))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"x = 1\nkey = '{KEY_ID}'\n", "an AWS access key (line 2)"),
        (f"[default]\n\n{SECRET_KEY}\n", "an AWS secret access key (line 3)"),
        (f"{PRIVATE}\nabc\n", "a private key (line 1)"),
        (f"key = '''\n  {PRIVATE}\n'''\n", "a private key (line 2)"),
        ("login('hf_" + "abcdefghijklmnopqrstuvwxyzABCDEFGH" + "')\n", "an access token (line 1)"),
        ("ghp_" + "a1B2" * 9 + "\n", "an access token (line 1)"),
    ],
)
def test_a_secret_in_a_text_file_is_named_with_its_line(source: Path, text: str, said: str) -> None:
    """It travels, since code may quote such words; the note doesn't repeat it."""
    (source / "settings.py").write_text(text)
    made = packed(source)
    assert "settings.py" in made.names
    [note] = made.notes
    assert note.startswith(f"settings.py seems to hold {said}, and travels; take it out")
    assert KEY_ID not in note


@pytest.mark.parametrize(
    "content",
    [
        b"see the line -----BEGIN PRIVATE " + b"KEY----- of the file",
        b"AKIAIOSFODNN7" + b"EXAMPLE",
        b"aws_secret_access_key = read_it_from_somewhere()",
        b"\0" + KEY_ID.encode(),
        KEY_ID.encode() + b" " * 300_000,
    ],
)
def test_what_only_looks_like_one_is_not_named(content: bytes) -> None:
    """Prose, documentation's example, a call, a binary and a large file."""
    assert find(content) == []


def test_a_large_file_is_named_with_its_size(source: Path) -> None:
    """11 MiB: it travels, and the note says where data belongs."""
    with (source / "weights.bin").open("wb") as f:
        f.truncate(11 * 2**20)
    made = packed(source)
    assert "weights.bin" in made.names
    assert made.notes == (
        "weights.bin has 11.0 MiB and travels with the code; data belongs in an input channel, and what isn't needed "
        "in .hdpignore",
    )


@pytest.mark.parametrize("name", [".git-credentials", ".aws/config", ".ssh/known_hosts", "server.key"])
def test_more_places_of_secrets_stay_at_home(source: Path, name: str) -> None:
    """Left out, and named."""
    (source / name).parent.mkdir(exist_ok=True)
    (source / name).write_text("x")
    made = packed(source)
    assert made.names == ("train.py",)
    assert "looks like a secret and stays here" in made.notes[0]


@pytest.mark.parametrize("place", [".git", "lib/.git"])
@pytest.mark.parametrize("pattern", ["", "!.git\n!**/.git\n"])
def test_git_s_own_folder_never_travels(source: Path, place: str, pattern: str) -> None:
    """At any depth, as a folder or a submodule's file, and even where a pattern asks for it."""
    (source / ".hdpignore").write_text(pattern)
    (source / place).mkdir(parents=True)
    (source / place / "config").write_text("x")
    (source / "sub").mkdir()
    (source / "sub" / ".git").write_text("gitdir: elsewhere")
    assert set(packed(source).names) == {"train.py", ".hdpignore"}


def archive(folder: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    path = folder / "code.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for member, content in members:
            member.size = len(content) if member.isfile() else 0
            tar.addfile(member, io.BytesIO(content))
    return path


def test_what_unpacks_to_too_much_is_refused_before_it_is_written(tmp_path: Path) -> None:
    """1 MiB of zeros is 1 kB of archive; at most 1,000 bytes are allowed here."""
    path = archive(tmp_path, (tarfile.TarInfo("zeros"), bytes(2**20)))
    assert path.stat().st_size < 2000
    with pytest.raises(LaunchError, match="unpacks to 1048576 bytes in 1 members or more; expected code, of 1000"):
        unpack(path, tmp_path / "code", most_bytes=1000)
    assert list((tmp_path / "code").iterdir()) == []


def test_copies_by_hard_links_count(tmp_path: Path) -> None:
    """One file of 600 bytes and a link to it, which becomes a copy: 1,200."""
    link = tarfile.TarInfo("link")
    link.type, link.linkname = tarfile.LNKTYPE, "file"
    path = archive(tmp_path, (tarfile.TarInfo("file"), bytes(600)), (link, b""))
    with pytest.raises(LaunchError, match="unpacks to 1200 bytes in 2 members"):
        unpack(path, tmp_path / "code", most_bytes=1000)


def test_too_many_members_are_refused(tmp_path: Path) -> None:
    """11 empty files; at most 10."""
    path = archive(tmp_path, *((tarfile.TarInfo(f"f{i}"), b"") for i in range(11)))
    with pytest.raises(LaunchError, match="unpacks to 0 bytes in 11 members or more"):
        unpack(path, tmp_path / "code", most_members=10)
