"""How a metric travels from a rank to whoever reads the job's log: one line of text, on every engine.

``#hdp-metrics {"time": 1764547200.5, "clock": 81.25, "host": "algo-1", "rank": 0, "step": 3, "values": {"loss": 0.5}}``

The mark may stand behind other text: a script that leaves its line open is no reason to lose a metric. The rest is
JSON; a number that JSON doesn't have is text: "nan", "inf", "-inf".

A script can print such a line itself. One that says what no reader can work with, e.g. a time that no calendar has, is
an ordinary line: see `decode`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

MARK = "#hdp-metrics "
#: What tables and files of 64-bit integers take.
MOST = 2**63 - 1
#: SageMaker's limit for the name of a metric.
LONGEST_NAME = 255
#: None of these makes sense below zero or without end.
AMOUNTS = ("samples", "seconds")
#: `datetime` ends with the year 9999. This is its begin, so that times near it exist in every time zone.
_LATEST = 253_370_764_800


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
    steps: int | None = None
    """How many there will be in all; None: the script didn't say."""


def encode(record: Record) -> str:
    """`record` as a line, without its end."""
    known = {"host": record.host, "rank": record.rank, "step": record.step, "steps": record.steps}
    values = {name: value if math.isfinite(value) else str(value) for name, value in record.values.items()}
    body = {"time": record.time, "clock": record.clock}
    whole = {**body, **{k: v for k, v in known.items() if v is not None}, "values": values}
    return MARK + json.dumps(whole, ensure_ascii=False)


def decode(line: str) -> tuple[str, Record] | None:
    """The text before the mark, and the record. None: `line` has no record, one that is cut, or one that can't be."""
    head, mark, body = line.partition(MARK)
    if not mark:
        return None
    try:
        return head, _record(json.loads(body))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None


def is_name(name: str) -> bool:
    """Whether a metric may be called so."""
    return 0 < len(name) <= LONGEST_NAME and name.isprintable()


def is_amount(value: float) -> bool:
    """Whether `AMOUNTS` may be so."""
    return 0 <= value < math.inf


def is_time(seconds: float) -> bool:
    """Whether a clock may say so."""
    return 0 <= seconds < _LATEST


def as_text(step: int | None, values: Mapping[str, float], steps: int | None = None) -> str:
    """Metrics as one line for people: ``step 120 of 500  loss 0.1234  64 samples``."""
    head = [] if step is None else [f"step {step:,}" + ("" if steps is None else f" of {steps:,}")]
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
        _time(body["time"]),
        _time(body["clock"]),
        {name: _value(name, float(value)) for name, value in values.items()},
        _whole(body.get("step")),
        None if body.get("host") is None else str(body["host"]),
        _whole(body.get("rank")),
        _whole(body.get("steps")),
    )


def _time(value: object) -> float:
    seconds = float(str(value))
    if not is_time(seconds):
        raise ValueError("time")
    return seconds


def _value(name: str, value: float) -> float:
    if not is_name(name) or (name in AMOUNTS and not is_amount(value)):
        raise ValueError(name)
    return value


def _whole(value: object) -> int | None:
    whole = None if value is None else int(str(value))
    if whole is not None and not 0 <= whole <= MOST:
        raise ValueError("whole")
    return whole
