"""A job of the local engine says what its channels counted: as values, in `hdp describe`, on its page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hdp.estimator import Estimator
from hdp.estimator.cli.app import app
from hdp.estimator.inputs import TrainingInput

SCRIPT = """
import os, pathlib
folder = pathlib.Path(os.environ["SM_CHANNEL_FILES"])
print("files", sum(p.stat().st_size for p in folder.iterdir()), flush=True)
if os.environ["SM_CURRENT_HOST"] == "algo-1":
    print("stream", len((folder.parent / "stream_0").read_bytes()), flush=True)
"""


@pytest.mark.timeout(110)
def test_a_job_says_what_its_channels_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """2 hosts; a File channel of 3 files of 1,000 bytes on each, and a Pipe channel that only algo-1 reads."""
    monkeypatch.setenv("HDP_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for i in range(3):
        (tmp_path / "data" / str(i)).write_bytes(bytes(1000))
    (tmp_path / "train.py").write_text(SCRIPT)
    uri = (tmp_path / "data").as_uri()
    estimator = Estimator(entry_point="train.py", instance_type="local", instance_count=2)
    inputs = {"files": TrainingInput(uri), "stream": TrainingInput(uri, input_mode="Pipe")}
    job = estimator.fit(inputs, logs=None, job_name="counted")
    counted = {(c.host, c.channel): c for c in job.channel_statistics()}
    assert sorted(counted) == [(f"algo-{i}", name) for i in (1, 2) for name in ("files", "stream")]
    for host in ("algo-1", "algo-2"):
        files = counted[host, "files"]
        assert (files.mode, files.files, files.size_bytes, files.fetched_bytes) == ("File", 3, 3000, 3000)
        assert files.seconds > 0 and files.first_byte_seconds is None
    read, unread = counted["algo-1", "stream"], counted["algo-2", "stream"]
    assert (read.mode, read.epochs, read.read_bytes) == ("Pipe", 1, 3000)
    assert (unread.epochs, unread.read_bytes, unread.first_byte_seconds) == (0, 0, None)
    assert json.dumps(job.describe()["Hdp"]["channels"])
    described = CliRunner().invoke(app, ["describe", "counted"]).output
    assert any(line.split()[:5] == ["stream", "algo-1", "Pipe", "3", "2.9"] for line in described.splitlines()), (
        described
    )
