"""How a metric travels from a rank to whoever reads the job's log: one line of text, on every engine.

``#hdp-metrics {"time": 1764547200.5, "clock": 81.25, "host": "algo-1", "rank": 0, "step": 3, "values": {"loss": 0.5}}``

The mark may stand behind other text: a script that leaves its line open is no reason to lose a metric. The rest is
JSON; a number that JSON doesn't have is text: "nan", "inf", "-inf".
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

MARK = "#hdp-metrics "


@dataclass(frozen=True)
class Record:
    """What one call of `hdp.metrics.log` said."""

    time: float
    """Unix seconds."""
    clock: float
    """Monotonic seconds, of the host: what times of steps are taken from."""
    values: Mapping[str, float]
    step: int | None = None
    host: str | None = None
    """None: the script didn't know; so `rank`."""
    rank: int | None = None


def encode(record: Record) -> str:
    """`record` as a line, without its end."""
    known = {"host": record.host, "rank": record.rank, "step": record.step}
    values = {name: value if math.isfinite(value) else str(value) for name, value in record.values.items()}
    body = {"time": record.time, "clock": record.clock}
    whole = {**body, **{k: v for k, v in known.items() if v is not None}, "values": values}
    return MARK + json.dumps(whole, ensure_ascii=False)


def decode(line: str) -> tuple[str, Record] | None:
    """The text before the mark, and the record. None: `line` has no record, or one that is cut."""
    head, mark, body = line.partition(MARK)
    if not mark:
        return None
    try:
        return head, _record(json.loads(body))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def as_text(step: int | None, values: Mapping[str, float]) -> str:
    """Metrics as one line for people: ``step 120  loss 0.1234  64 samples``."""
    head = [] if step is None else [f"step {step:,}"]
    return "  ".join([*head, *(_part(name, value) for name, value in values.items())])


def _part(name: str, value: float) -> str:
    if name == "samples":
        return f"{value:,.0f} samples"
    return f"{value:.4g} s" if name == "seconds" else f"{name} {value:.4g}"


def _record(body: dict[str, object]) -> Record:
    values = body["values"]
    if not isinstance(values, dict):
        raise TypeError("values")
    return Record(
        float(str(body["time"])),
        float(str(body["clock"])),
        {str(name): float(value) for name, value in values.items()},
        _whole(body.get("step")),
        None if body.get("host") is None else str(body["host"]),
        _whole(body.get("rank")),
    )


def _whole(value: object) -> int | None:
    return None if value is None else int(str(value))
