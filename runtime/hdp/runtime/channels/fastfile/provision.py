"""FastFile as a mode of channels: mounts, or, where a user has opted in, downloads where there is no FUSE."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from hdp.contract import env
from hdp.contract.errors import ChannelError
from hdp.runtime.channels.fastfile.budget import budget_bytes
from hdp.runtime.channels.fastfile.mode import Mount
from hdp.runtime.channels.fastfile.mounting import NoFuse
from hdp.runtime.channels.fastfile.stats import Stats
from hdp.runtime.channels.fastfile.wire import Task
from hdp.runtime.channels.filemode import copy_channel, require_empty
from hdp.runtime.channels.keys import Listing
from hdp.runtime.channels.spec import ChannelSpec
from hdp.runtime.environment import TrainingEnvironment
from hdp.runtime.launch.linux import Children

log = logging.getLogger(__name__)


class FastFile:
    """Makes the FastFile channels of one host."""

    def __init__(
        self, training: TrainingEnvironment, children: Children, channels: int, environ: Mapping[str, str]
    ) -> None:
        """channels: how many there are; they share the host's budget."""
        self._training = training
        self._children = children
        self._channels = max(1, channels)
        self._environ = environ

    def __call__(
        self, spec: ChannelSpec, listing: Listing, target: Path, stopped: Callable[[], bool], stats: Stats
    ) -> Mount | None:
        """Mount a channel. None: there is no FUSE, and it was downloaded, as the user has said. Raises ChannelError."""
        fallback = self._environ.get(env.FASTFILE_FALLBACK.name, "")
        if fallback not in ("", "file"):
            raise ChannelError(f"{env.FASTFILE_FALLBACK.name} is {fallback!r}, expected 'file' or nothing")
        require_empty(target)
        target.mkdir(parents=True, exist_ok=True)
        try:
            return Mount(self._task(spec, listing, target), self._children, stopped, self._report(spec))
        except NoFuse as exc:
            if not fallback:
                raise
            log.warning("channel %s: there is no FUSE here, so it is downloaded, as %s says: %s", spec.name,
                        env.FASTFILE_FALLBACK.name, exc)  # fmt: skip
        copy_channel(spec, listing, target, stopped, stats)
        return None

    def _task(self, spec: ChannelSpec, listing: Listing, target: Path) -> Task:
        order = self._environ.get(env.FASTFILE_ORDER.name, "").replace("{channel}", spec.name) or None
        budget = budget_bytes(self._environ) // self._channels
        return Task(spec.name, listing.base, tuple(listing.items), str(target), budget, order)

    def _report(self, spec: ChannelSpec) -> Path:
        host = self._training.resources.current_host
        return self._training.layout.output_data / f"hdp-fastfile-{spec.name}-{host}.json"
