"""What a supervisor was given: the job's folder, its request and options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hdp.estimator.engines.local import kinds
from hdp.estimator.engines.local.home import JobDir
from hdp.estimator.engines.local.options import LocalOptions


@dataclass(frozen=True)
class Job:
    """One job to run, whatever its hosts are."""

    folder: JobDir
    training_job: Mapping[str, Any]

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts' names."""
        return kinds.hosts_of(self.training_job)

    @property
    def max_runtime(self) -> float | None:
        """MaxRuntimeInSeconds; None: no limit."""
        limit = self.training_job.get("StoppingCondition", {}).get("MaxRuntimeInSeconds")
        return None if limit is None else float(limit)

    @property
    def output_path(self) -> str | None:
        """S3OutputPath; None: artifacts stay in the job's folder."""
        return self.training_job.get("OutputDataConfig", {}).get("S3OutputPath") or None


@dataclass(frozen=True)
class LocalJob(Job):
    """A job whose hosts are process groups of this machine."""

    options: LocalOptions
