"""FastFile against the bare client in the same run, and against rclone's mount and s3fs where they are installed.

    sudo python benchmarks/fastfile.py                  # all cases
    sudo python benchmarks/fastfile.py sequential --repeats 5 --out build/fastfile.json

The store is nginx on loopback (`s3like`): as fast as it goes, and, the S3-like port, with 25 ms to the first byte and
90 MB/s a connection. Bytes are compared before anything is timed. Every repeat has a mount of its own, so that the
page cache has nothing; peers alternate within a repeat.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fastfile_reader import digest
from rich.console import Console
from rich.table import Table
from s3like import S3Like, missing

from hdp.runtime.channels.fastfile.mode import Mount
from hdp.runtime.channels.fastfile.wire import Task
from hdp.runtime.channels.listing import source_listing
from hdp.runtime.channels.spec import ChannelSpec
from hdp.runtime.launch.linux import Children

MIB = 1 << 20
LARGE_MIB, SMALL_FILES, SMALL_BYTES = 1024, 2000, 20 * 1024
_READER = Path(__file__).with_name("fastfile_reader.py")


class Bench:
    """The server, the data, and the results so far."""

    def __init__(self, server: S3Like, work: Path, options: argparse.Namespace) -> None:
        self.server = server
        self.work = work
        self.options = options
        self.rows: list[dict[str, Any]] = []

    def note(self, case: str, peer: str, values: Sequence[float], unit: str, **more: Any) -> float:
        """Keep a result. Returns its median."""
        median = statistics.median(values)
        self.rows.append({"case": case, "peer": peer, "median": median, "values": list(values), "unit": unit, **more})
        print(f"{case:34} {peer:10} {median:10.1f} {unit}  {more or ''}", file=sys.stderr, flush=True)
        return median

    @contextlib.contextmanager
    def mounted(self, bucket: str, *, slow: bool, budget_mib: int = 512) -> Iterator[Mounted]:
        """A bucket through FastFile."""
        with _environ(self.server.environ(slow=slow)), tempfile.TemporaryDirectory(dir=self.work) as folder:
            listing = source_listing(ChannelSpec(bucket, f"s3://{bucket}/", "FastFile"))
            task = Task(bucket, listing.base, tuple(listing.items), folder, budget_mib * MIB)
            mount = Mount(task, Children(), lambda: False, self.work / "numbers.json")
            try:
                yield Mounted(Path(folder), mount, self.work / "numbers.json")
            finally:
                mount.stop()

    def reader(self, *argv: object, slow: bool = False) -> dict[str, Any]:
        """Run one reader."""
        command = [sys.executable, str(_READER), *map(str, argv)]
        environ = {**os.environ, **self.server.environ(slow=slow)}
        said = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=300).stdout
        value: dict[str, Any] = json.loads(said)
        return value


class Mounted:
    """One mount."""

    def __init__(self, folder: Path, mount: Mount, numbers: Path) -> None:
        self.folder = folder
        self._mount = mount
        self._numbers = numbers

    @property
    def _pid(self) -> int:
        return self._mount.pid

    def cpu_seconds(self) -> float:
        """Processor time of the mount process so far."""
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_rss_mib(self) -> float:
        """The most memory that it had."""
        lines = Path(f"/proc/{self._pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024

    def numbers(self) -> dict[str, Any]:
        """Its counters, once it has ended."""
        self._mount.stop()
        value: dict[str, Any] = json.loads(self._numbers.read_text())
        return value


def check(bench: Bench) -> None:
    """Every byte through the mount is the file's."""
    with bench.mounted("large", slow=False) as mounted:
        source = bench.work / "buckets" / "large" / "f0"
        assert bench.reader("digest", mounted.folder / "f0") == digest([str(source)])
    with bench.mounted("small", slow=False) as mounted:
        names = sorted(p.name for p in mounted.folder.iterdir())
        assert bench.reader("digest", *(mounted.folder / n for n in names)) == digest(
            [str(bench.work / "buckets" / "small" / n) for n in names]
        )


