"""benchmarks/fastfile.py as a user runs it, with little data; what it refuses; and the bound that it computes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))

fastfile_cases = pytest.importorskip("fastfile_cases", reason="the benchmark of FastFile is for Linux")
import fastfile_report  # noqa: E402  (where they are has to be said first)
import s3like  # noqa: E402

needs_all = pytest.mark.skipif(
    s3like.missing() is not None or os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK),
    reason=f"needs root, /dev/fuse and {s3like.missing() or 'nothing else'}",
)
WHO = {
    "1 GiB in order, loopback": ["client", "FastFile", "FastFile, O_DIRECT", "FastFile, from memory", "bound"],
    "1 GiB in order, S3-like": ["client", "FastFile"],
    "small files, S3-like": ["client"],
    "small files, S3-like, in order, 1 process": ["FastFile"],
    "small files, S3-like, in order, 4 processes": ["FastFile"],
    "small files, S3-like, shuffled, 1 process": ["FastFile"],
    "small files, S3-like, shuffled, 4 processes": ["FastFile"],
    "first byte, S3-like": ["FastFile"],
    "16 readers, loopback": ["FastFile"],
    "16 readers, S3-like": ["FastFile"],
}


def run(*arguments):
    command = [sys.executable, str(BENCHMARKS / "fastfile.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """All cases with 32 MiB and 40 files, once, without peers."""
    folder = tmp_path_factory.mktemp("fastfile")
    out, picture = folder / "found.json", folder / "found.png"
    done = run("--large-mib", 32, "--files", 40, "--repeats", 1, "--peers", "--json", out, "--plot", picture)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text()), picture, done.stdout


@pytest.mark.slow
@needs_all
def test_each_case_is_reported(found):
    """Expected: a row for each of those who are compared, with a rate above 0."""
    who = {}
    for row in found[0]["rows"]:
        who.setdefault(row["case"], []).append(row["who"])
        assert row["median"] > 0
    assert who == WHO


@pytest.mark.slow
@needs_all
def test_processor_time_is_told_by_process(found):
    """Expected: server, mount and reader of FastFile on loopback, each a number of seconds a GiB."""
    (row,) = [r for r in found[0]["rows"] if r["case"] == "1 GiB in order, loopback" and r["who"] == "FastFile"]
    costs = row["more"]["cpu_s_per_gib"]
    assert costs.keys() == {"nginx", "mount", "reader"} and costs["mount"] > 0 and costs["reader"] > 0


@pytest.mark.slow
@needs_all
def test_the_picture_is_drawn(found):
    """Expected: a PNG of some size."""
    assert found[1].read_bytes().startswith(b"\x89PNG") and found[1].stat().st_size > 20_000


def test_other_bytes_are_refused():
    """b differs, c is missing. Expected: how many, of how many, and the first of them."""
    stored = {"a": "1", "b": "2", "c": "3"}
    with pytest.raises(fastfile_cases.WrongBytes) as caught:
        fastfile_cases.compare("FastFile", {"a": "1", "b": "x"}, stored)
    assert str(caught.value) == ("FastFile: 2 of 3 files aren't as they were stored, the first is b; nothing was timed")
    fastfile_cases.compare("FastFile", dict(stored), stored)


def test_the_bound_is_of_all_that_takes_part():
    """2 cores; 0.2 + 0.5 and 0.3 + 0.25 s a GiB. Expected: 2048 / 1.25 = 1638.4 MiB/s."""
    costs = {"nginx": 0.2, "client": 0.5}, {"mount": 0.3, "reader": 0.25}
    assert fastfile_report.bound(2, *costs) == pytest.approx(1638.4)


def test_a_folder_that_is_not_there_is_refused_before_anything_runs():
    """Expected: an exit status, and which one."""
    done = run("--json", "/nonexistent/found.json")
    assert done.returncode != 0 and "/nonexistent/found.json: its folder is not there" in done.stderr
