"""The mounts that FastFile's benchmark reads: ours, ours from memory, rclone's and s3fs's."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from s3like import S3Like, cpu_seconds

from hdp.runtime.channels.fastfile import mounting
from hdp.runtime.channels.fastfile.mode import Mount
from hdp.runtime.channels.fastfile.wire import Task
from hdp.runtime.channels.listing import source_listing
from hdp.runtime.channels.spec import ChannelSpec
from hdp.runtime.launch.linux import Children

MIB = 1 << 20
PEERS = ("rclone", "s3fs")
_HERE = Path(__file__).parent
#: To mount, and to end afterwards; it takes less than one.
_SECONDS = 30.0


@dataclass(frozen=True)
class Site:
    """The server, and a folder for everything else."""

    server: S3Like
    work: Path

    def reader(self, *argv: object, slow: bool = False) -> dict[str, Any]:
        """Run one reader, a process of its own."""
        command = [sys.executable, str(_HERE / "fastfile_reader.py"), *map(str, argv)]
        environ = {**os.environ, **self.server.environ(slow=slow)}
        said = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True, timeout=300).stdout
        value: dict[str, Any] = json.loads(said)
        return value


@dataclass(frozen=True)
class Mounted:
    """One mount, and the process that serves it."""

    folder: Path
    pid: int

    def cpu_seconds(self) -> float:
        """Processor time of the process so far."""
        return cpu_seconds(self.pid)

    def peak_rss_mib(self) -> float:
        """The most memory that it had."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


@dataclass(frozen=True)
class Ours(Mounted):
    """FastFile."""

    mount: Mount
    report: Path

    def numbers(self) -> dict[str, Any]:
        """Its counters; ends it."""
        self.mount.stop()
        value: dict[str, Any] = json.loads(self.report.read_text())
        return value


@contextlib.contextmanager
def fastfile(site: Site, bucket: str, *, slow: bool, budget_mib: int = 512) -> Iterator[Ours]:
    """A bucket through FastFile."""
    with _environ(site.server.environ(slow=slow)), tempfile.TemporaryDirectory(dir=site.work) as folder:
        listing = source_listing(ChannelSpec(bucket, f"s3://{bucket}/", "FastFile"))
        task = Task(bucket, listing.base, tuple(listing.items), folder, budget_mib * MIB)
        report = site.work / "numbers.json"
        mount = Mount(task, Children(), lambda: False, report)
        try:
            yield Ours(Path(folder), mount.pid, mount, report)
        finally:
            mount.stop()


@contextlib.contextmanager
def from_memory(site: Site, file: Path) -> Iterator[Mounted]:
    """A file through FastFile's face, its bytes in memory."""
    with tempfile.TemporaryDirectory(dir=site.work) as name:
        folder = Path(name)
        command = [sys.executable, str(_HERE / "fastfile_memory.py"), name, str(file)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        try:
            if process.stdout.readline() != b"mounted\n":
                raise RuntimeError(f"fastfile_memory.py ended with exit code {process.wait()} before it had mounted")
            mounting.read_far_ahead(folder)
            yield Mounted(folder, process.pid)
        finally:
            mounting.unmount(folder, subprocess.Popen)
            _end(process)
            process.stdout.close()


@contextlib.contextmanager
def peer(site: Site, name: str, *, slow: bool) -> Iterator[Mounted]:
    """The large bucket through somebody else's mount."""
    values = site.server.environ(slow=slow)
    argv, environ = (_rclone if name == "rclone" else _s3fs)(values, site.work)
    folder = Path(tempfile.mkdtemp(dir=site.work))
    log = site.work / f"{name}.log"
    clean = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
    with log.open("w") as out:
        command = [a.format(folder) for a in argv]
        process = subprocess.Popen(command, env={**clean, **environ}, stdout=out, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + _SECONDS
        while not folder.is_mount():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{name} hasn't mounted: {log.read_text().strip() or 'it says nothing'}")
            time.sleep(0.05)
        yield Mounted(folder, process.pid)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)
        process.terminate()
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for what should end by itself now."""
    try:
        process.wait(_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def installed(names: Sequence[str]) -> list[str]:
    """Those peers that are here."""
    return [name for name in names if shutil.which(name)]


def _rclone(values: Mapping[str, str], work: Path) -> tuple[list[str], dict[str, str]]:
    return ["rclone", "mount", "s:large", "{}", "--read-only", "--buffer-size", "16M"], {
        "RCLONE_CONFIG_S_TYPE": "s3", "RCLONE_CONFIG_S_PROVIDER": "Other",
        "RCLONE_CONFIG_S_ENDPOINT": values["AWS_ENDPOINT_URL"], "RCLONE_CONFIG_S_ACCESS_KEY_ID": "a",
        "RCLONE_CONFIG_S_SECRET_ACCESS_KEY": "b", "RCLONE_CONFIG": str(work / "rclone.conf"),
    }  # fmt: skip


def _s3fs(values: Mapping[str, str], _work: Path) -> tuple[list[str], dict[str, str]]:
    options = f"url={values['AWS_ENDPOINT_URL']},use_path_request_style,ro"
    return ["s3fs", "large", "{}", "-f", "-o", options], dict(values)


@contextlib.contextmanager
def _environ(values: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
