"""How ranks and hosts ended: written by the agent as ``output/hdp-report.json``, read by the engine.

The *first cause* of a failed job is the earliest failure that isn't collateral: ranks that fail because another one
is gone are known by their exception (`hdp.contract.errors.is_collateral`), and are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hdp.contract import channels
from hdp.contract.channels import ChannelStatistics
from hdp.contract.files import FAILURE_MAX_CHARS

#: Of a long exception's message, where the traceback needs the rest.
_MESSAGE_CHARS = 300
#: A frame of a traceback with the lines that belong to it.
_FRAME = re.compile(r'^ +File ".*(?:\n {3,}.*)*', re.MULTILINE)
#: Where the frames are that are not the user's.
_LIBRARY = re.compile(r'File "[^"]*(?:/site-packages/|/dist-packages/|/lib/python3|<frozen )')


@dataclass(frozen=True)
class Failure:
    """One rank's (or, with rank None, one host's) failure."""

    host: str
    rank: int | None
    time: float
    """Unix seconds of the exception, or of the exit where there was none."""
    exit_code: int | None = None
    signal: str | None = None
    exception: str = ""
    """One line, e.g. ``ValueError: boom``; empty where the process left none."""
    traceback: str = ""
    collateral: bool = False

    def summary(self) -> str:
        """Where, how, what, in at most `FAILURE_MAX_CHARS` characters.

        A traceback that is too long is cut to its last frames, the last one of the user's own code among them, and
        the message to its beginning.
        """
        who = f"rank {self.rank} on {self.host}" if self.rank is not None else f"host {self.host}"
        how = f"killed by {self.signal}" if self.signal else f"exit code {self.exit_code}"
        known = self.signal is not None or self.exit_code is not None
        head = f"{who} failed ({how})" if known else f"{who} failed"
        if self.exception:
            head += f": {self.exception}"
        if not self.traceback:
            return _clip_end(head, FAILURE_MAX_CHARS)
        if len(head) + 1 + len(self.traceback) > FAILURE_MAX_CHARS:
            head = _clip_end(head, len(head) - len(self.exception) + _MESSAGE_CHARS)
        return f"{head}\n{_clip_traceback(self.traceback, FAILURE_MAX_CHARS - len(head) - 1)}"


@dataclass(frozen=True)
class RankOutcome:
    """How one rank ended, or the one process of a host without ranks."""

    rank: int | None
    """None: it isn't one."""
    exit_code: int | None
    signal: str | None = None
    seconds_after_stop: float | None = None
    """From SIGTERM to the end; None where no SIGTERM was sent."""
    killed_at_deadline: bool = False
    checkpoints: tuple[str, ...] = ()
    """Files below ``checkpoints/`` that this rank wrote after SIGTERM."""


@dataclass(frozen=True)
class HostReport:
    """How one host ended."""

    host: str
    ranks: tuple[RankOutcome, ...] = ()
    failures: tuple[Failure, ...] = ()
    """This host's own failures."""
    first_cause: Failure | None = None
    """The job's first cause, as far as this host was told."""
    stopped: bool = False
    """The host was told to stop by SIGTERM."""
    checkpoints: tuple[str, ...] = ()
    """Files below ``checkpoints/`` that were written on this host after SIGTERM, by whichever rank."""
    notes: tuple[str, ...] = field(default=())
    channels: tuple[ChannelStatistics, ...] = ()
    """What the channels did that this host's agent provided; none where a service provides them."""


def first_cause(failures: Iterable[Failure]) -> Failure | None:
    """The earliest failure that isn't collateral; without one, the earliest of all; None for none.

    At the same time to the last digit, a rank's failure goes before a host's, and a lower rank's before a higher
    one's, so that every host names the same one, whatever came to it first.
    """
    return min(failures, key=lambda f: (f.collateral, f.time, f.rank is None, f.rank or 0, f.host), default=None)


def to_json(report: HostReport) -> dict[str, Any]:
    """`report` as plain JSON values."""
    return asdict(report)


def from_json(value: dict[str, Any]) -> HostReport:
    """Inverse of `to_json`."""
    cause = value.get("first_cause")
    return HostReport(
        host=value["host"],
        ranks=tuple(RankOutcome(**{**r, "checkpoints": tuple(r["checkpoints"])}) for r in value["ranks"]),
        failures=tuple(Failure(**f) for f in value["failures"]),
        first_cause=Failure(**cause) if cause else None,
        stopped=value["stopped"],
        checkpoints=tuple(value["checkpoints"]),
        notes=tuple(value.get("notes", ())),
        channels=tuple(channels.from_json(c) for c in value.get("channels", ())),
    )


def _clip_end(text: str, room: int) -> str:
    return text if len(text) <= room else text[: room - 3] + "..."


def _clip_start(text: str, room: int) -> str:
    return text if len(text) <= room else "..." + text[-(room - 3) :]


def _clip_traceback(text: str, room: int) -> str:
    """The end of `text`; where it has frames, the last whole ones that fit, the user's last one before all others."""
    frames = _FRAME.findall(text)
    if len(text) <= room or not frames:
        return _clip_start(text, room)
    kept: set[int] = set()
    for i in _by_worth(frames):
        if sum(len(frames[k]) + 1 for k in (*kept, i)) > room:
            break
        kept.add(i)
    return "\n".join(frames[i] for i in sorted(kept)) if kept else _clip_start(frames[-1], room)


def _by_worth(frames: Sequence[str]) -> list[int]:
    """Indices of `frames`: the last of the user's own, then the others from the end."""
    from_the_end = list(reversed(range(len(frames))))
    own = next((i for i in from_the_end if not _LIBRARY.search(frames[i])), from_the_end[0])
    return [own, *(i for i in from_the_end if i != own)]
