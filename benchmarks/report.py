"""What the samples say: medians and quartiles, distances from the bounds, and who is faster. Table and plot."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from measure import Sample
from rich.console import Console
from rich.table import Table

#: Ethernet, IP and TCP with timestamps around a full segment of 1,448 bytes of data.
_FRAMING = 1514 - 1448

#: From this ratio of the largest to the smallest on, bars are drawn on a logarithmic scale.
_WIDE = 5

_COLUMNS = (
    "peer",
    "median ms",
    "quartiles of rounds",
    "best ms",
    "over bound",
    "sent: raw",
    "payload",
    "CPU s/op",
    "over hdp",
    "operations",
)


def least_bytes(collective: str, size: int, hosts: int) -> float:
    """The least that a host has to send for a collective of `size` bytes, as `case` in allreduce.py defines it."""
    return (2 if collective == "allreduce" else 1) * (hosts - 1) / hosts * size


@dataclass(frozen=True)
class Bound:
    """least: bytes that have to go over what limits an operation, by its size. rate: that one's, bytes a second."""

    least: Callable[[int], float]
    rate: float | None
    """None: it isn't known, or there is no limit."""

    def seconds(self, size: int) -> float:
        """The least time."""
        assert self.rate
        return self.least(size) / self.rate


@dataclass(frozen=True)
class Row:
    """One peer at one size. Times in seconds; None where there is no network, or no hdp, to compare with."""

    peer: str
    size: int
    rounds: int
    operations: int
    median: float
    lower: float
    upper: float
    best: float
    """Fastest single operation."""
    over_bound: float | None
    raw_over_least: float | None
    """Bytes that the busiest host's interface counted, headers as it counts them, over the least possible."""
    payload_over_least: float | None
    """The same without Ethernet, IP and TCP headers."""
    cpu: float
    """Processor seconds an operation, median over rounds."""
    over_hdp: float | None
    """This peer's median over hdp's."""


def rows(samples: dict[str, dict[int, list[Sample]]], bound: Bound) -> list[Row]:
    """A row for each size and peer."""
    sizes = sorted({size for by_size in samples.values() for size in by_size})
    out = []
    for size in sizes:
        ours = samples.get("hdp", {}).get(size)
        reference = statistics.median(_medians(ours)) if ours else None
        for peer, by_size in samples.items():
            if by_size.get(size):
                out.append(_row(peer, size, by_size[size], bound.least(size), bound.rate, reference))
    return out


def _medians(samples: Sequence[Sample]) -> list[float]:
    return [statistics.median(s.times) for s in samples]


def _row(peer: str, size: int, samples: list[Sample], least: float, rate: float | None, reference: float | None) -> Row:
    medians = _medians(samples)
    middle = statistics.median(medians)
    lower, _, upper = statistics.quantiles(medians, n=4, method="inclusive") if len(medians) > 1 else [middle] * 3
    raw = payload = None
    if rate and least and samples[0].sent:
        raw = statistics.median(max(s.sent) for s in samples) / least
        payload = statistics.median(max(map(_payload, s.sent, s.packets)) for s in samples) / least
    return Row(
        peer=peer,
        size=size,
        rounds=len(samples),
        operations=sum(len(s.times) for s in samples),
        median=middle,
        lower=lower,
        upper=upper,
        best=min(min(s.times) for s in samples),
        over_bound=middle * rate / least if rate and least else None,
        raw_over_least=raw,
        payload_over_least=payload,
        cpu=statistics.median(s.cpu for s in samples),
        over_hdp=middle / reference if reference else None,
    )


def _payload(sent: float, packets: float) -> float:
    """Bytes without headers: those of each packet counted, or of full segments where packets aren't counted."""
    return sent - packets * _FRAMING if packets else sent * (1 - _FRAMING / 1514)


@dataclass(frozen=True)
class Verdict:
    """hdp against the best peer at one size."""

    size: int
    best_peer: str
    ratio: float
    """The best peer's median over hdp's."""
    apart: bool
    """Whether the quartiles, over rounds, don't overlap."""


