"""From what each mode counts to `ChannelStatistics`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hdp.contract.channels import ChannelStatistics
from hdp.runtime.channels.fastfile.mode import Mount
from hdp.runtime.channels.fastfile.stats import Stats
from hdp.runtime.channels.pipe import PipeChannel

#: What a mount counts under the same name.
_OF_MOUNTS = (
    "fetched_bytes", "retries", "errors", "read_bytes", "waited_seconds", "waits", "cache_hits", "reads", "opens",
    "seeks", "peak_bytes",
)  # fmt: skip


@dataclass(frozen=True)
class Provided:
    """A channel that is there."""

    host: str
    channel: str
    mode: str
    """That was asked for."""
    files: int
    size_bytes: int
    seconds: float
    stats: Stats
    """Counted by this process; a mount's process has its own."""
    live: object
    """What serves it; None: nothing has to."""

    def statistics(self) -> ChannelStatistics:
        """What it has done so far."""
        numbers = self.stats.snapshot()
        own: Mapping[str, Any] = {"fetched_bytes": int(numbers["fetched_bytes"]), "retries": int(numbers["retries"])}
        requests, mode = int(numbers["gets"]), self.mode
        if isinstance(self.live, Mount):
            counted = self.live.numbers()
            own = {name: counted.get(name, 0) for name in _OF_MOUNTS}
            own["first_byte_seconds"] = counted.get("first_byte_seconds")
            requests = int(counted.get("gets", 0))
        elif isinstance(self.live, PipeChannel):
            own = {**own, **self.live.numbers()}
        else:
            mode = "File"  # also a FastFile channel without FUSE
        return ChannelStatistics(
            self.host, self.channel, mode, self.files, self.size_bytes, round(self.seconds, 6), requests=requests, **own
        )
