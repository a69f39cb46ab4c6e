"""Which libssl the core is given."""

import ctypes
import ssl
import subprocess
import sys

import pytest

from hdp.collectives.openssl import MAPS, libssl_path, mapped_libssl


def test_it_is_the_one_of_python():
    """Loaded by its path, it has the version that the ssl module reports."""
    if "/libssl" not in MAPS.read_text():
        pytest.skip("this Python has OpenSSL built in")
    path = libssl_path()
    assert path is not None
    version = ctypes.CDLL(path).OpenSSL_version
    version.restype = ctypes.c_char_p
    assert version(0).decode() == ssl.OPENSSL_VERSION


def test_none_without_ssl():
    """A Python that has no _ssl has no path to give."""
    code = (
        "import sys; sys.modules['_ssl'] = None; from hdp.collectives.openssl import libssl_path; print(libssl_path())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "None\n"


def maps(path):
    return (
        "5000-6000 r--p 00000000 fe:00 7                      /usr/lib/libother.so\n"
        f"6000-7000 r--p 00000000 fe:00 8                      {path}\n"
        f"7000-9000 r-xp 00001000 fe:00 8                      {path}\n"
        "9000-a000 rw-p 00000000 00:00 0 \n"
    )


@pytest.mark.parametrize(
    ("name", "address", "found"),
    [
        ("libssl.so.3", 0x6000, True),
        ("libssl.so.3", 0x8FFF, True),
        ("libssl.so.3", 0x9000, False),  # no file there
        ("libssl.so.3", 0x5800, False),  # another library
        ("libssl.so.3", 0xA000, False),  # nothing there
        ("python3.11", 0x7000, False),  # OpenSSL built into the program
    ],
)
def test_the_file_at_an_address(tmp_path, name, address, found):
    """It counts where it is called libssl, in a folder with a space in its name too."""
    path = tmp_path / "a folder" / name
    path.parent.mkdir()
    path.touch()
    assert mapped_libssl(maps(path), address) == (str(path) if found else None)


def test_a_file_that_is_gone(tmp_path):
    """An upgrade replaced it while this process runs: its path can't be loaded any more."""
    assert mapped_libssl(maps(f"{tmp_path}/libssl.so.3 (deleted)"), 0x7000) is None
