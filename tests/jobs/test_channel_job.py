"""Real local jobs whose channels stream: Pipe and File side by side, and what ends such a job."""

from __future__ import annotations

import json
import os
import re
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from hdp.contract.errors import TrainingJobFailed
from hdp.estimator import Estimator, ShuffleConfig, TrainingInput

READ = """
import json
import os
from pathlib import Path

stream = os.environ["SM_CHANNEL_STREAM"]
epochs = []
for epoch in range(3):
    with open(f"{stream}_{epoch}", "rb") as fifo:
        epochs.append(fifo.read(30 if epoch == 1 else -1).decode().split())
files = sorted(p.name for p in Path(os.environ["SM_CHANNEL_FILES"]).iterdir())
out = Path(os.environ["SM_OUTPUT_DATA_DIR"])
out.mkdir(parents=True, exist_ok=True)
host = json.loads(os.environ["SM_RESOURCE_CONFIG"])["current_host"]
(out / f"{host}.json").write_text(json.dumps({"epochs": epochs, "files": files}))
"""
ALL_MODES = """
import json
import os
from pathlib import Path

host = json.loads(os.environ["SM_RESOURCE_CONFIG"])["current_host"]
read = {name: "".join(p.read_text() for p in sorted(Path(os.environ["SM_CHANNEL_" + name]).rglob("*")) if p.is_file())
        for name in ("FILE", "FASTFILE")}
with open(os.environ["SM_CHANNEL_PIPE"] + "_0") as fifo:
    read["PIPE"] = fifo.read()
print("READ", host, json.dumps(read), flush=True)
"""
DIE = """
import os, signal
with open(os.environ["SM_CHANNEL_STREAM"] + "_0", "rb") as fifo:
    fifo.read(10)
    {end}
"""
VANISH = """
import os
with open(os.environ["SM_CHANNEL_STREAM"] + "_0", "rb") as fifo:
    fifo.read(10)
    for path in {paths!r}:
        os.truncate(path, 1)
    print("read", len(fifo.read()), "bytes to an end that should not come")
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """20 files with a line each."""
    folder = tmp_path / "source"
    folder.mkdir()
    for i in range(20):
        (folder / f"{i:02d}").write_text(f"line-{i:02d}\n")
    return folder


def estimator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, hosts: int = 1) -> Estimator:
    """A job of one rank a host."""
    monkeypatch.setenv("HDP_HOME", str(tmp_path / "home"))
    (tmp_path / "code").mkdir(exist_ok=True)
    (tmp_path / "code/train.py").write_text(script)
    return Estimator(
        entry_point="train.py", source_dir=str(tmp_path / "code"), instance_type="local", instance_count=hosts
    )


def test_a_job_reads_a_pipe_and_a_folder(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """2 hosts share a shuffled Pipe channel for 3 epochs, of which the second is left early; both copy the folder."""
    streamed = TrainingInput(source.as_uri(), "ShardedByS3Key", input_mode="Pipe", shuffle_config=ShuffleConfig(7))
    job = estimator(tmp_path, monkeypatch, READ, hosts=2).fit({"stream": streamed, "files": source.as_uri()})
    with tarfile.open(unquote(job.output_data.removeprefix("file://"))) as archive:
        told = [json.load(archive.extractfile(m)) for m in archive.getmembers() if m.name.endswith(".json")]
    lines = {f"line-{i:02d}" for i in range(20)}
    assert [one["files"] for one in told] == [[f"{i:02d}" for i in range(20)]] * 2
    first, third = ([set(one["epochs"][n]) for one in told] for n in (0, 2))
    assert first[0] | first[1] == third[0] | third[1] == lines
    assert not first[0] & first[1] and first != third
    assert [len(one["epochs"][1]) for one in told] == [4, 4]  # 30 bytes: 3 lines and a part
    log = capsys.readouterr().out
    assert "channel stream: epoch 0, 0.0 MB" in log and "channel files: File, 20 files" in log


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client of a real S3 server (moto) with the bucket "data"; the job finds the same server."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    client = boto3.client("s3")
    client.create_bucket(Bucket="data")
    yield client
    client.close()
    server.stop()


@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK), reason="needs root and /dev/fuse, for FastFile"
)
def test_one_job_has_channels_in_all_modes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """2 hosts; from S3: a prefix in File mode, a manifest by FastFile, and shares of a prefix by Pipe."""
    for i in range(5):
        bucket.put_object(Bucket="data", Key=f"train/{i}/part", Body=b"%d" % i)
    bucket.put_object(Bucket="data", Key="some.manifest", Body=b'[{"prefix": "s3://data/train/"}, "1/part", "3/part"]')
    channels = {
        "file": TrainingInput("s3://data/train/", input_mode="File"),
        "fastfile": TrainingInput("s3://data/some.manifest", s3_data_type="ManifestFile", input_mode="FastFile"),
        "pipe": TrainingInput("s3://data/train/", "ShardedByS3Key", input_mode="Pipe"),
    }
    estimator(tmp_path, monkeypatch, ALL_MODES, hosts=2).fit(channels)
    found = dict(re.findall(r"READ (\S+) (.*)", capsys.readouterr().out))
    assert {host: json.loads(text) for host, text in found.items()} == {
        "algo-1": {"FILE": "01234", "FASTFILE": "13", "PIPE": "024"},
        "algo-2": {"FILE": "01234", "FASTFILE": "13", "PIPE": "13"},
    }


@pytest.mark.parametrize(
    ("end", "cause"), [("os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL"), ("raise ValueError('x')", "exit")]
)
def test_a_rank_that_dies_in_mid_epoch_is_the_jobs_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, cause: str
) -> None:
    """It has read 10 bytes of 8 MB: the job ends at once, by its own cause."""
    (tmp_path / "large").write_bytes(bytes(8 << 20))
    streamed = TrainingInput((tmp_path / "large").as_uri(), input_mode="Pipe")
    start = time.monotonic()
    with pytest.raises(TrainingJobFailed, match=rf"rank 0 on algo-1 failed \({cause}"):
        estimator(tmp_path, monkeypatch, DIE.format(end=end)).fit({"stream": streamed}, logs=None)
    assert time.monotonic() - start < 60


def test_a_source_that_is_cut_in_mid_epoch_is_the_jobs_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files get shorter while others are read. Expected: the first of them and the channel named, and no early end.

    400 files of 20 kB, of which those from number 300 on are cut: 64 are read ahead, and some 50 are in the FIFO.
    """
    folder = tmp_path / "source"
    folder.mkdir()
    paths = [folder / f"{i:03d}" for i in range(400)]
    for path in paths:
        path.write_bytes(bytes(20_000))
    streamed = TrainingInput(folder.as_uri(), input_mode="Pipe")
    script = VANISH.format(paths=[str(p) for p in paths[300:]])
    with pytest.raises(TrainingJobFailed) as caught:
        estimator(tmp_path, monkeypatch, script).fit({"stream": streamed}, logs=None)
    assert f"channel 'stream': {folder}/300 can't be read: the file has changed" in caught.value.reason
    assert caught.value.reason.startswith("host algo-1 failed")
