"""How an agent meets the others: hosts[0] also runs the coordinator; a job of one host needs no network at all."""

from __future__ import annotations

import time

from hdp.contract.errors import LaunchError
from hdp.contract.secret import read_secret
from hdp.runtime.environment import Resources
from hdp.runtime.launch.coordination import Coordination
from hdp.runtime.launch.coordinator import Coordinator
from hdp.runtime.launch.member import CoordinatorAddress, Deliver, Line, LocalLine, NetworkLine
from hdp.runtime.launch.timing import Timing
from hdp.runtime.launch.wire import Message
from hdp.runtime.settings import Settings

#: Agents wait this much longer than the coordinator, which can say who is missing.
_EXTRA_SECONDS = 5.0


class Meeting:
    """The agent's line to the coordinator and, on hosts[0], the coordinator."""

    def __init__(self, settings: Settings, resources: Resources, timing: Timing, deliver: Deliver) -> None:
        """deliver: called, from another thread, with each message from the coordinator.

        Raises LaunchError or ContractError if the others can't be met at all.
        """
        self._timing = timing
        self._coordinator: Coordinator | None = None
        hosts, timeout = resources.hosts, settings.start_timeout.total_seconds()
        coordination = Coordination(hosts, settings.addresses, timeout, time.monotonic())
        self._line: Line
        if len(hosts) == 1:
            self._line = LocalLine(coordination, deliver)
            return
        secret = _secret(settings, len(hosts))
        where = CoordinatorAddress(hosts[0], settings.address(hosts[0]), settings.control_port)
        if resources.node_rank == 0:
            self._coordinator = Coordinator(coordination, secret, where.address, where.port)
        self._line = NetworkLine(where, secret, timeout + _EXTRA_SECONDS, deliver)

    @property
    def coordinates(self) -> bool:
        """Whether the others depend on this host's agent."""
        return self._coordinator is not None

    def send(self, message: Message) -> None:
        """Tell the coordinator."""
        self._line.send(message)

    def tick(self) -> None:
        """To be called now and then."""
        self._line.tick()

    def close(self) -> None:
        """Hang up."""
        self._line.close()
        if self._coordinator is not None:
            self._coordinator.close(self._timing.linger)


def _secret(settings: Settings, hosts: int) -> bytes:
    if settings.secret_file is None:
        raise LaunchError(
            f"a job of {hosts} hosts needs a secret that all know; set HDP_SECRET_FILE to a file (0600) with the "
            "same 32 random bytes or more on every host"
        )
    return read_secret(settings.secret_file)
