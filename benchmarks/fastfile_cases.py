"""The cases of FastFile's benchmark. Each yields its rows; every repeat has a mount of its own, so that the page cache
has nothing, and those who are compared take turns within a repeat.
"""

from __future__ import annotations

import contextlib
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastfile_mounts import MIB, Mounted, Site, fastfile, from_memory, peer
from fastfile_reader import digest
from fastfile_report import Row, bound

SMALL_BYTES = 20 * 1024
CONNECTIONS, SMALL_CONNECTIONS = 16, 64
#: The face alone, with the store's bytes in memory.
MEMORY = "FastFile, from memory"
#: Past the page cache: a script that reads a file once may open it so.
DIRECT = "FastFile, O_DIRECT"


@dataclass(frozen=True)
class Plan:
    """What the user wants."""

    repeats: int
    peers: Sequence[str]


class WrongBytes(RuntimeError):
    """A mount gave other bytes than were stored."""


@dataclass(frozen=True)
class Sample:
    """One read of the large file."""

    rate: float
    """MiB/s."""
    costs: Mapping[str, float]
    """Processor seconds a GiB, by process."""


def make_data(buckets: Path, large_mib: int, files: int) -> None:
    """One large file, 15 more names of it for more readers, and small ones."""
    large, little = buckets / "large", buckets / "small"
    large.mkdir(parents=True)
    little.mkdir()
    block = os.urandom(MIB)
    with (large / "f0").open("wb") as file:
        for index in range(large_mib):
            file.write(index.to_bytes(8, "little") + block[8:])  # no two blocks are the same
    for index in range(1, 16):
        os.link(large / "f0", large / f"f{index}")
    for index in range(files):
        (little / f"{index:05}.bin").write_bytes(os.urandom(SMALL_BYTES))


def check(site: Site) -> None:
    """Compare every byte. Raises WrongBytes."""
    large = site.work / "buckets" / "large" / "f0"
    small = sorted((site.work / "buckets" / "small").iterdir())
    with fastfile(site, "large", slow=False) as mounted:
        compare("FastFile", site.reader("digest", mounted.folder / "f0"), digest([str(large)]))
    with from_memory(site, large) as memory:
        compare(MEMORY, site.reader("digest", memory.folder / "f0"), digest([str(large)]))
    with fastfile(site, "small", slow=False) as mounted:
        found = site.reader("digest", *(mounted.folder / path.name for path in small))
        compare("FastFile", found, digest(list(map(str, small))))


def compare(who: str, found: Mapping[str, str], stored: Mapping[str, str]) -> None:
    """Compare digests by name. Raises WrongBytes."""
    wrong = sorted(name for name in found.keys() | stored.keys() if found.get(name) != stored.get(name))
    if wrong:
        raise WrongBytes(
            f"{who}: {len(wrong)} of {len(stored)} files aren't as they were stored, the first is {wrong[0]}; "
            "nothing was timed"
        )


def sequential(site: Site, plan: Plan) -> Iterator[Row]:
    """Judgement 1: one reader, 1 MiB at a time, beside the bare client and the peers; on loopback also the bound."""
    for slow in (False, True):
        found: dict[str, list[Sample]] = {}
        for _ in range(plan.repeats):
            for who in ("client", "FastFile", *([] if slow else [DIRECT, MEMORY]), *plan.peers):
                found.setdefault(who, []).append(_read(site, who, slow=slow))
        case = "1 GiB in order, " + ("S3-like" if slow else "loopback")
        ours = _rate(found["FastFile"])
        for who, samples in found.items():
            ratio = {} if who == "FastFile" else {"fastfile_over_it": round(ours / _rate(samples), 2)}
            yield _row(case, who, samples, ratio)
        if not slow:
            yield _bound(case, found)


def _read(site: Site, who: str, *, slow: bool) -> Sample:
    """Read the large file once, without a mount or through one."""
    if who == "client":
        before = site.server.cpu_seconds()
        got = site.reader("client-large", CONNECTIONS, "large", "f0", slow=slow)
        # It reads its first parts twice, before the clock starts, to have its connections.
        size = got["bytes"] + got["bytes_before"]
        return _sample(got, {"nginx": (site.server.cpu_seconds() - before) * got["bytes"] / size})
    with _mount(site, who, slow=slow) as mounted:
        nginx, mount = site.server.cpu_seconds(), mounted.cpu_seconds()
        got = site.reader("direct" if who == DIRECT else "sequential", 1024, mounted.folder / "f0")
        costs = {"nginx": site.server.cpu_seconds() - nginx, "mount": mounted.cpu_seconds() - mount}
    return _sample(got, costs)


