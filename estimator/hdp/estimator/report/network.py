"""A job's hosts, ranks and links as a picture (SVG): hosts above the network that joins them, four in a row."""

from __future__ import annotations

import html
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_IN_A_ROW, _WIDTH, _HEIGHT, _GAP = 4, 190, 96, 24
_LINK, _BUS = 46, 22
#: Ranks that are drawn; of more, their number is written.
_MOST_DOTS = 8


@dataclass(frozen=True)
class Box:
    """A host: its name, its ranks, and what is known of its link."""

    name: str
    ranks: tuple[int, ...]
    sends: float | None = None
    """Bits a second, as measured; so `receives`."""
    receives: float | None = None
    facts: str = ""


def boxes_of(answer: Mapping[str, Any], topology: Mapping[str, Any] | None) -> list[Box]:
    """The job's hosts, from its description and what it measured. Empty: neither says any."""
    ranks: dict[str, list[int]] = defaultdict(list)
    for rank in answer.get("Hdp", {}).get("ranks", ()):
        ranks[rank["host"]].append(rank["rank"])
    names = [host["host"] for host in answer.get("Hdp", {}).get("hosts", ())]
    known = {host["name"]: i for i, host in enumerate((topology or {}).get("hosts", ()))}
    return [_box(name, sorted(ranks[name]), topology, known.get(name)) for name in names or known]


def _box(name: str, ranks: Sequence[int], topology: Mapping[str, Any] | None, index: int | None) -> Box:
    if topology is None or index is None:
        return Box(name, tuple(ranks))
    host, flows = topology["hosts"][index], topology["flows"]
    sends = [8 * flow["rate"] for flow in flows if flow["source"] == index]
    receives = [8 * flow["rate"] for flow in flows if flow["target"] == index]
    facts = f"{host['cpus']} cpus, {host['memory_bytes'] / 2**30:.1f} GiB"
    return Box(name, tuple(ranks), min(sends, default=None), min(receives, default=None), facts)


def picture(boxes: Sequence[Box], latency: float | None) -> str:
    """latency: seconds from one server to another; None: unknown."""
    columns = min(_IN_A_ROW, len(boxes))
    rows = -(-len(boxes) // _IN_A_ROW)
    width = columns * (_WIDTH + _GAP) + _GAP
    step = _HEIGHT + _LINK + _BUS + _GAP
    parts = [_row(boxes[i * _IN_A_ROW : (i + 1) * _IN_A_ROW], i * step + 4, width, latency) for i in range(rows)]
    label = f"{len(boxes)} hosts and the network between them"
    return (
        f'<svg role="img" aria-label="{label}" viewBox="0 0 {width} {rows * step}" style="max-width:{width}px" '
        f'class="net">{"".join(parts)}</svg>'
    )


def _row(boxes: Sequence[Box], top: float, width: float, latency: float | None) -> str:
    bus = top + _HEIGHT + _LINK
    words = "network" + ("" if latency is None else f", {latency * 1e6:,.0f} µs from server to server")
    parts = [
        f'<rect x="{_GAP / 2}" y="{bus}" width="{width - _GAP}" height="{_BUS}" rx="6" class="bus"/>',
        f'<text x="{width / 2}" y="{bus + 15}" class="mid">{words}</text>',
    ]
    for i, box in enumerate(boxes):
        parts.append(_host(box, _GAP + i * (_WIDTH + _GAP), top))
    return "".join(parts)


def _host(box: Box, left: float, top: float) -> str:
    middle, bottom = left + _WIDTH / 2, top + _HEIGHT
    parts = [
        f'<rect x="{left}" y="{top}" width="{_WIDTH}" height="{_HEIGHT}" rx="8" class="host"/>',
        f'<text x="{middle}" y="{top + 20}" class="mid strong">{html.escape(box.name)}</text>',
        f'<text x="{middle}" y="{top + 86}" class="mid small">{html.escape(box.facts)}</text>',
        _ranks(box.ranks, middle, top + 48),
        f'<line x1="{middle}" y1="{bottom}" x2="{middle}" y2="{bottom + _LINK}" class="link"/>',
    ]
    for words, rate, y in (("sends", box.sends, bottom + 18), ("receives", box.receives, bottom + 34)):
        if rate is not None:
            parts.append(f'<text x="{middle + 8}" y="{y}" class="small">{words} {speed(rate)}</text>')
    return "".join(parts)


def _ranks(ranks: Sequence[int], middle: float, y: float) -> str:
    if not ranks or len(ranks) > _MOST_DOTS:
        words = f"{len(ranks)} ranks, {ranks[0]} to {ranks[-1]}" if ranks else "no ranks"
        return f'<text x="{middle}" y="{y + 4}" class="mid">{words}</text>'
    pitch = 22
    left = middle - pitch * (len(ranks) - 1) / 2
    return "".join(
        f'<circle cx="{left + pitch * i}" cy="{y}" r="10" class="rank"/>'
        f'<text x="{left + pitch * i}" y="{y + 4}" class="mid inside">{rank}</text>'
        for i, rank in enumerate(ranks)
    )


def speed(bits: float) -> str:
    """Bits a second as people write them."""
    return f"{bits / 1e9:.3g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.3g} Mbit/s"
