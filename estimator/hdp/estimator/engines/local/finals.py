"""The last value of each metric of a job that has ended, as DescribeTrainingJob has them: FinalMetricDataList.

They are read from the logs once, and kept beside them. Logs that are too long to be read in passing are left alone:
`TrainingJob.metrics` reads them whenever it is asked to.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from hdp.contract.files import write_atomic
from hdp.contract.metrics import is_time
from hdp.estimator.engines.base import LogLine
from hdp.estimator.engines.local import logfiles
from hdp.estimator.engines.local.home import JobDir
from hdp.estimator.metrics import metrics_of

#: Of all hosts together: about a second's work.
_MOST_BYTES = 32 * 1024 * 1024


def final_metrics(job: JobDir, definitions: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """MetricName, Value, Timestamp (UTC) of each metric of the ended `job`; of several ranks, whoever spoke last."""
    kept = _kept(job.final_metrics)
    if kept is None:
        kept = _read(job, definitions)
        with contextlib.suppress(OSError):  # somebody else's job, or a full disk: it is read again next time
            write_atomic(job.final_metrics, json.dumps(kept))
    return [
        {"MetricName": name, "Value": float(value), "Timestamp": datetime.fromtimestamp(time, timezone.utc)}
        for name, (time, value) in kept.items()
    ]


def _kept(path: Path) -> dict[str, tuple[float, str]] | None:
    """None: there are none yet, or an earlier version kept what can't be shown."""
    try:
        kept = {n: (float(time), str(float(value))) for n, (time, value) in json.loads(path.read_bytes()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    return kept if all(is_time(time) for time, _ in kept.values()) else None


def _read(job: JobDir, definitions: Sequence[Mapping[str, str]]) -> dict[str, tuple[float, str]]:
    if sum(path.stat().st_size for path in job.logs.glob("*.log")) > _MOST_BYTES:
        return {}
    last: dict[str, tuple[float, str]] = {}
    for metric in metrics_of(_lines(job), definitions):
        if metric.timestamp >= last.get(metric.metric_name, (-math.inf, ""))[0]:
            last[metric.metric_name] = (metric.timestamp, repr(metric.value))
    return last


def _lines(job: JobDir) -> Iterator[LogLine]:
    page = logfiles.read_page(job, {}, final=True)
    while page.lines:
        yield from page.lines
        page = logfiles.read_page(job, page.cursor, final=True)