def verdicts(table: Sequence[Row]) -> list[Verdict]:
    """hdp against the best peer, for each size that both have."""
    out = []
    for ours in (r for r in table if r.peer == "hdp"):
        others = [r for r in table if r.size == ours.size and r.peer != "hdp"]
        if others:
            best = min(others, key=lambda r: r.median)
            apart = ours.upper < best.lower or best.upper < ours.lower
            out.append(Verdict(ours.size, best.peer, best.median / ours.median, apart))
    return out


def text_size(size: int) -> str:
    """``67108864`` -> ``64 MiB``."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size % unit == 0 and size:
            return f"{size // unit} {name}"
    return f"{size} B"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def show(table: Sequence[Row], judged: Sequence[Verdict], title: str, bound: dict[int, float]) -> None:
    """Print a table a size, and what it says about hdp."""
    console = Console(width=None if Console().is_terminal else 140)
    console.print(title)
    for size in dict.fromkeys(r.size for r in table):
        about = f", bound {bound[size] * 1e3:.3g} ms" if bound.get(size) else ""
        shown = Table(title=f"{text_size(size)}{about}", title_justify="left")
        for name in _COLUMNS:
            shown.add_column(name, justify="left" if name == "peer" else "right")
        for r in (r for r in table if r.size == size):
            shown.add_row(
                r.peer,
                f"{r.median * 1e3:.3f}",
                f"{r.lower * 1e3:.3f} .. {r.upper * 1e3:.3f}",
                f"{r.best * 1e3:.3f}",
                _number(r.over_bound, 3),
                _number(r.raw_over_least, 3),
                _number(r.payload_over_least, 3),
                f"{r.cpu:.4f}",
                _number(r.over_hdp, 2),
                str(r.operations),
            )
        console.print(shown)
        for v in (v for v in judged if v.size == size):
            console.print(
                f"the best peer is {v.best_peer}; it takes {v.ratio:.2f} times as long as hdp, "
                f"and the quartiles are {'apart' if v.apart else 'not apart'}\n"
            )


def plot(table: Sequence[Row], title: str, path: Path, bounds: dict[int, float]) -> None:
    """Draw medians with quartiles by size, over the bound where there is one."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    sizes = sorted({r.size for r in table})
    relative = all(bounds.get(s) for s in sizes)
    peers = list(dict.fromkeys(r.peer for r in table))
    figure, axes = pyplot.subplots(figsize=(1.8 + 1.6 * max(2, len(sizes)), 4.2), layout="constrained")
    width = 0.8 / len(peers)
    for number, peer in enumerate(peers):
        mine = {r.size: r for r in table if r.peer == peer}
        places = [i for i, s in enumerate(sizes) if s in mine]
        scaled = [(mine[s], 1 / bounds[s] if relative else 1e3) for s in (sizes[i] for i in places)]
        heights = [r.median * k for r, k in scaled]
        errors = [[(r.median - r.lower) * k for r, k in scaled], [(r.upper - r.median) * k for r, k in scaled]]
        at = [i + (number - (len(peers) - 1) / 2) * width for i in places]
        bars = axes.bar(at, heights, width * 0.92, yerr=errors, capsize=2, label=peer)
        axes.bar_label(bars, [f"{h:.3g}" for h in heights], fontsize=6, padding=2)
    if relative:
        axes.axhline(1, color="black", linewidth=0.8, linestyle="--")
    shown = [(r.median / bounds[r.size] if relative else r.median * 1e3) for r in table]
    if max(shown) > _WIDE * min(shown):
        axes.set_yscale("log")
    axes.set_ylabel("time over the bound" if relative else "milliseconds")
    axes.set_xticks(range(len(sizes)), [text_size(s) for s in sizes])
    axes.margins(y=0.12)
    axes.set_title(title.replace("; ", "\n", 1), fontsize=9)
    axes.legend(fontsize=7, ncols=min(3, len(peers)))
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def to_json(table: Sequence[Row], judged: Sequence[Verdict]) -> dict[str, Any]:
    """Plain values."""
    return {"rows": [asdict(r) for r in table], "verdicts": [asdict(v) for v in judged]}
