"""Jobs of the local engine that read a FastFile channel: what they see, and what a failure says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import boto3
import psutil
import pytest
from fastfile_support import MIB, content, needs_fuse

from hdp.contract.errors import TrainingJobFailed
from hdp.estimator import PyTorch, TrainingInput

pytestmark = [pytest.mark.slow, needs_fuse]

READ = """
import os, pathlib
folder = pathlib.Path(os.environ["SM_CHANNEL_TRAIN"])
print("read", sum(len(p.read_bytes()) for p in sorted(folder.rglob("*")) if p.is_file()), flush=True)
"""
READ_FOR_EVER = """
import os, pathlib
folder = pathlib.Path(os.environ["SM_CHANNEL_TRAIN"])
while True:
    with open(folder / "big", "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while file.read(65536):
            pass
    print("read it", flush=True)
"""
MAP_FOR_EVER = """
import mmap, os, pathlib
while True:
    with open(pathlib.Path(os.environ["SM_CHANNEL_TRAIN"], "big"), "rb") as file:
        view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        sum(view[i] for i in range(0, len(view), mmap.PAGESIZE))
        view.close()
"""
READ_WHAT_IS_GONE = """
import os, pathlib, sys
pathlib.Path(os.environ["SOURCE"], "small").unlink()
pathlib.Path(os.environ["SM_CHANNEL_TRAIN"], "small").read_bytes()
"""


READ_FROM_S3 = """
import os, pathlib
import boto3
folder = pathlib.Path(os.environ["SM_CHANNEL_TRAIN"])
print("read", sum(len(p.read_bytes()) for p in sorted(folder.glob("s*"))), flush=True)
boto3.client("s3").delete_object(Bucket="losing", Key="p/gone")
(folder / "gone").read_bytes()
"""


MAP_WHAT_CHANGES = """
import mmap, os, pathlib
import boto3
with open(pathlib.Path(os.environ["SM_CHANNEL_TRAIN"], "mapped"), "rb") as file:
    view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
print("first", view[0], flush=True)
boto3.client("s3").put_object(Bucket="changing", Key="p/mapped", Body=b"x" * 1000)
print("last", view[-1], flush=True)
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "big").write_bytes(content(30 * MIB, 1))
    (folder / "small").write_bytes(content(1000, 2))
    return folder


def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, source: Path | str, **more: object) -> PyTorch:
    """Fit a job of one host. source: a folder or a URI."""
    monkeypatch.setenv("HDP_HOME", str(tmp_path / "home"))
    code = tmp_path / "code"
    code.mkdir(exist_ok=True)
    (code / "train.py").write_text(script)
    estimator = PyTorch("train.py", source_dir=str(code), instance_count=1, **more)
    uri = source if isinstance(source, str) else source.as_uri()
    estimator.fit({"train": TrainingInput(uri, input_mode="FastFile")}, logs=None)
    return estimator


def left(tmp_path: Path) -> list[str]:
    """Mounts of this test's jobs, and mount processes that run. Others' namespaces may have copies of mounts."""
    table = Path("/proc/self/mountinfo").read_text().splitlines()
    found = [line for line in table if "fuse.hdp-fastfile" in line and str(tmp_path) in line]
    return found + [str(p.info) for p in of_test(tmp_path) if "fastfile.process" in " ".join(p.info["cmdline"] or [])]


def of_test(tmp_path: Path) -> list[psutil.Process]:
    """Processes of this test's jobs."""
    processes = psutil.process_iter(["cmdline", "environ"])
    return [p for p in processes if str(tmp_path) in str(p.info["environ"]) and p.pid != os.getpid()]


@pytest.mark.parametrize("namespaces", ["auto", "off"])
def test_a_job_streams_and_its_output_has_the_numbers(tmp_path, monkeypatch, source, capsys, namespaces):
    """With namespaces of the host's own, and without. Expected: every byte, numbers in the output, nothing mounted."""
    estimator = run(tmp_path, monkeypatch, READ, source, engine_options={"namespaces": namespaces})
    estimator.latest_training_job.logs()
    said = capsys.readouterr().out
    assert f"read {30 * MIB + 1000}" in said
    (report,) = (tmp_path / "home").glob("jobs/*/hosts/algo-1/output/data/hdp-fastfile-train-algo-1.json")
    assert json.loads(report.read_text())["read_bytes"] == 30 * MIB + 1000
    assert "1.00 bytes fetched for one read" in said
    (counted,) = estimator.latest_training_job.channel_statistics()
    assert (counted.host, counted.channel, counted.mode, counted.files) == ("algo-1", "train", "FastFile", 2)
    assert counted.read_bytes == counted.fetched_bytes == counted.size_bytes == 30 * MIB + 1000
    assert counted.requests >= 2 and counted.opens == 2 and counted.errors == 0
    assert counted.first_byte_seconds is not None and 0 < counted.first_byte_seconds < 30
    assert not left(tmp_path)


def test_a_failure_names_the_object_that_could_not_be_read(tmp_path, monkeypatch, source):
    """The script reads what is gone since. Expected: its own error, and which object, why."""
    with pytest.raises(TrainingJobFailed) as caught:
        run(tmp_path, monkeypatch, READ_WHAT_IS_GONE, source, environment={"SOURCE": str(source)})
    assert "OSError: [Errno 5] Input/output error" in caught.value.reason
    assert f"(could not be read: channel 'train': {source}/small: the file is gone)" in caught.value.reason
    assert not left(tmp_path)


