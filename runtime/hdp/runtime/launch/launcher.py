"""Starts what a host's part of the job consists of: the reduction server, a rendezvous, mpirun, and the ranks.

What the launcher of `distribution` needs besides ranks is made before any host starts (`prepare`).
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from dataclasses import replace

from hdp.contract.errors import LaunchError
from hdp.contract.mpirun import search_path
from hdp.contract.redact import redact_argv
from hdp.runtime.environment import TrainingEnvironment
from hdp.runtime.launch import linux
from hdp.runtime.launch.horovod import Rendezvous
from hdp.runtime.launch.leaving import make_secret
from hdp.runtime.launch.mpihost import MESSAGES, MpiHost, Terms, Wanted
from hdp.runtime.launch.position import World
from hdp.runtime.launch.prepare import Prepared
from hdp.runtime.launch.ranks import (
    RankFiles,
    RankPlan,
    common_environment,
    network_interface,
    plan_other,
    plan_rank,
    plan_ranks,
)
from hdp.runtime.launch.reactor import Reactor
from hdp.runtime.launch.server import SERVER_MODULE, Server, ServerSettings, wait_listening
from hdp.runtime.launch.supervisor import Supervisor
from hdp.runtime.launch.wire import Message
from hdp.runtime.settings import Settings

log = logging.getLogger(__name__)


class MpirunFailed(LaunchError):
    """mpirun has ended because something else had gone wrong."""

    collateral = True


class Launcher:
    """One host's launcher, of whatever kind."""

    def __init__(
        self,
        settings: Settings,
        reactor: Reactor,
        children: linux.Children,
        supervisor: Supervisor,
        files: RankFiles,
        *,
        send: Callable[[Message], None],
        fail: Callable[[LaunchError], None],
        interrupted: Callable[[], bool],
        server_module: str = SERVER_MODULE,
    ) -> None:
        """send: to the coordinator. fail: something that isn't a rank has ended. interrupted: give up waiting."""
        self.files = files
        self._settings = settings
        self._reactor = reactor
        self._children = children
        self._supervisor = supervisor
        self._send = send
        self._fail = fail
        self._interrupted = interrupted
        self._server_module = server_module
        self._server = Server(reactor, children, fail)
        self._rendezvous = Rendezvous(reactor, children, fail)
        self._mpi: MpiHost | None = None

    def prepare(self, training: TrainingEnvironment, world: World, prepared: Prepared) -> None:
        """Make what must be there, on this host, before any host's ranks start. Raises LaunchError."""
        self.files = replace(self.files, overlay=prepared.overlay)
        if not training.local_size:
            return
        if training.launch.kind == "mpi":
            self._mpi = self._make_mpi(training, world, prepared)
        elif training.launch.kind == "horovod" and world.node(training.resources.current_host) == 0:
            environ, _ = common_environment(training, self._settings, world, self.files, os.environ)
            self._rendezvous.start(world, self._settings.horovod_port, environ, self._interrupted)

    def start(self, training: TrainingEnvironment, world: World, prepared: Prepared) -> None:
        """Start the ranks, or mpirun, which has them started. Raises LaunchError."""
        shown = " ".join([prepared.entry.script, *redact_argv(training.argv)])
        if self._mpi is not None:
            self._mpi.start()
            return
        if not training.local_size:
            other, too_long = plan_other(
                training, self._settings, world, entry=prepared.entry, files=self.files, environ=os.environ
            )
            _warn(too_long)
            log.info("the distribution has no ranks here; starting %s as a plain process", shown)
            self._supervisor.start([other])
            return
        if training.launch.kind in ("hdp", "smdistributed"):
            self._start_server(training, world)
            if self._interrupted():
                return
        plans, too_long = plan_ranks(
            training, self._settings, world, entry=prepared.entry, files=self.files, environ=os.environ
        )
        _warn(too_long)
        log.info("starting %d of %d ranks: %s", len(plans), world.size, shown)
        self._supervisor.start(plans)

    def hear(self, message: Message) -> bool:
        """Handle a message from another agent, if it is for a launcher."""
        if message["type"] not in MESSAGES:
            return False
        if self._mpi is not None:
            self._mpi.hear(message)
            if message["type"] == "launcher_ended":
                self._end_of_mpi(self._mpi, int(message["code"]))
        return True

    @property
    def ended(self) -> bool:
        """Whether no rank runs any more, and none will be started."""
        return self._supervisor.ended and (self._mpi is None or self._mpi.over is not None)

    @property
    def gave_up(self) -> bool:
        """Whether mpirun has ended by itself, and not well: its ranks have nothing to wait for."""
        return self._mpi is not None and self._mpi.over not in (None, 0)

    @property
    def succeeded(self) -> bool:
        """Whether every rank of this host ended well; under mpirun there may be none."""
        started = bool(self._supervisor.ranks) or (self._mpi is not None and self._mpi.over == 0)
        return started and self._supervisor.succeeded

    def refuse(self) -> None:
        """Start no more ranks."""
        if self._mpi is not None:
            self._mpi.refuse()

    def close(self) -> None:
        """End what isn't a rank."""
        if self._mpi is not None:
            self._mpi.close()
        self._rendezvous.close()
        self._server.end()

    def _make_mpi(self, training: TrainingEnvironment, world: World, prepared: Prepared) -> MpiHost:
        common, too_long = common_environment(training, self._settings, world, self.files, os.environ)
        _warn(too_long)

        def plan(wanted: Wanted) -> RankPlan:
            return plan_rank(
                training, self._settings, world, wanted.position, entry=prepared.entry, files=self.files,
                common=mpi_host.of_rank(wanted), channel=wanted.channel, cpus=wanted.cpus,
            )  # fmt: skip

        overlay = [str(training.layout.overlay / "bin")] if prepared.overlay else []
        terms = Terms(
            world=world,
            node=world.node(training.resources.current_host),
            folder=self.files.folder,
            cwd=training.layout.code,
            interface=network_interface(training),
            custom_options=training.launch.custom_mpi_options,
            path=os.pathsep.join([*overlay, search_path(sys.executable, os.environ.get("PATH", os.defpath))]),
        )
        mpi_host = MpiHost(
            self._reactor, self._children, self._supervisor, terms, plan=plan, send=self._send, lost=self._lose
        )
        mpi_host.ready(common)
        return mpi_host

    def _lose(self, what: str) -> None:
        if not self._interrupted():
            self._fail(LaunchError(what))

    def _end_of_mpi(self, mpi: MpiHost, code: int) -> None:
        """mpirun has ended. Where it ran, tell why it failed; a rank that failed says more, and may be about to."""
        if code > 0 and mpi.first and not self._interrupted():
            self._fail(MpirunFailed(f"mpirun ended with exit code {code}" + (f":\n{mpi.said}" if mpi.said else "")))

    def _start_server(self, training: TrainingEnvironment, world: World) -> None:
        folder, timeout = self.files.folder, self._settings.start_timeout.total_seconds()
        secret_file = self.files.secret_file or make_secret(folder / "secret")
        self.files = replace(self.files, secret_file=secret_file, server_socket=folder / "server.sock")
        server = ServerSettings(
            host_index=world.node(training.resources.current_host),
            hosts=world.hosts,
            port=self._settings.server_port,
            socket=str(self.files.server_socket),
            secret_file=str(secret_file),
            start_timeout_seconds=timeout,
            output_dir=str(training.layout.output_data),
        )
        self._server.start(server, self._server_module)
        # A little longer than the server itself waits for the others, so that it can say what it misses.
        wait_listening(self._server, self._reactor, self._interrupted, timeout + 5.0)


def _warn(too_long: list[str]) -> None:
    if too_long:
        log.warning("longer than Linux allows, so not passed to the ranks: %s", ", ".join(too_long))
