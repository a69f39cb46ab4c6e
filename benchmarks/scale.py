"""What the cost model says of clusters that nobody here has: 4 to 512 hosts x 8 ranks, 100 to 3,200 Gbit/s.

    python benchmarks/scale.py --json scale.json --plot scale.png     # the tables
    python benchmarks/scale.py --check a.json b.json ...              # the model against results of allreduce.py

Each time is given twice. *as built*: TCP, one server thread a host, slots as they are. *by the link*: the same
algorithm where a transport costs the processors nothing (RDMA) and chunks grow with the number of hosts, so that
latency and bandwidth alone count; the peers' algorithms get the same. With --check, the exit code is 1 where the model
is off by more than --tolerance in a case whose time is set by data (--from, 1 MiB and more); the others are shown.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import calibrate
from rich.console import Console
from rich.table import Table

from hdp.collectives import cost, peers
from hdp.collectives.library import Kind
from hdp.collectives.machine import Cluster, Link, Machine
from hdp.collectives.world import SLOT_BYTES, SLOTS
from hdp.contract.units import format_rate, format_size, format_time, parse_size

HOSTS = (4, 16, 64, 256, 512)
RANKS = 8
GBITS = (100, 400, 800, 3200)
SIZES = (64 << 10, 1 << 20, 64 << 20, 1 << 30)
#: One way between hosts of a data centre, through two or three switches.
LATENCY = 5e-6
CORES = 96
#: A share that is worth a message: the time of 32 KiB at 100 Gbit/s is about that of two messages of TCP.
SHARE_BYTES = 32 << 10
#: For nearly nothing, so that the model's divisions hold.
_FREE = 1e-15
_WIDTH = 130


@dataclass(frozen=True)
class Row:
    """One cluster and size. Seconds, but for the last ones."""

    hosts: int
    gbits: int
    size: int
    as_built: float
    as_built_limit: str
    by_link: float
    flat_ring: float
    tree: float
    """The best of recursive doubling, binomial and double binary tree."""
    two_level_ring: float
    bound: float
    slot_bytes: int
    """Of the chunk that "by the link" takes."""
    connections: int
    """Of a host."""
    buffer_bytes: int
    """Of a host's server at most: its arena, and what may come early."""
    towards_one_host_bytes: int
    """Data that can be under way to one host at once in an allreduce."""


def row(hosts: int, gbits: int, size: int) -> Row:
    """Compute one."""
    link = Link(gbits * 1e9 / 8, LATENCY)
    built = Cluster((RANKS,) * hosts, link, Machine(CORES))
    free = Machine(CORES, move=1 / 100e9, move_alone=1 / 100e9, wire=_FREE, message=2e-7, wake=1e-6, call=2e-6)
    slot = max(SLOT_BYTES, hosts * SHARE_BYTES)
    ideal = replace(built, machine=free, slot_bytes=slot)
    plan = cost.plan(Kind.ALLREDUCE, size, built)
    trees = (peers.recursive_doubling, peers.binomial_tree, peers.double_tree)
    return Row(
        hosts=hosts,
        gbits=gbits,
        size=size,
        as_built=plan.seconds,
        as_built_limit=plan.limit,
        by_link=cost.plan(Kind.ALLREDUCE, size, ideal).seconds,
        flat_ring=peers.flat_ring(size, ideal).seconds,
        tree=min(tree(size, ideal).seconds for tree in trees),
        two_level_ring=peers.two_level_ring(size, ideal).seconds,
        bound=2 * (hosts - 1) / hosts * size / link.rate,
        slot_bytes=slot,
        connections=hosts - 1,
        buffer_bytes=3 * SLOTS * slot,
        towards_one_host_bytes=2 * SLOTS * slot,
    )


def table_of(rows: Sequence[Row], gbits: int) -> Table:
    """The rows of one rate."""
    title = f"allreduce, {RANKS} ranks a host, {format_rate(gbits * 1e9)}, {format_time(LATENCY)} latency"
    table = Table(title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)
    for column in ("hosts", "size", "hdp by the link", "flat ring", "tree", "two-level ring", "bound", "hdp as built"):
        table.add_column(column, justify="right")
    table.add_column("its limit")
    for r in (r for r in rows if r.gbits == gbits):
        times = (r.by_link, r.flat_ring, r.tree, r.two_level_ring, r.bound, r.as_built)
        table.add_row(str(r.hosts), format_size(r.size), *map(format_time, times), r.as_built_limit)
    return table


