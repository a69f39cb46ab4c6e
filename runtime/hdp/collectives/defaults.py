"""What an operation takes where its call doesn't say. Read once, when a rank joins: a call has no time for it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from hdp.collectives import wires
from hdp.contract import env
from hdp.contract.errors import InvalidCollective

#: Seconds, some 30 years: more than the library can be told is no limit either.
FOR_EVER = 1e9


@dataclass(frozen=True)
class Defaults:
    """Those of a communicator."""

    timeout: float = float(env.TIMEOUT.default)
    """Seconds that an operation may take: $HDP_TIMEOUT_SECONDS."""
    stall: float = float(env.STALL.default)
    """Seconds after which one that waits is logged, 0: never: $HDP_STALL_SECONDS."""
    wire: str = env.WIRE_DTYPE.default
    """What large sums of float32 travel as between hosts: $HDP_WIRE_DTYPE."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Defaults:
        """As the environment says. Raises InvalidCollective that names the variable."""
        wire = environ.get(env.WIRE_DTYPE.name) or env.WIRE_DTYPE.default
        wires.format_of(wire, f"${env.WIRE_DTYPE.name}")
        return cls(_seconds(environ, env.TIMEOUT), _seconds(environ, env.STALL), wire)


def _seconds(environ: Mapping[str, str], variable: env.Variable) -> float:
    text = environ.get(variable.name, variable.default)
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not seconds >= 0:
        raise InvalidCollective(f"${variable.name} is {text!r}; expected seconds, 0 or more")
    return min(seconds, FOR_EVER)
