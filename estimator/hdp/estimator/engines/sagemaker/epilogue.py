"""What helps to understand why a job failed: the end of the log of the rank that failed first, and what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hdp.contract.errors import EngineError
from hdp.contract.redact import redact_text
from hdp.estimator.engines.sagemaker.cloudwatch import LogReader
from hdp.estimator.engines.sagemaker.lines import host_of
from hdp.estimator.engines.sagemaker.remedies import remedy_for

_LINES = 15
#: How `hdp.contract.outcome.Failure.summary` begins.
_RANK = re.compile(r"\brank (\d+) on ([A-Za-z0-9-]+) failed\b")
_HOST = re.compile(r"\bhost ([A-Za-z0-9-]+) failed\b")


def lines_for(answer: Mapping[str, Any], reader: LogReader) -> list[str]:
    """Lines for the exception of a failed or stopped job."""
    reason = str(answer.get("FailureReason", ""))
    remedy = remedy_for(f"{answer.get('SecondaryStatus', '')}: {reason}")
    console = answer.get("Hdp", {}).get("console")
    lines = _tail(reason, reader) if answer["TrainingJobStatus"] == "Failed" else []
    lines += [f"what to do: {remedy}"] if remedy else []
    return [*lines, *([f"console: {console}"] if console else [])]


def _tail(reason: str, reader: LogReader) -> list[str]:
    """The last lines of the rank that our runtime names; of another's job, of its first host."""
    rank, host = first_cause(reason)
    try:
        host = host or next(iter(sorted(map(host_of, reader.streams()))), "")
        found = reader.tail(host, rank, _LINES) if host else []
    except EngineError:  # the reason itself matters more than its decoration
        return []
    who = f"rank {rank} on {host}" if rank is not None else host
    return [f"the last lines of {who}:", *(f"  {redact_text(line)}" for line in found)] if found else []


def first_cause(reason: str) -> tuple[int | None, str]:
    """The rank and the host that a failure reason of our runtime names; None and nothing of others."""
    if named := _RANK.search(reason):
        return int(named[1]), named[2]
    named = _HOST.search(reason)
    return None, named[1] if named else ""
