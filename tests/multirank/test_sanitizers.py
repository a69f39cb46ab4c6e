"""The core under ThreadSanitizer and under AddressSanitizer with UBSan: random operations, some with failures."""

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "runtime/csrc"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def _build(folder, sanitizer):
    tool = shutil.which("cmake") or str(Path(sysconfig.get_path("scripts")) / "cmake")
    options = ["-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DHDP_STRESS=ON", f"-DHDP_SANITIZE={sanitizer}"]
    subprocess.run([tool, "-S", str(SOURCE), "-B", str(folder), *options], check=True, capture_output=True)
    subprocess.run([tool, "--build", str(folder), "-j2", "--target", "core_stress"], check=True, capture_output=True)
    return folder / "core_stress"


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_random_operations_and_failures(tmp_path, sanitizer):
    """20 seeds each; the program verifies every element, and a report of the sanitizer ends it."""
    program = _build(tmp_path, sanitizer)
    symbols = subprocess.run(["nm", "-D", str(program)], capture_output=True, text=True, check=True).stdout
    assert "__tsan_" in symbols if sanitizer == "thread" else "__asan_" in symbols, "the sanitizer is not on"
    # Handles of closed communicators are kept on purpose (capi.cc).
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "halt_on_error=1"}
    environment["TSAN_OPTIONS"] = "halt_on_error=1"
    for mode in ([], ["--chaos"]):
        arguments = [str(program), "--seeds", "20", "--ops", "40", *mode]
        done = subprocess.run(arguments, capture_output=True, text=True, env=environment, timeout=280)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
