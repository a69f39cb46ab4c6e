"""Provides the channels of a job on this host, one after the other, each in its own mode.

A mode is a function in `_MODES`: it makes the channel's place ready and returns what has to live as long as the ranks
read from it (a mount, the writer of FIFOs), or None where nothing has to (File). `Channels` keeps those, and ends them.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from hdp.contract import advice
from hdp.contract.channels import ChannelStatistics
from hdp.contract.errors import ChannelError
from hdp.contract.files import read_json
from hdp.runtime.channels.counting import Provided
from hdp.runtime.channels.fastfile.mode import Mount
from hdp.runtime.channels.fastfile.provision import FastFile
from hdp.runtime.channels.fastfile.stats import Stats
from hdp.runtime.channels.filemode import copy_channel
from hdp.runtime.channels.listing import Listing, channel_listing, gets_channel
from hdp.runtime.channels.pipemode import stream_channel
from hdp.runtime.channels.spec import ChannelSpec, parse_channels
from hdp.runtime.environment import TrainingEnvironment
from hdp.runtime.launch.linux import Children

log = logging.getLogger(__name__)

Stopped = Callable[[], bool]


class Live(Protocol):
    """A channel that something serves while the ranks run."""

    def failure(self) -> str | None:
        """Why it can't be served any more, as a sentence; None while all is well."""

    def stop(self) -> None:
        """End it: no process, mount, or thread is left, and no reader is left waiting. May be called twice."""


#: Makes the channel at the path, and counts what that takes. Raises ChannelError and OSError.
Mode = Callable[[ChannelSpec, Listing, Path, Stopped, Stats], "Live | None"]


class Channels:
    """The channels of this host. `start` in one thread, `stop` in any, once `start` has returned."""

    def __init__(
        self, env: TrainingEnvironment, stopped: Stopped = lambda: False, children: Children | None = None
    ) -> None:
        """children: where the processes are known that serve channels; None: nobody else waits for this process's."""
        self._env = env
        self._stopped = stopped
        self._children = children or Children()
        self._modes: Mapping[str, Mode] = _MODES
        self._past: list[str] = []
        self._live: dict[str, Live] = {}
        self._provided: list[Provided] = []

    def start(self) -> None:
        """Provide every channel. Returns early, with what is whole so far, once `stopped()` is true.

        Raises ChannelError that names the channel and the source, key or disk at fault; what was started is ended.
        """
        path = self._env.layout.channel_sources
        if not path.exists():
            _check_provided(self._env)
            return
        try:
            specs = parse_channels(read_json(path).get("channels", []), self._env.input_data_config)
            mounts = FastFile(self._env, self._children, sum(s.mode == "FastFile" for s in specs), os.environ)
            self._modes = {**_MODES, "FastFile": mounts}
            for spec in specs:
                if self._stopped():
                    return
                self._provide(spec)
        except BaseException:
            self.stop()
            raise

    def failure(self) -> str | None:
        """Why a channel can't be read any more, with its name; None while all is well."""
        lost = self._first_lost()
        return None if lost is None else f"channel {lost[0]!r}: {lost[1]}"

    def well_at(self) -> float:
        """Unix time when the channel that `failure` names was last known to be well."""
        lost = self._first_lost()
        return lost[2].well_at if lost is not None and isinstance(lost[2], Mount) else time.time()

    def _first_lost(self) -> tuple[str, str, Live] | None:
        for name, live in list(self._live.items()):
            why = live.failure()
            if why is not None:
                return name, why, live
        return None

    def troubles(self) -> list[str]:
        """Objects that the ranks could not read so far, each with its channel's name and why."""
        return [*self._past, *(line for name, live in list(self._live.items()) for line in _troubles(name, live))]

    def statistics(self) -> list[ChannelStatistics]:
        """What the channels that are there have done so far; whole once `stop` has returned."""
        return [provided.statistics() for provided in list(self._provided)]

    def stop(self) -> None:
        """End what serves the channels. May be called twice."""
        while self._live:
            name, live = self._live.popitem()
            try:
                live.stop()
            except Exception:  # the others must be ended all the same
                log.exception("channel %s can't be ended", name)
            self._past += _troubles(name, live)

    def _provide(self, spec: ChannelSpec) -> None:
        if not gets_channel(spec, self._env.resources):
            log.info("channel %s: only for hosts of the groups %s", spec.name, ", ".join(spec.instance_groups))
            return
        if spec.mode not in self._modes:
            raise ChannelError(f"channel {spec.name!r}: this version's runtime can't provide the mode {spec.mode}")
        start, stats = time.monotonic(), Stats()
        listing = channel_listing(spec, self._env.resources)
        for line in listing.warnings:
            log.warning("channel %s: %s", spec.name, line)
        for line in _advice(self._env, spec, listing):
            log.info("channel %s: %s", spec.name, line)
        try:
            live = self._modes[spec.mode](spec, listing, self._env.layout.channel(spec.name), self._stopped, stats)
        except (OSError, ValueError) as exc:
            raise ChannelError(f"channel {spec.name!r} from {spec.uri}: {exc}") from exc
        except ChannelError as exc:
            raise ChannelError(f"channel {spec.name!r}: {exc}") from exc
        if live is not None:
            self._live[spec.name] = live
        seconds, files, host = time.monotonic() - start, len(listing.items), self._env.resources.current_host
        self._provided.append(Provided(host, spec.name, spec.mode, files, listing.size_bytes, seconds, stats, live))
        log.info(
            "channel %s: %s, %d files, %.1f MB, %.1f s, from %s",
            spec.name, spec.mode, files, listing.size_bytes / 1e6, seconds, spec.uri,
        )  # fmt: skip


def _troubles(name: str, live: Live) -> list[str]:
    return [f"channel {name!r}: {line}" for line in live.troubles()] if isinstance(live, Mount) else []


def _advice(env: TrainingEnvironment, spec: ChannelSpec, listing: Listing) -> list[str]:
    lines = []
    if spec.mode == "Pipe" and env.local_size > 1:
        lines.append(
            f"each byte of a FIFO reaches one reader only, and there are {env.local_size} ranks; give each a channel "
            "of its own, or let one read for all"
        )
    if spec.attributes:
        return lines
    shape = advice.Shape.of(e.size_bytes for e in listing.whole or listing.items)
    hosts = sum(gets_channel(spec, env.resources, host) for host in env.resources.hosts)
    return lines + advice.before(shape, spec.mode, hosts, sharded=spec.sharded, record_io=spec.record_io)


def _check_provided(env: TrainingEnvironment) -> None:
    for name in env.channels:
        if not env.layout.channel(name).exists():
            log.warning("channel %s: %s is missing", name, env.layout.channel(name))


#: How each mode is provided.
_MODES: Mapping[str, Mode] = {"File": copy_channel, "Pipe": stream_channel}