def scale_table(rows: Sequence[Row]) -> Table:
    """Connections and memory by the number of hosts."""
    title = "a host's connections and memory"
    table = Table(title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)
    for column in ("hosts", "connections", "slot", "buffers at most", "under way to one host at most"):
        table.add_column(column, justify="right")
    for r in {r.hosts: r for r in rows}.values():
        sizes = (r.slot_bytes, r.buffer_bytes, r.towards_one_host_bytes)
        table.add_row(str(r.hosts), str(r.connections), *map(format_size, sizes))
    return table


def plot(rows: Sequence[Row], path: Path) -> None:
    """Time over the bound by the number of hosts; a field for each rate and size."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot, ticker

    figure, axes = pyplot.subplots(len(GBITS), len(SIZES), figsize=(14, 11), sharex=True, layout="constrained")
    names = {"by_link": "hdp", "flat_ring": "flat ring", "tree": "tree", "two_level_ring": "two-level ring"}
    for line, gbits in zip(axes, GBITS, strict=True):
        for field, size in zip(line, SIZES, strict=True):
            own = [r for r in rows if r.gbits == gbits and r.size == size]
            for (name, label), marker in zip(names.items(), "os^d", strict=True):
                hosts = [r.hosts for r in own]
                field.plot(hosts, [getattr(r, name) / r.bound for r in own], marker=marker, label=label, markersize=4)
            field.set(xscale="log", yscale="log", title=f"{format_size(size)}, {format_rate(gbits * 1e9)}")
            field.set_xticks(HOSTS, [str(n) for n in HOSTS])
            field.xaxis.set_minor_locator(ticker.NullLocator())
            field.grid(alpha=0.3)
    for field in axes[:, 0]:
        field.set_ylabel("time over bound")
    for field in axes[-1]:
        field.set_xlabel(f"hosts x {RANKS} ranks")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=len(names))
    figure.savefig(path, dpi=110)


# ---- the model against measurements ----------------------------------------------------------------------------------


def check(paths: Sequence[Path], tolerance: float, least: int) -> tuple[dict[str, Any], int]:
    """Compare, print; what was found, and the exit code."""
    machines, found = calibrate.deviations(calibrate.cases(paths))
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("cluster", "library", "size", "measured", "model", "held out", ""):
        table.add_column(column, justify="left" if column in ("cluster", "library", "") else "right")
    off = 0
    for d in found:
        counts = d.case.size >= least
        bad = counts and abs(d.fitted) > tolerance
        off += bad
        held = "-" if d.held_out is None else f"{d.held_out:+.0%}"
        verdict = "OFF" if bad else "" if counts else "not counted"
        size, seconds = format_size(d.case.size), format_time(d.case.seconds)
        table.add_row(d.case.name, d.case.peer, size, seconds, f"{d.fitted:+.0%}", held, verdict)
    console = Console(width=_WIDTH)
    console.print(table)
    counted = [abs(d.fitted) for d in found if d.case.size >= least]
    for peer, machine in machines.items():
        values = ", ".join(f"{name} {format_time(getattr(machine, name))}" for name in calibrate.CONSTANTS)
        console.print(f"{peer}: {values}")
    worst = max(counted, default=math.nan)
    console.print(
        f"{len(counted)} cases of {format_size(least)} or more: {off} off by over {tolerance:.0%}; worst {worst:.0%}"
    )
    result = {"machines": {k: asdict(v) for k, v in machines.items()}, "cases": [asdict(d) for d in found]}
    return result, int(off > 0 or not counted)


def main(arguments: Sequence[str] | None = None) -> int:
    """Tabulate, or check."""
    about, _, more = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=about, epilog=more, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", type=Path, nargs="+", metavar="RESULTS", help="JSON files of allreduce.py")
    parser.add_argument("--tolerance", type=float, default=0.15, help="with --check (default 0.15)")
    parser.add_argument("--from", dest="least", default="1MiB", help="with --check: cases that count (default 1MiB)")
    parser.add_argument("--json", type=Path, help="write everything to this file")
    parser.add_argument("--plot", type=Path, help="draw the tables into this file (.png, .svg)")
    options = parser.parse_args(arguments)
    missing = [str(path) for path in options.check or () if not path.is_file()]
    if missing:
        parser.error(f"no file {', '.join(missing)}")
    if options.check:
        try:
            result, code = check(options.check, options.tolerance, parse_size(options.least))
        except ValueError as exc:
            parser.error(str(exc))
    else:
        rows = [row(hosts, gbits, size) for gbits in GBITS for size in SIZES for hosts in HOSTS]
        console = Console(width=_WIDTH)
        for gbits in GBITS:
            console.print(table_of(rows, gbits), "")
        console.print(scale_table(rows))
        result, code = {"rows": [asdict(r) for r in rows]}, 0
        if options.plot:
            plot(rows, options.plot)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
