"""The wheel that travels: made from this installation, the same bytes each time, usable without pip; its libraries."""

from __future__ import annotations

import hashlib
import io
import os
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hdp.collectives import library
from hdp.contract.delivery import START, Platform, platform_of
from hdp.contract.errors import EngineError
from hdp.estimator.delivery import elf, libraries, wheel
from hdp.estimator.delivery.parcel import Parcel, parcel

from .places import ROOT


@pytest.fixture(scope="module")
def made() -> Parcel:
    return parcel()


@pytest.fixture(scope="module")
def archive(made: Parcel) -> zipfile.ZipFile:
    [name] = [name for name in made.files if name.endswith(".whl")]
    return zipfile.ZipFile(io.BytesIO(made.files[name]))


def test_it_is_a_wheel_and_the_start_script(made: Parcel) -> None:
    """Two files; the wheel's name says what its core needs."""
    assert set(made.files) == {START, next(n for n in made.files if n.endswith(f"-py3-none-{made.platform.tag}.whl"))}


def test_the_same_installation_gives_the_same_bytes(made: Parcel, tmp_path: Path) -> None:
    """Also in another process, with another time, folder and hash seed."""
    code = "from hdp.estimator.delivery.parcel import parcel; print(parcel().digest)"
    environment = {**os.environ, "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == made.digest


def test_the_client_stays_at_home(archive: zipfile.ZipFile) -> None:
    """Nothing of hdp.estimator, no tests, no caches; every part that runs in a container."""
    tops = {"/".join(name.split("/")[:2]) for name in archive.namelist() if name.startswith("hdp/")}
    parts = ("collectives", "contract", "keras", "metrics", "runtime", "tensorflow", "torch")
    assert tops == {f"hdp/{part}" for part in parts}
    assert not [name for name in archive.namelist() if "__pycache__" in name]


def test_there_is_no_package_called_hdp_alone(archive: zipfile.ZipFile) -> None:
    """hdp is a namespace package everywhere."""
    assert "hdp/__init__.py" not in archive.namelist()


def test_every_file_is_recorded_with_its_digest(archive: zipfile.ZipFile) -> None:
    """RECORD, as installers check it."""
    [record] = [name for name in archive.namelist() if name.endswith(".dist-info/RECORD")]
    lines = dict(line.split(",", 1) for line in archive.read(record).decode().splitlines())
    assert set(lines) == set(archive.namelist())
    import base64

    for name in set(lines) - {record}:
        content = archive.read(name)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        assert lines[name] == f"sha256={digest},{len(content)}"


def test_torch_finds_the_backend_in_it(archive: zipfile.ZipFile, tmp_path: Path) -> None:
    """Unpacked onto the path: importlib.metadata has the entry points, and no command."""
    archive.extractall(tmp_path)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from importlib.metadata import distribution as d;"
        "print([(e.group, e.name) for e in d('hdp-train').entry_points])"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[('torch.backends', 'hdp'), ('torch.distributed.backends', 'hdp')]"


def test_our_aliases_go_before_a_library_that_the_image_has(archive: zipfile.ZipFile, tmp_path: Path) -> None:
    """A real smdistributed package behind it on the path: a script gets ours."""
    archive.extractall(tmp_path / "ours")
    real = tmp_path / "image" / "smdistributed" / "dataparallel"
    real.mkdir(parents=True)
    for folder in (real.parent, real):
        (folder / "__init__.py").write_text("raise ImportError('the image has its own')\n")
    code = "import sys; sys.path[:0] = sys.argv[1:]; import smdistributed.dataparallel as s; print(s.__file__)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, str(tmp_path / "ours"), str(tmp_path / "image")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(str(tmp_path / "ours"))


def test_what_a_library_needs_is_what_objdump_says() -> None:
    """The core of this machine: the newest GLIBC_ of its dynamic symbols."""
    path = library.library_path()
    listed = subprocess.run(["objdump", "-T", str(path)], capture_output=True, text=True, check=True).stdout
    versions = [word.strip("()")[6:] for word in listed.split() if word.strip("()").startswith("GLIBC_")]
    newest = max(tuple(map(int, v.split(".")[:2])) for v in versions if v[0].isdigit())
    assert elf.platform_of(path.read_bytes()).glibc == newest


@pytest.mark.parametrize("content", [b"", b"MZ" * 100, b"\x7fELF\x01\x01" + bytes(100)])
def test_what_is_no_library_for_linux_is_refused(content: bytes) -> None:
    """Empty, a Windows file, 32 bits."""
    with pytest.raises(ValueError, match=r"cut short|isn't a 64-bit little-endian ELF file"):
        elf.platform_of(content)


def test_a_library_of_an_unknown_processor_is_refused() -> None:
    """ELF's number 8 is MIPS."""
    content = bytearray(library.library_path().read_bytes())
    struct.pack_into("<H", content, 18, 8)
    with pytest.raises(ValueError, match="it is for processor number 8 of ELF; hdp knows x86_64, aarch64"):
        elf.platform_of(bytes(content))


def test_tags_say_and_are_read_as_platforms() -> None:
    """There and back, out of a file name."""
    needs = Platform((2, 28), "aarch64")
    assert platform_of(f"hdp_train-1-py3-none-{needs.tag}.whl") == needs
    assert platform_of("hdp_train-1-py3-none-any.whl") is None


def test_a_checkout_prefers_the_wheel_that_was_built_for_old_systems(tmp_path: Path) -> None:
    """dist/ has one: its core travels, as long as no source is newer."""
    root, dist = tmp_path / "runtime", tmp_path / "dist"
    (root / "csrc").mkdir(parents=True)
    (root / "csrc" / "a.cc").write_text("x")
    dist.mkdir()
    path = dist / "hdp_train-1-py3-none-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(libraries.CORE, b"from dist")
    assert libraries.find(root, {}) == {libraries.CORE: b"from dist"}
    os.utime(path, (1, 1))
    assert libraries.find(root, {"HDP_CORE_LIBRARY": str(root / "csrc" / "a.cc")})[libraries.CORE] == b"x"


def test_a_wheel_that_is_none_is_refused(tmp_path: Path) -> None:
    """HDP_RUNTIME_WHEEL names a text file."""
    (tmp_path / "x.whl").write_text("no")
    with pytest.raises(EngineError, match=r"HDP_RUNTIME_WHEEL: .*x\.whl can't be read as a wheel"):
        libraries.find(tmp_path, {"HDP_RUNTIME_WHEEL": str(tmp_path / "x.whl")})


def test_a_file_for_windows_in_it_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The message names the library and what it isn't."""
    (tmp_path / "core.so").write_bytes(b"MZ" * 100)
    monkeypatch.setenv("HDP_CORE_LIBRARY", str(tmp_path / "core.so"))
    with pytest.raises(EngineError, match=r"libhdp_core\.so can't travel to the job's hosts: it isn't a 64-bit"):
        wheel.build()


def test_the_start_script_is_beside_the_runtime(made: Parcel) -> None:
    """As it is in the sources."""
    assert made.files[START] == (ROOT / "runtime" / "hdp" / "runtime" / START).read_bytes()
