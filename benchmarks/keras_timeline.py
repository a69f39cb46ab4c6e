"""When the buckets of a step leave: read from the timeline (HDP_TIMELINE=1) that a rank of hdp writes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import launch
from peers import Peer

SPANS = "spans"
"""The file beside the timelines with the begin and the end of each of rank 0's steps, in seconds since 1970."""


@dataclass(frozen=True)
class Bucket:
    """Gradients that travelled together. Seconds after the step's start."""

    bytes: int
    submitted: float
    """When the last of its gradients was ready."""
    done: float


@dataclass(frozen=True)
class Traced:
    """One step of rank 0."""

    step: float
    """Seconds."""
    buckets: tuple[Bucket, ...]
    """In the order in which they were submitted."""


def writing(peer: Peer, folder: Path) -> Peer:
    """`peer`, which is hdp, but its ranks and servers write timelines into `folder`."""
    more = {"HDP_TIMELINE": "1", "HDP_TIMELINE_DIR": str(folder)}

    def start(network: launch.Hosts, per_host: int, argv: Sequence[str], env: Mapping[str, str]) -> launch.Job:
        return peer.start(network, per_host, argv, {**env, **more})

    return replace(peer, start=start)


def read(folder: Path) -> list[Traced]:
    """Rank 0's steps, as far as they are in its timeline; `keras_rank` leaves beside it when each began and ended."""
    spans, path = folder / SPANS, folder / "hdp-timeline-rank-0.json"
    if not spans.exists() or not path.exists():
        return []
    events = events_of(path)
    steps = [_step(events, *map(float, line.split())) for line in spans.read_text().splitlines()]
    return [step for step in steps if step.buckets]


def events_of(path: Path) -> list[dict[str, Any]]:
    """Its operations: an event a line, of which the last may be cut."""
    events = []
    for line in path.read_text().splitlines():
        text = line.strip().rstrip(",")
        if text.startswith("{") and text.endswith("}"):
            events.append(json.loads(text))
    return [event for event in events if event["ph"] == "X" and "bytes" in event.get("args", {})]


def _step(events: Sequence[Mapping[str, Any]], began: float, ended: float) -> Traced:
    buckets = [
        Bucket(e["args"]["bytes"], e["ts"] / 1e6 - began, (e["ts"] + e["dur"]) / 1e6 - began)
        for e in events
        if began <= e["ts"] / 1e6 <= ended and e["cat"] == "allreduce"
    ]
    return Traced(ended - began, tuple(sorted(buckets, key=lambda b: b.submitted)))


def text_of(traced: Traced) -> str:
    """A line about each bucket, and how much earlier than the last gradient the first one left."""
    lines = [
        f"  {b.bytes:>12,} bytes: all gradients ready at {b.submitted * 1e3:7.1f} ms, reduced at {b.done * 1e3:7.1f} ms"
        for b in traced.buckets
    ]
    first, last = traced.buckets[0], traced.buckets[-1]
    early = (last.submitted - first.submitted) * 1e3
    return "\n".join(
        (
            f"hdp's timeline: {len(traced.buckets)} buckets in a step of {traced.step * 1e3:.1f} ms; the first leaves "
            f"{early:.1f} ms before the last gradient is ready, {(traced.step - first.submitted) * 1e3:.1f} ms before "
            "the step's end",
            *lines,
        )
    )
