"""What a host needs before its ranks can start: folders, code, channels, requirements.

It takes from milliseconds to hours, so it runs in a thread of its own; the agent's loop goes on meanwhile.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

from hdp.contract.channels import ChannelStatistics
from hdp.contract.errors import LaunchError
from hdp.contract.files import Layout
from hdp.runtime.channels.provide import Channels
from hdp.runtime.code import EntryPoint, provide_code, requirements_file
from hdp.runtime.environment import TrainingEnvironment
from hdp.runtime.launch.linux import Children


@dataclass(frozen=True)
class Prepared:
    """What came of it."""

    entry: EntryPoint
    overlay: bool
    """Requirements were installed into the host's overlay."""


class Preparation:
    """The thread. `wake` is called from it when it is through."""

    def __init__(self, training: TrainingEnvironment, children: Children, wake: Callable[[], None]) -> None:
        self._training = training
        self._children = children
        self._wake = wake
        self._abandoned = threading.Event()
        self._channels = Channels(training, self._abandoned.is_set, children)
        self._result: Prepared | BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="hdp-prepare", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether `result` has something to give."""
        return self._result is not None

    def result(self) -> Prepared:
        """What came of it. Raises what the thread raised."""
        if isinstance(self._result, Prepared):
            return self._result
        raise self._result or LaunchError("the host isn't prepared yet")

    def abandon(self) -> None:
        """The result isn't wanted any more."""
        self._abandoned.set()

    def join(self, seconds: float) -> None:
        """Wait for the thread, but not for ever: a read from a dead network file system can't be interrupted."""
        self._thread.join(seconds)

    def channel_failure(self) -> tuple[str, float] | None:
        """Why a channel of this host can't be read any more, and when it last could; None while all is well."""
        why = self._channels.failure()
        return None if why is None else (why, self._channels.well_at())

    def channel_troubles(self) -> list[str]:
        """Objects that the ranks could not read so far, and why."""
        return self._channels.troubles()

    def channel_statistics(self) -> list[ChannelStatistics]:
        """What this host's channels have done so far."""
        return self._channels.statistics()

    def stop_channels(self) -> None:
        """End what serves the channels, once the thread is through. May be called twice."""
        if not self._thread.is_alive():
            self._channels.stop()

    def _run(self) -> None:
        try:
            self._result = self._provide()
        except BaseException as exc:
            self._result = exc
        if self._abandoned.is_set():
            self._channels.stop()
        self._wake()

    def _provide(self) -> Prepared:
        entry = provide_code(self._training)
        self._channels.start()
        requirements = requirements_file(self._training, entry)
        if requirements is None or self._abandoned.is_set():
            return Prepared(entry, overlay=False)
        from hdp.runtime.overlay import install  # brings venv and pip's metadata, which few jobs need

        install(requirements, self._training.layout, self._children)
        return Prepared(entry, overlay=True)


def make_folders(layout: Layout) -> None:
    """Make the folders that a script may expect. Raises LaunchError."""
    try:
        for folder in (layout.code, layout.data, layout.model, layout.output_data, layout.checkpoints):
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        who = f"uid {os.getuid()} needs to write there (docker run --user, or an image built with RUN_AS=0)"
        hint = f"; {who}" if isinstance(exc, PermissionError) else ""
        raise LaunchError(f"the host's folders can't be made below {layout.root}: {exc}{hint}") from exc
