"""What a comparison is made of: plain values, that JSON can keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hdp.estimator.comparison.steps import Steps

Kind = Literal["variant", "one process", "apart"]


@dataclass(frozen=True)
class Variant:
    """One way to run the job."""

    label: str
    kind: Kind = "variant"
    """"one process" and "apart" are baselines: the job alone, and the same processes without communication."""
    distribution: Mapping[str, Any] = field(default_factory=dict)
    """Secrets hidden."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """What else differs from the estimator, as given; secrets hidden."""
    hosts: int = 1
    """With ranks."""
    ranks: int = 1
    """Of all hosts together."""
    unequal: bool = False
    """Whether hosts differ in how many ranks they have."""
    others: int = 0
    """Hosts without ranks: those of instance groups that the distribution doesn't name."""
    apart: str | None = None
    """Label of the baseline with as many processes that don't communicate; None: there is none."""

    @property
    def shape(self) -> str:
        """``2 x 4``: hosts with ranks, and ranks of each; with unequal hosts, ``5 ranks on 3 hosts``."""
        each, rest = divmod(self.ranks, self.hosts)
        return f"{self.ranks} ranks on {self.hosts} hosts" if rest or self.unequal else f"{self.hosts} x {each}"


@dataclass(frozen=True)
class Run:
    """One job of a comparison."""

    label: str
    repeat: int
    """Counted from 1."""
    job: str
    """Its name."""
    steps: Steps = field(default_factory=Steps)
    sent_bytes: int | None = None
    """What the host that sent most sent; None: the engine didn't count."""
    training_seconds: float | None = None
    failure: str | None = None
    """Why it failed; None: it completed."""


@dataclass(frozen=True)
class Setting:
    """Where and when, and with what."""

    date: str
    """ISO 8601, UTC."""
    script: str
    engine: str
    instance_type: str
    network: Any = None
    """What `engine_options` said of the network; None: loopback, or the cluster's own."""
    machine: Mapping[str, Any] = field(default_factory=dict)
    """Processor, cores, memory, kernel of the machine that started the jobs; with the local engine, of all hosts."""
    versions: Mapping[str, str] = field(default_factory=dict)
