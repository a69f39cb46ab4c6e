"""What an engine is: it takes a job request and runs it, here or somewhere else.

An engine has four verbs (submit, describe, logs, stop) and a list. It owns the job from `submit` on; the client may
end. Every answer has SageMaker's shape, whatever the engine, so that one handle (`hdp.estimator.job.TrainingJob`)
serves them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from hdp.contract.mpirun import Installed

Status = Literal["InProgress", "Completed", "Failed", "Stopping", "Stopped"]
TERMINAL: frozenset[str] = frozenset({"Completed", "Failed", "Stopped"})


@dataclass(frozen=True)
class JobRequest:
    """All that an engine needs to run a job."""

    training_job: Mapping[str, Any] = field(repr=False)  # it may hold secrets
    """Exactly the arguments of SageMaker's CreateTrainingJob."""
    engine_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """What only this engine knows, as plain JSON values."""

    @property
    def name(self) -> str:
        """TrainingJobName."""
        return str(self.training_job["TrainingJobName"])


@dataclass(frozen=True)
class Capabilities:
    """What an engine can do here and now; part of the plan."""

    gpus_per_host: int = 0
    gpus_by_group: Mapping[str, int] = field(default_factory=dict)
    """The same for each instance group, of a job that has some, where they differ."""
    needs_role: bool = False
    needs_image: bool = False
    resolves_names: bool = False
    """Whether a role's name and the default bucket are looked up at fit; a plan, made offline, has stand-ins."""
    region: str | None = None
    """Where jobs run, of an engine that has regions."""
    uri_schemes: tuple[str, ...] = ("s3",)
    """Schemes that inputs and output_path may have."""
    input_modes: tuple[str, ...] = ("File", "FastFile", "Pipe")
    chooses_master_port: bool = False
    """Whether a job's MASTER_PORT is chosen at its start; otherwise it is the contract's default."""
    mpi: Installed | None = None
    """The MPI that the job's hosts have, where it asks for one."""
    interface: str = ""
    """The network interface between the hosts, where that is known."""
    mpi_missing: str = ""
    """Why there is none: a fault, unless the job's requirements bring one."""
    notes: tuple[str, ...] = ()
    """What differs from a real cluster, a line each (e.g. a privilege that is missing)."""
    faults: tuple[str, ...] = ()
    """Why this engine would refuse the very job that it was asked about, a line each."""


@dataclass(frozen=True)
class LogLine:
    """One line of a job's log."""

    time: float
    """Unix seconds."""
    host: str
    rank: int | None
    """None: the agent's own line."""
    text: str


@dataclass(frozen=True)
class LogPage:
    """Lines that came since a cursor, merged over hosts by time, and the cursor to go on from."""

    lines: Sequence[LogLine]
    cursor: Mapping[str, Any]
    """Opaque; JSON values only, so that it can be kept. An empty mapping is the beginning."""


@dataclass(frozen=True)
class Findings:
    """What a look at a job's surroundings has found, a line each."""

    faults: tuple[str, ...] = ()
    """Why the job can't run."""
    warnings: tuple[str, ...] = ()
    """What may be wrong, or couldn't be looked at."""


@dataclass(frozen=True)
class Pace:
    """How a job elsewhere is followed."""

    poll_seconds: float
    """The longest pause between two looks."""
    log_lag_seconds: float
    """How long after the job's end lines of its log may still come in."""


class Engine(Protocol):
    """Runs jobs."""

    name: str

    def capabilities(
        self, training_job: Mapping[str, Any] | None = None, options: Mapping[str, Any] | None = None
    ) -> Capabilities:
        """What this engine can do on this machine, for `training_job` and its valid `options`. Starts no job."""
        ...

    def validate_options(self, options: Mapping[str, Any]) -> tuple[Mapping[str, Any], Sequence[str]]:
        """Engine options with defaults filled in, and the faults found (empty: fine)."""
        ...

    def bundle_uri(self, digest: str, base: str = "") -> str:
        """Where the user's code archive with this SHA-256 digest is kept, as a URI. Pure: the same for plan and fit.

        base: URI of a folder of the job's owner, for an engine that keeps nothing itself.
        """
        ...

    def put_bundle(self, digest: str, archive: bytes, base: str = "", key_id: str | None = None) -> str:
        """Keep the archive under `bundle_uri(digest, base)`, if it isn't there yet. Returns that URI.

        key_id: of the key to encrypt it with, where the engine's store has such keys.
        """
        ...

    def submit(self, request: JobRequest) -> None:
        """Start the job. Raises SpecError for a name that is taken, EngineError for what can't be done here."""
        ...

    def describe(self, name: str) -> dict[str, Any]:
        """The job in DescribeTrainingJob's shape; what it lacks is under the key ``Hdp``. Raises JobNotFound."""
        ...

    def logs(self, name: str, cursor: Mapping[str, Any]) -> LogPage:
        """Lines since `cursor`. Returns at once. Raises JobNotFound."""
        ...

    def stop(self, name: str) -> None:
        """Ask a running job to stop (SIGTERM, then SIGKILL at the deadline). Returns at once; stopped jobs are fine."""
        ...

    def list(self) -> Sequence[dict[str, Any]]:
        """Summaries of all jobs, newest first, in ListTrainingJobs' shape."""
        ...


@runtime_checkable
class Remote(Protocol):
    """What an engine has besides whose jobs run elsewhere, for money."""

    def preflight(self, request: JobRequest) -> Findings:
        """Look at what the job will need there. Changes nothing."""
        ...

    def pace(self) -> Pace:
        """How its jobs are followed."""
        ...

    def epilogue(self, answer: Mapping[str, Any]) -> Sequence[str]:
        """Lines that help to understand how a job ended badly: its log's end, where to look, what to do.

        answer: its last description.
        """
        ...
