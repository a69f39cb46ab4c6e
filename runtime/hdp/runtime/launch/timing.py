"""How long the agent waits for what, apart from what the job itself sets (HDP_*_TIMEOUT_SECONDS)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Seconds."""

    grace: float = 2.0
    """From the first failure to SIGTERM: what a rank says when it fails by itself says more than our signal."""
    culprit: float = 13.0
    """So much more while every failure is collateral: the culprit may be a rank that needs long to end."""
    kill: float = 5.0
    """From SIGTERM to SIGKILL when the job has failed. (When it is told to stop: HDP_STOP_TIMEOUT_SECONDS.)

    Once a culprit is known, a job ends within `grace` + `kill` and a second or two, whatever its ranks do.
    """
    cause: float = 10.0
    """How long an agent that has failed waits to hear the job's first cause, once all ranks of all hosts had to end."""
    linger: float = 5.0
    """How long the coordinator waits for the others to hang up, and for late hosts to hear the cause."""
    hang: float = 3.0
    """From a rank's exception to its end, before it is taken as failed although it still runs."""

    @property
    def longest(self) -> float:
        """From a failure until the first cause is known to all, whatever the ranks do."""
        return self.grace + self.culprit + self.kill + self.cause
