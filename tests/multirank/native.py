"""Builds of the core's self-checking programs: one a sanitizer, kept, and shared by the tests that run them."""

import functools
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "runtime/csrc"
FOLDER = Path(__file__).parents[2] / "build/native"
#: What a program that was built with the sanitizer must refer to.
SYMBOLS = {"": "__cxa_throw", "thread": "__tsan_", "address,undefined": "__asan_"}
SANITIZERS = tuple(name for name in SYMBOLS if name)


@functools.cache
def _configure(sanitizer: str) -> Path:
    folder = FOLDER / (sanitizer.replace(",", "-") or "plain")
    # With -O2 -g the compiler takes three times as long for what the sanitizers add; reports have lines all the same.
    flags = ["-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O1"]
    _cmake("-S", str(SOURCE), "-B", str(folder), *flags, "-DHDP_STRESS=ON", f"-DHDP_SANITIZE={sanitizer}")
    return folder


def _cmake(*arguments: str) -> None:
    tool = shutil.which("cmake") or str(Path(sysconfig.get_path("scripts")) / "cmake")
    done = subprocess.run([tool, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout[-6000:]


@functools.cache
def build(sanitizer: str, target: str) -> Path:
    """core_stress, core_fuzz, core_units or hdp_fake_cuda. `sanitizer`: "" for none."""
    folder = _configure(sanitizer)
    _cmake("--build", str(folder), "-j2", "--target", target)
    [made] = [f for f in (folder / target, folder / f"lib{target}.so") if f.exists()]
    symbols = subprocess.run(["nm", "-D", str(made)], capture_output=True, text=True, check=True)
    assert SYMBOLS[sanitizer] in symbols.stdout, "the sanitizer is not on"
    return made


def run(
    sanitizer: str, program: str, *arguments: str, timeout: float = 280, environ: "dict[str, str] | None" = None
) -> "subprocess.CompletedProcess[str]":
    """Run `program`, with more variables; a report of the sanitizer makes it fail."""
    halting = {"UBSAN_OPTIONS": "halt_on_error=1", "TSAN_OPTIONS": "halt_on_error=1"}
    environment = {**os.environ, **(environ or {}), **halting}
    # Handles of closed communicators are kept on purpose (capi.cc).
    environment["ASAN_OPTIONS"] = "detect_leaks=0"
    command = [str(build(sanitizer, program)), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=timeout)


def check(done: "subprocess.CompletedProcess[str]") -> None:
    """Fail with what the program said unless it ended well."""
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-6000:]
