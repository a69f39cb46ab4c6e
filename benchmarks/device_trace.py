"""Communication in training steps, by the timelines of the ranks (HDP_TIMELINE=1)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from hdp.estimator.traces import Operation, operations_of


def communication(folder: Path, windows: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Seconds of a step, as means over ranks and steps, by the timelines in `folder`.

    windows: begin and end of each step, Unix seconds. ``step``: its length; ``in_flight``: when an operation was under
    way; ``waited``: of that, what the program did nothing but wait for, the exposed communication. Raises ValueError:
    there is no step, or no timeline of a rank.
    """
    files = sorted(folder.glob("hdp-timeline-rank-*.json"))
    if not files or not windows:
        raise ValueError(f"{folder} has {len(files)} timelines of ranks, for {len(windows)} steps")
    flying, waited = [], []
    for file in files:
        with file.open("rb") as lines:
            operations = list(operations_of(lines))
        for window in windows:
            inside = [o for o in operations if o.end > window[0] and o.begin < window[1]]
            flying.append(_covered(inside, window))
            waited.append(sum(o.waited for o in inside))
    return {
        "step": statistics.fmean(end - begin for begin, end in windows),
        "in_flight": statistics.fmean(flying),
        "waited": statistics.fmean(waited),
    }


def _covered(operations: Sequence[Operation], window: tuple[float, float]) -> float:
    """Seconds of the window in which one or more were under way."""
    total, until = 0.0, window[0]
    for operation in sorted(operations, key=lambda o: o.begin):
        begin, end = max(operation.begin, until), min(operation.end, window[1])
        total += max(0.0, end - begin)
        until = max(until, end)
    return total