def sequential(bench: Bench) -> None:
    """Judgement 1: one reader, 1 MiB at a time, on both ports, beside the bare client and the peers."""
    for slow in (True, False):
        case = "sequential, " + ("S3-like" if slow else "loopback")
        results: dict[str, list[float]] = {}
        cpu = []
        for _ in range(bench.options.repeats):
            results.setdefault("client", []).append(_rate(bench.reader("client-large", 16, "large", "f0", slow=slow)))
            with bench.mounted("large", slow=slow) as mounted:
                results.setdefault("FastFile", []).append(
                    _rate(bench.reader("sequential", 1024, mounted.folder / "f0"))
                )
                cpu.append(mounted.cpu_seconds())
            for name, mount in PEERS.items():
                with mount(bench, slow) as folder:
                    if folder is not None:
                        rate = _rate(bench.reader("sequential", 1024, folder / "f0"))
                        results.setdefault(name, []).append(rate)
        ours = statistics.median(results["FastFile"])
        for name, values in results.items():
            more = {"cpu_s_per_gib": round(statistics.median(cpu), 2)} if name == "FastFile" else {}
            bench.note(case, name, values, "MiB/s", ours_over=round(ours / statistics.median(values), 2), **more)


def small(bench: Bench) -> None:
    """Judgement 2: 2,000 files of 20 KiB."""
    client: list[float] = []
    cases: dict[tuple[str, int, int], list[float]] = {
        ("in order", 1, 0): [], ("in order", 4, 0): [], ("shuffled", 1, 7): [], ("shuffled", 4, 7): []
    }  # fmt: skip
    gets: dict[tuple[str, int, int], list[float]] = {}
    for _ in range(bench.options.repeats):
        found = bench.reader("client-small", 64, "small", slow=True)
        client.append(found["files"] / found["seconds"])
        for case, values in cases.items():
            with bench.mounted("small", slow=True) as mounted:
                found = bench.reader("files", case[1], case[2], mounted.folder)
                values.append(found["files"] / found["seconds"])
                gets.setdefault(case, []).append(mounted.numbers()["gets"] / found["files"])
    limit = bench.note("small files, S3-like", "client", client, "files/s", connections=64)
    for case, values in cases.items():
        bench.note(f"small {case[0]}, {case[1]} processes", "FastFile", values, "files/s",
                   of_client=round(statistics.median(values) / limit, 2), gets_per_file=max(gets[case]))  # fmt: skip


def first(bench: Bench) -> None:
    """Judgement 3a: the first byte of a large file."""
    times = []
    for _ in range(max(5, bench.options.repeats)):
        with bench.mounted("large", slow=True) as mounted:
            bench.reader("first", mounted.folder / "f1")
            times.append(1e3 * bench.reader("first", mounted.folder / "f0")["seconds"])
    bench.note("first byte, S3-like", "FastFile", times, "ms", worst=round(max(times), 1))


def memory(bench: Bench) -> None:
    """Judgement 3b: 16 readers of a file each."""
    for slow in (False, True):
        with bench.mounted("large", slow=slow) as mounted:
            files = [mounted.folder / f"f{i}" for i in range(16)]
            rate = _rate(bench.reader("sequential", 1024, *files))
            peak = mounted.peak_rss_mib()
            numbers = mounted.numbers()
        name = "16 readers, S3-like" if slow else "16 readers, loopback"
        bench.note(name, "FastFile", [peak], "MiB RSS", rate_mib_s=round(rate),
                   fetched_over_read=numbers["fetched_over_read"])  # fmt: skip


CASES: Mapping[str, Callable[[Bench], None]] = {
    "sequential": sequential, "small": small, "first": first, "memory": memory
}  # fmt: skip