def test_a_job_streams_from_s3(tmp_path, monkeypatch, aws, endpoint, capsys):
    """An object is deleted meanwhile. Expected: the others are read; the failure names bucket, key and status."""
    pytest.importorskip("obstore")
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    client = boto3.client("s3")
    client.create_bucket(Bucket="losing")
    for key in ("p/s1", "p/s2", "p/gone"):
        client.put_object(Bucket="losing", Key=key, Body=content(100_000, 1))
    client.close()
    with pytest.raises(TrainingJobFailed) as caught:
        run(tmp_path, monkeypatch, READ_FROM_S3, "s3://losing/p/")
    assert "(could not be read: channel 'train': s3://losing/p/gone: 404: the object is gone)" in caught.value.reason
    assert not left(tmp_path)


def test_a_mapped_object_that_is_cut_is_named(tmp_path, monkeypatch, aws, endpoint):
    """Replaced by a shorter one under a map, which gives SIGBUS. Expected: the signal, and which object, and why."""
    pytest.importorskip("obstore")
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    client = boto3.client("s3")
    client.create_bucket(Bucket="changing")
    client.put_object(Bucket="changing", Key="p/mapped", Body=content(20 * MIB, 1))
    client.close()
    with pytest.raises(TrainingJobFailed) as caught:
        run(tmp_path, monkeypatch, MAP_WHAT_CHANGES, "s3://changing/p/")
    why = (
        "could not be read: channel 'train': s3://changing/p/mapped: 412: the object has changed since the job started"
    )
    assert "(killed by SIGBUS)" in caught.value.reason
    assert why in caught.value.reason
    assert not left(tmp_path)


def kill_when_reading(tmp_path: Path, module: str) -> tuple[threading.Thread, list[float]]:
    """Kill the job's process that runs `module`, 1 s after its mount process has started."""
    killed: list[float] = []

    def find(name: str) -> psutil.Process | None:
        return next((p for p in of_test(tmp_path) if name in " ".join(p.info["cmdline"] or [])), None)

    def kill() -> None:
        deadline = time.monotonic() + 60
        while find("fastfile.process") is None and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(1.0)
        process = find(module)
        if process is not None:
            killed.append(time.monotonic())
            process.send_signal(signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    return thread, killed


@pytest.mark.parametrize(
    ("script", "namespaces"), [(READ_FOR_EVER, "auto"), (READ_FOR_EVER, "off"), (MAP_FOR_EVER, "auto")],
    ids=["read", "read without namespaces", "map"],
)  # fmt: skip
def test_a_mount_process_that_is_killed_ends_the_job_with_its_cause(tmp_path, monkeypatch, source, script, namespaces):
    """SIGKILL under a rank that reads for ever, or dies of SIGBUS at once for its map. Expected: within 10 s, the mount
    as the cause, nothing mounted."""
    killer, killed = kill_when_reading(tmp_path, "fastfile.process")
    with pytest.raises(TrainingJobFailed) as caught:
        run(tmp_path, monkeypatch, script, source, engine_options={"namespaces": namespaces})
    ended = time.monotonic()
    killer.join()
    assert ended - killed[0] < 10
    assert "channel 'train': its mount process ended (killed by SIGKILL)" in caught.value.reason
    assert not left(tmp_path)


@pytest.mark.parametrize("victim", ["hdp.runtime.launch.agent", "local.supervisor"])
def test_nothing_stays_mounted_when_what_looks_after_the_mount_is_killed(tmp_path, monkeypatch, source, victim):
    """Without namespaces, which would take the mount with them. Expected: the job fails, nothing is mounted."""
    killer, killed = kill_when_reading(tmp_path, victim)
    with pytest.raises(TrainingJobFailed):
        run(tmp_path, monkeypatch, READ_FOR_EVER, source, engine_options={"namespaces": "off"})
    killer.join()
    assert killed, f"no process of {victim} was found"
    deadline = time.monotonic() + 5
    while left(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left(tmp_path)


HIDDEN = """
mount --bind /dev/null /dev/fuse && exec "$@"
"""
CLIENT = """
import sys
from hdp.estimator import PyTorch, TrainingInput
estimator = PyTorch("train.py", source_dir="code", instance_count=1, environment=eval(sys.argv[2]))
try:
    estimator.fit({"train": TrainingInput(sys.argv[1], input_mode="FastFile")})
except Exception as exc:
    print(exc)
"""


@pytest.mark.parametrize("fallback", ["", "file", "File"])
def test_without_fuse(tmp_path, source, fallback):
    """/dev/fuse is no FUSE. Expected: both remedies; a download if the user has said so; a bad value is named."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(READ)
    environ = {**os.environ, "HDP_HOME": str(tmp_path / "home"), "PYTHONPATH": os.pathsep.join(sys.path)}
    variables = {"HDP_FASTFILE_FALLBACK": fallback} if fallback else {}
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", HIDDEN, "sh", sys.executable, "-c", CLIENT, source.as_uri(), repr(variables)],
        env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    said = done.stdout + done.stderr
    if fallback == "file":
        assert "there is no FUSE here, so it is downloaded, as HDP_FASTFILE_FALLBACK says" in said
        assert f"read {30 * MIB + 1000}" in said
    elif fallback:
        assert "HDP_FASTFILE_FALLBACK is 'File', expected 'file' or nothing" in said
    else:
        assert "channel 'train': input_mode='FastFile' needs FUSE, which this host doesn't give us" in said
        assert "install fuse3" in said and "use input_mode='File'" in said and "HDP_FASTFILE_FALLBACK=file" in said
    assert not left(tmp_path)
