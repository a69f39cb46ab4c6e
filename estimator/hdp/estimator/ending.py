"""How a job ended, as an exception, unless it is the good end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hdp.contract.errors import TrainingJobFailed, TrainingJobStopped
from hdp.estimator.engines.base import Remote

if TYPE_CHECKING:
    from hdp.estimator.job import TrainingJob


def raise_unless_completed(job: TrainingJob, answer: Mapping[str, Any]) -> None:
    """Raise TrainingJobFailed or TrainingJobStopped. answer: the job's last description."""
    status = answer["TrainingJobStatus"]
    if status not in ("Failed", "Stopped"):
        return
    where = answer.get("Hdp", {}).get("log_dir")
    logs = [f"its logs: {where}"] if where else []
    more, option = [], ""
    if isinstance(job.engine, Remote):
        more, option = list(job.engine.epilogue(answer)), f" --engine {job.engine.name}"
    if status == "Failed":
        hint = "\n".join([*more, *logs, f"next: hdp logs {job.name}{option}"])
        raise TrainingJobFailed(job.name, answer.get("FailureReason", "no reason was recorded"), hint)
    told = [*_checkpoints(answer), *failures_at_stop(answer), *more]
    raise TrainingJobStopped(
        job.name, _why(answer), "\n".join([*told, *logs, f"next: hdp describe {job.name}{option}"])
    )


def failures_at_stop(answer: Mapping[str, Any]) -> list[str]:
    """A line for each rank of a stopped job that failed while it stopped, e.g. in its SIGTERM handler.

    Ranks that failed only because another one was gone are left out.
    """
    failures = [f for f in answer.get("Hdp", {}).get("failures", ()) if not f["collateral"]]
    return [f"{_who(failure)} failed: {_what(failure)}" for failure in failures]


def _why(answer: Mapping[str, Any]) -> str:
    """What the last step of a stopped job says; other clients' jobs may have none."""
    steps = answer.get("SecondaryStatusTransitions") or [{}]
    said = steps[-1].get("StatusMessage") or answer.get("FailureReason") or ""
    secondary = str(answer.get("SecondaryStatus", "Stopped"))
    return said if secondary in ("Stopped", "") and said else f"{secondary}: {said}".rstrip(": ")


def _who(failure: Mapping[str, Any]) -> str:
    return f"host {failure['host']}" if failure["rank"] is None else f"rank {failure['rank']} on {failure['host']}"


def _what(failure: Mapping[str, Any]) -> str:
    return str(failure["exception"] or failure["signal"] or f"exit code {failure['exit_code']}")


def _checkpoints(answer: Mapping[str, Any]) -> list[str]:
    extras = answer.get("Hdp", {})
    kept = answer.get("CheckpointConfig", {}).get("S3Uri")
    if "checkpoints" not in extras and kept:
        return [f"checkpoints, if it wrote some: {kept}"]
    if "checkpoints" not in extras and "log_dir" in extras:
        return []
    by_host = {host: files for host, files in extras.get("checkpoints", {}).items() if files}
    if not by_host:
        return ["no checkpoint was written after it was told to stop"]
    unknown = extras.get("checkpoints_of_unknown_rank", {})
    shown = {
        host: " ".join(f"{file} (unknown rank)" if file in unknown.get(host, ()) else file for file in files)
        for host, files in by_host.items()
    }
    return ["checkpoints: " + ", ".join(f"{host}: {files}" for host, files in shown.items())]
