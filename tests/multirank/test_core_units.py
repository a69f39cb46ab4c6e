"""The checksum and TLS of the core by themselves: as they are used, and under the sanitizers."""

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from hdp.collectives.openssl import libssl_path

SOURCE = Path(__file__).parents[2] / "runtime/csrc"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def _build(folder, sanitizer):
    tool = shutil.which("cmake") or str(Path(sysconfig.get_path("scripts")) / "cmake")
    options = ["-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DHDP_STRESS=ON", f"-DHDP_SANITIZE={sanitizer}"]
    subprocess.run([tool, "-S", str(SOURCE), "-B", str(folder), *options], check=True, capture_output=True)
    subprocess.run([tool, "--build", str(folder), "-j2", "--target", "core_units"], check=True, capture_output=True)
    return folder / "core_units"


@pytest.mark.parametrize(
    ("sanitizer", "symbol", "mib"), [("", None, 256), ("address,undefined", "__asan_", 64), ("thread", "__tsan_", 32)]
)
def test_checksum_and_tls(tmp_path, sanitizer, symbol, mib):
    """The program checks itself; a report of the sanitizer ends it. It prints what it measured."""
    program = _build(tmp_path, sanitizer)
    symbols = subprocess.run(["nm", "-D", str(program)], capture_output=True, text=True, check=True).stdout
    assert symbol is None or symbol in symbols, "the sanitizer is not on"
    environment = {**os.environ, "UBSAN_OPTIONS": "halt_on_error=1", "TSAN_OPTIONS": "halt_on_error=1"}
    arguments = [str(program), "--libssl", libssl_path() or "libssl.so.3", "--mib", str(mib)]
    done = subprocess.run(arguments, capture_output=True, text=True, env=environment, timeout=280)
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    assert done.stdout.endswith("ok\n")