def _mount(site: Site, who: str, *, slow: bool) -> contextlib.AbstractContextManager[Mounted]:
    if who in ("FastFile", DIRECT):
        return fastfile(site, "large", slow=slow)
    if who == MEMORY:
        return from_memory(site, site.work / "buckets" / "large" / "f0")
    return peer(site, who, slow=slow)


def _sample(got: Mapping[str, Any], seconds: Mapping[str, float]) -> Sample:
    gib = got["bytes"] / (1 << 30)
    reader = "client" if "bytes_before" in got else "reader"
    costs = {name: value / gib for name, value in {**seconds, reader: got["cpu_seconds"]}.items()}
    return Sample(got["bytes"] / MIB / got["seconds"], costs)


def _rate(samples: Sequence[Sample]) -> float:
    return statistics.median(sample.rate for sample in samples)


def _costs(samples: Sequence[Sample]) -> dict[str, float]:
    return {name: round(statistics.median(s.costs[name] for s in samples), 2) for name in samples[0].costs}


def _row(case: str, who: str, samples: Sequence[Sample], ratio: Mapping[str, float]) -> Row:
    costs = _costs(samples)
    more = {**ratio, "cpu_s_per_gib": costs, "cpu_s_per_gib_in_all": round(sum(costs.values()), 2)}
    return Row(case, who, "MiB/s", tuple(sample.rate for sample in samples), more)


def _bound(case: str, found: Mapping[str, Sequence[Sample]]) -> Row:
    """What the processors allow that server, client, mount and reader share, each at the cost that it has alone."""
    cores = os.cpu_count() or 1
    client, memory = _costs(found["client"]), _costs(found[MEMORY])
    total = round(sum(client.values()) + sum(memory.values()), 2)
    return Row(case, "bound", "MiB/s", (bound(cores, client, memory),), {"cores": cores, "cpu_s_per_gib_in_all": total})


def small(site: Site, plan: Plan) -> Iterator[Row]:
    """Judgement 2: small files, in order and shuffled, by one process and by four."""
    case = "small files, S3-like"
    ways = {(order, n): seed for order, seed in (("in order", 0), ("shuffled", 7)) for n in (1, 4)}
    client: list[float] = []
    found: dict[tuple[str, int], list[float]] = {}
    gets: dict[tuple[str, int], list[float]] = {}
    for _ in range(plan.repeats):
        got = site.reader("client-small", SMALL_CONNECTIONS, "small", slow=True)
        client.append(got["files"] / got["seconds"])
        for (order, processes), seed in ways.items():
            with fastfile(site, "small", slow=True) as mounted:
                got = site.reader("files", processes, seed, mounted.folder)
                found.setdefault((order, processes), []).append(got["files"] / got["seconds"])
                gets.setdefault((order, processes), []).append(mounted.numbers()["gets"] / got["files"])
    limit = Row(case, "client", "files/s", tuple(client), {"connections": SMALL_CONNECTIONS})
    yield limit
    for (order, processes), rates in found.items():
        more = {"of_client": round(statistics.median(rates) / limit.median, 2),
                "gets_per_file": round(max(gets[order, processes]), 3)}  # fmt: skip
        name = f"{case}, {order}, {processes} process{'es' if processes > 1 else ''}"
        yield Row(name, "FastFile", "files/s", tuple(rates), more)


def first(site: Site, plan: Plan) -> Iterator[Row]:
    """Judgement 3: the first byte of a large file; the connection was used before."""
    times = []
    for _ in range(max(5, plan.repeats)):
        with fastfile(site, "large", slow=True) as mounted:
            site.reader("first", mounted.folder / "f1")
            times.append(1e3 * site.reader("first", mounted.folder / "f0")["seconds"])
    yield Row("first byte, S3-like", "FastFile", "ms", tuple(times), {"worst": round(max(times), 1)})


def memory(site: Site, _plan: Plan) -> Iterator[Row]:
    """Judgement 3: 16 readers of a file each."""
    for slow in (False, True):
        with fastfile(site, "large", slow=slow) as mounted:
            files = [mounted.folder / f"f{i}" for i in range(16)]
            got = site.reader("sequential", 1024, *files)
            peak = mounted.peak_rss_mib()
            numbers = mounted.numbers()
        more = {"rate_mib_s": round(got["bytes"] / MIB / got["seconds"]), "budget_mib": 512,
                "fetched_over_read": numbers["fetched_over_read"]}  # fmt: skip
        yield Row("16 readers, " + ("S3-like" if slow else "loopback"), "FastFile", "MiB RSS", (peak,), more)


CASES: Mapping[str, Callable[[Site, Plan], Iterator[Row]]] = {
    "sequential": sequential, "small": small, "first": first, "memory": memory
}  # fmt: skip
