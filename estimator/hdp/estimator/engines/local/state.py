"""A local job's state as a value, and the table of what may follow what. Pure.

::

    Starting -> Training -> Uploading -> Completed
                   |-> Stopping -> Stopped, MaxRuntimeExceeded
    each of the four -> Failed

Hosts provide the channels within Training: the agents, not the supervisor, know when that is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Any

from hdp.contract.outcome import Failure, HostReport
from hdp.contract.outcome import from_json as report_from_json
from hdp.contract.redact import redact_text
from hdp.estimator.engines.base import TERMINAL, Status
from hdp.estimator.engines.local.processes import ProcessId


@dataclass(frozen=True)
class Stage:
    """TrainingJobStatus and SecondaryStatus, as SageMaker names them."""

    status: Status
    secondary: str

    @property
    def terminal(self) -> bool:
        """Whether the job has ended."""
        return self.status in TERMINAL


STARTING = Stage("InProgress", "Starting")
TRAINING = Stage("InProgress", "Training")
UPLOADING = Stage("InProgress", "Uploading")
COMPLETED = Stage("Completed", "Completed")
FAILED = Stage("Failed", "Failed")
STOPPING = Stage("Stopping", "Stopping")
STOPPED = Stage("Stopped", "Stopped")
MAX_RUNTIME_EXCEEDED = Stage("Stopped", "MaxRuntimeExceeded")

NEXT: Mapping[Stage, frozenset[Stage]] = MappingProxyType(
    {
        STARTING: frozenset({TRAINING, FAILED}),
        TRAINING: frozenset({STOPPING, UPLOADING, FAILED}),
        UPLOADING: frozenset({COMPLETED, FAILED}),
        STOPPING: frozenset({STOPPED, MAX_RUNTIME_EXCEEDED, FAILED}),
        COMPLETED: frozenset(),
        FAILED: frozenset(),
        STOPPED: frozenset(),
        MAX_RUNTIME_EXCEEDED: frozenset(),
    }
)


@dataclass(frozen=True)
class Transition:
    """The job entered a stage. ``time`` is Unix seconds."""

    status: Status
    secondary: str
    time: float
    message: str

    @property
    def stage(self) -> Stage:
        """The stage that was entered."""
        return Stage(self.status, self.secondary)


@dataclass(frozen=True)
class HostState:
    """One host of the job."""

    name: str
    address: str
    agent: ProcessId | None = None
    exit_code: int | None = None
    """As Popen has it: negative is a signal; None: it hasn't ended."""


@dataclass(frozen=True)
class NetworkState:
    """The hosts' own network."""

    keeper: ProcessId
    """Of `hdp.runtime.emulation`: it ends whatever runs in the hosts when the supervisor ends, and then itself."""
    rates: Mapping[str, str | None]
    """Host to its link's rate as it was written; None: not shaped."""
    links: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Host to the counters of its link at the end of training; empty: not known."""


@dataclass(frozen=True)
class Artifacts:
    """Where the archives are, as URIs; None where there is none."""

    model: str | None = None
    output: str | None = None
    unarchived: bool = False
    """Archiving failed: the files are still in the hosts' trees, and nowhere else."""


@dataclass(frozen=True)
class JobState:
    """All that changes during a job's life."""

    name: str
    creator: ProcessId
    """The client that made the job's folder; it answers for the job until the supervisor does."""
    transitions: tuple[Transition, ...]
    supervisor: ProcessId | None = None
    hosts: tuple[HostState, ...] = ()
    training_started: float | None = None
    ranks_started: float | None = None
    """When the last host had its channels and started its ranks; None: not all have, or the job is still running."""
    training_ended: float | None = None
    failure_reason: str | None = None
    first_cause: Failure | None = None
    reports: tuple[HostReport, ...] = ()
    artifacts: Artifacts = Artifacts()
    notes: tuple[str, ...] = ()
    environment_differences: tuple[str, ...] = ()
    network: NetworkState | None = None
    """None: hosts have loopback addresses."""
    run_dir: str | None = None
    """Folder of the hosts' sockets, outside the job's folder: a socket's path has 107 bytes at most."""

    @property
    def stage(self) -> Stage:
        """Where the job is."""
        return self.transitions[-1].stage

    @property
    def created(self) -> float:
        """Unix seconds."""
        return self.transitions[0].time

    @property
    def modified(self) -> float:
        """Unix seconds of the last transition."""
        return self.transitions[-1].time


def new(name: str, creator: ProcessId, now: float) -> JobState:
    """State of a job that was just made."""
    first = Transition(STARTING.status, STARTING.secondary, now, "Preparing the hosts")
    return JobState(name=name, creator=creator, transitions=(first,))


def advance(state: JobState, stage: Stage, message: str, now: float) -> JobState:
    """`state`, moved on to `stage`; secrets in `message` are hidden. Raises ValueError for a step not in the table."""
    if stage not in NEXT[state.stage]:
        raise ValueError(f"job {state.name} can't go from {state.stage} to {stage}")
    step = Transition(stage.status, stage.secondary, now, redact_text(message))
    return replace(state, transitions=(*state.transitions, step))


def fail(state: JobState, reason: str, now: float) -> JobState:
    """`state`, moved on to Failed for this reason, secrets in it hidden."""
    return replace(advance(state, FAILED, reason, now), failure_reason=redact_text(reason))


def to_json(state: JobState) -> dict[str, Any]:
    """Plain JSON values."""
    return asdict(state)


def from_json(value: Mapping[str, Any]) -> JobState:
    """Inverse of `to_json`. Raises KeyError or TypeError for what isn't a state."""
    return JobState(
        **{
            **value,
            "creator": ProcessId(**value["creator"]),
            "supervisor": _process(value["supervisor"]),
            "transitions": tuple(Transition(**t) for t in value["transitions"]),
            "hosts": tuple(HostState(**{**h, "agent": _process(h["agent"])}) for h in value["hosts"]),
            "first_cause": Failure(**value["first_cause"]) if value["first_cause"] else None,
            "reports": tuple(report_from_json(r) for r in value["reports"]),
            "artifacts": Artifacts(**value["artifacts"]),
            "notes": tuple(value["notes"]),
            "environment_differences": tuple(value["environment_differences"]),
            "network": _network(value.get("network")),
        }
    )


def _process(value: Mapping[str, Any] | None) -> ProcessId | None:
    return ProcessId(**value) if value else None


def _network(value: Mapping[str, Any] | None) -> NetworkState | None:
    return NetworkState(ProcessId(**value["keeper"]), value["rates"], value["links"]) if value else None
