"""`hdp lint-input`: what it says of a folder, a bucket, an augmented manifest; and where it ends with an error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hdp.estimator import Estimator, TrainingInput


def hdp(*arguments: str) -> tuple[int, str, str]:
    """The command in another process. Returns exit code, stdout, stderr."""
    command = [sys.executable, "-m", "hdp.estimator.cli", "lint-input", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    return done.returncode, done.stdout, done.stderr


def small_files(folder: Path, count: int) -> str:
    """So many files of 1 KiB. Returns the URI."""
    folder.mkdir()
    for i in range(count):
        (folder / f"{i}").write_bytes(bytes(1024))
    return folder.as_uri()


SAID = (
    "600 files of 1 KiB, read in shuffled order: pack them into files of 100 MB or more (TFRecord, tar), or expect 35 "
    "files/s a worker from S3 until they are fetched in the background"
)


def test_a_folder_of_small_files(tmp_path: Path) -> None:
    """600 x 1 KiB in FastFile mode."""
    uri = small_files(tmp_path / "data", 600)
    assert hdp(uri) == (0, f"{uri}: 600 files, 600 KiB: median 1 KiB, largest 1 KiB\n- {SAID}\n", "")


def test_the_plan_says_the_same_for_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For file:// only; nothing is asked of S3."""
    monkeypatch.setenv("HDP_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    data = {"a": TrainingInput(small_files(tmp_path / "data", 600), input_mode="FastFile"), "b": "s3://no-such/x/"}
    notes = Estimator(entry_point="train.py").plan(data).notes
    assert [n for n in notes if "files" in n and "inputs" in n] == [f"inputs['a']: {SAID}"]


def test_two_ranks_at_one_fifo_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """2 ranks a host and a Pipe channel; with one rank there is no note."""
    monkeypatch.setenv("HDP_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    said = [
        [
            note
            for note in Estimator(
                entry_point="train.py", distribution={"hdp": {"enabled": True, "processes_per_host": ranks}}
            ).plan({"train": TrainingInput("s3://b/x/", input_mode="Pipe")}).notes
            if "FIFO" in note
        ]
        for ranks in (1, 2)
    ]  # fmt: skip
    assert said == [
        [],
        [
            "inputs['train']: each byte of a FIFO reaches one reader only, and there are 2 ranks a host; give each a "
            "channel of its own, or let one read for all"
        ],
    ]


def test_a_bucket_as_json(s3: Any) -> None:
    """The trailing slash is missed, and 3 objects are too few for 4 hosts."""
    for key in ("train/a", "train/b", "train2/c"):
        s3.put_object(Bucket="data", Key=key, Body=b"12345")
    code, out, _ = hdp("s3://data/train", "--mode", "File", "--hosts", "4", "--sharded", "--json")
    assert code == 0
    assert json.loads(out) == {
        "shape": {"count": 3, "size_bytes": 15, "median_bytes": 5, "largest_bytes": 5, "small": 3},
        "summary": "3 files, 15 B: median 5 B, largest 5 B",
        "lines": [
            "the prefix s3://data/train has no trailing slash and also matches 1 objects beside it, such as train2/c; "
            "write s3://data/train/ to leave them out",
            "3 files for 4 hosts by ShardedByS3Key: 1 hosts get none",
        ],
    }


def test_an_augmented_manifest(s3: Any) -> None:
    """2 lines, each an object of 9 bytes and a number."""
    s3.put_object(Bucket="data", Key="i", Body=b"123456789")
    line = json.dumps({"source-ref": "s3://data/i", "label": 3})
    s3.put_object(Bucket="data", Key="m", Body=f"{line}\n{line}\n".encode())
    arguments = ["--mode", "Pipe", "--type", "AugmentedManifestFile", "--record-io"]
    code, out, _ = hdp("s3://data/m", *arguments, "--attribute", "source-ref", "--attribute", "label")
    assert (code, out) == (
        0, "s3://data/m: 2 files, 20 B: median 10 B, largest 10 B\n- nothing to say against it\n"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["s3://data/none/"], "s3://data/none/ has no files; expected at least one. Check the path, the bucket and"),
        (
            ["s3://data/x/", "--mode", "Fastfile"],
            "'Fastfile' isn't one of File, FastFile, Pipe; did you mean",
        ),
        (["/data/x"], "file:///data/x"),
    ],
)
def test_what_no_job_could_use_is_an_error(s3: Any, arguments: list[str], said: str) -> None:
    """Exit code 1 and the fault, no traceback."""
    code, out, err = hdp(*arguments)
    assert (code, out) == (1, "")
    assert said in err and "Traceback" not in err


def test_a_path_is_as_good_as_its_uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a").write_bytes(b"123")
    monkeypatch.chdir(tmp_path)
    code, out, err = hdp("data", "--mode", "File")
    assert (code, out) == (0, f"file://{tmp_path}/data: 1 file of 3 B\n- nothing to say against it\n"), err