@contextlib.contextmanager
def _rclone(bench: Bench, slow: bool) -> Iterator[Path | None]:
    values = bench.server.environ(slow=slow)
    config = {
        "RCLONE_CONFIG_S_TYPE": "s3", "RCLONE_CONFIG_S_PROVIDER": "Other",
        "RCLONE_CONFIG_S_ENDPOINT": values["AWS_ENDPOINT_URL"], "RCLONE_CONFIG_S_ACCESS_KEY_ID": "a",
        "RCLONE_CONFIG_S_SECRET_ACCESS_KEY": "b", "RCLONE_CONFIG": str(bench.work / "rclone.conf"),
    }  # fmt: skip
    argv = ["rclone", "mount", "s:large", "{}", "--read-only", "--buffer-size", "16M"]
    with _foreign(bench, argv, config) as folder:
        yield folder


@contextlib.contextmanager
def _s3fs(bench: Bench, slow: bool) -> Iterator[Path | None]:
    values = bench.server.environ(slow=slow)
    argv = ["s3fs", "large", "{}", "-f", "-o", f"url={values['AWS_ENDPOINT_URL']},use_path_request_style,ro"]
    with _foreign(bench, argv, values) as folder:
        yield folder


PEERS: Mapping[str, Callable[[Bench, bool], contextlib.AbstractContextManager[Path | None]]] = {
    "rclone": _rclone, "s3fs": _s3fs
}  # fmt: skip


@contextlib.contextmanager
def _foreign(bench: Bench, argv: Sequence[str], more: Mapping[str, str]) -> Iterator[Path | None]:
    """Somebody else's mount; None where it isn't installed."""
    if shutil.which(argv[0]) is None:
        yield None
        return
    folder = Path(tempfile.mkdtemp(dir=bench.work))
    with (bench.work / f"{argv[0]}.log").open("w") as log:
        environ = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
        process = subprocess.Popen(
            [a.format(folder) for a in argv], env={**environ, **more}, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        deadline = time.monotonic() + 15
        while not os.path.ismount(folder) and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.05)
        yield folder if os.path.ismount(folder) else None
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)
        process.terminate()
        process.wait()


def _rate(found: Mapping[str, Any]) -> float:
    return float(found["bytes"] / MIB / found["seconds"])


@contextlib.contextmanager
def _environ(values: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def make_data(buckets: Path) -> None:
    """One file of 1 GiB, 15 more names of it for more readers, and 2,000 small ones."""
    large, little = buckets / "large", buckets / "small"
    large.mkdir(parents=True)
    little.mkdir()
    block = os.urandom(MIB)
    with (large / "f0").open("wb") as file:
        for index in range(LARGE_MIB):
            file.write(index.to_bytes(8, "little") + block[8:])  # no two blocks are the same
    for index in range(1, 16):
        os.link(large / "f0", large / f"f{index}")
    for index in range(SMALL_FILES):
        (little / f"{index:05}.bin").write_bytes(os.urandom(SMALL_BYTES))


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """A table of the results."""
    table = Table("case", "who", "median", "unit", "spread", "more")
    for row in rows:
        more = {k: v for k, v in row.items() if k not in ("case", "peer", "median", "values", "unit")}
        spread = f"{min(row['values']):.0f} to {max(row['values']):.0f}"
        table.add_row(row["case"], row["peer"], f"{row['median']:.1f}", row["unit"], spread,
                      ", ".join(f"{k} {v}" for k, v in more.items()))  # fmt: skip
    Console().print(table)


def main() -> None:
    """Run the cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], default=[], help="default: all")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="JSON of all results")
    options = parser.parse_args()
    if missing():
        sys.exit(f"this needs {missing()}")
    with tempfile.TemporaryDirectory(prefix="hdp-fastfile-") as name:
        work = Path(name)
        work.chmod(0o755)
        make_data(work / "buckets")
        with S3Like(work / "buckets", work / "nginx") as server:
            server.list_bucket("large")
            server.list_bucket("small")
            bench = Bench(server, work, options)
            check(bench)
            for case in options.cases or CASES:
                CASES[case](bench)
        show(bench.rows)
        if options.out:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(bench.rows, indent=1))


if __name__ == "__main__":
    main()
