"""What a supervisor was given: the job's folder, its request and options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hdp.estimator.engines.base import JobRequest
from hdp.estimator.engines.local import cloud, kinds
from hdp.estimator.engines.local.home import JobDir
from hdp.estimator.engines.local.options import LocalOptions


@dataclass(frozen=True)
class Job:
    """One job to run, whatever its hosts are."""

    folder: JobDir
    training_job: Mapping[str, Any]
    """As its hosts get it."""

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
    program: tuple[str, ...] = ()
    """What its hosts run instead of a script under our agent: the argument vector."""
    preface: tuple[str, ...] = ()
    """What the log of its first host begins with."""

    @classmethod
    def of(cls, folder: JobDir, request: JobRequest) -> LocalJob:
        """The job of a request that was checked."""
        options = LocalOptions.model_validate(dict(request.engine_options))
        kind, asked = options.instance_types, request.training_job
        if kind is None:
            return cls(folder, asked, options)
        preface = tuple(cloud.preface(asked, options.python, kind))
        program = cloud.program(asked, own_too=options.run_carried)
        if program:  # it knows /opt/ml, and nothing of where else its host's tree is
            options = options.model_copy(update={"namespaces": "required"})
        training_job = cloud.with_kinds(asked, kind) if program else cloud.as_local(asked, kind)
        return cls(folder, training_job, options, program, preface)
