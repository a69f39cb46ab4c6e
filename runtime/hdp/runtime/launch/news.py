"""What a host has heard of its job so far, and seen of itself."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from hdp.contract.outcome import Failure, first_cause
from hdp.runtime.launch.coordination import read_cause
from hdp.runtime.launch.position import World, read_world
from hdp.runtime.launch.wire import Message


@dataclass
class News:
    """Filled by messages from the coordinator (`hear`) and by the host itself. Times are monotonic seconds."""

    world: World | None = None
    """Every host is there."""
    go: bool = False
    """Every host is ready."""
    alarm: float | None = None
    """Something failed somewhere; the cause follows."""
    culprit_known: float | None = None
    """Something failed that isn't collateral."""
    stop: float | None = None
    """The job was told to stop."""
    cause: Failure | None = None
    """Why the job failed."""
    all_done: bool = False
    """Every host has ended its ranks."""
    failures: list[Failure] = field(default_factory=list)
    """This host's own."""

    @property
    def interrupted(self) -> bool:
        """Whether the current phase can't go on."""
        return self.stop is not None or self.alarm is not None or self.cause is not None

    @property
    def stopped_first(self) -> bool:
        """Whether the job was told to stop, and before anything had failed."""
        return self.stop is not None and (self.alarm is None or self.stop < self.alarm)

    def hear(self, message: Message) -> None:
        """Take note of a message, other than ``stop``."""
        kind = message["type"]
        if kind == "world":
            self.world = read_world(message)
        elif kind == "go":
            self.go = True
        elif kind == "alarm":
            self._sound(collateral=bool(message.get("collateral")))
        elif kind == "cause":
            self._set_cause(read_cause(message))
        elif kind == "lost":
            self._lose_coordinator(read_cause(message))
        elif kind == "all_done":
            self.all_done = True

    def _lose_coordinator(self, failure: Failure) -> None:
        over = self.all_done or self.cause is not None or self.stop is not None
        cause = None if over else first_cause([*self.failures, failure])
        if cause is not None:
            self._set_cause(cause)

    def _sound(self, collateral: bool) -> None:
        self.alarm = self.alarm or time.monotonic()
        if not collateral:
            self.culprit_known = self.culprit_known or time.monotonic()

    def _set_cause(self, cause: Failure) -> None:
        self._sound(collateral=False)
        self.cause = self.cause or cause
