"""What a running job's hosts are on: loopback addresses of this machine, or a network of their own with shaped links.

Of the client, only `Emulated` here imports the runtime, and only in the supervisor of a job that has such a network:
whoever makes a network is the parent of what runs in it, and that is the supervisor's part.
"""

from __future__ import annotations

import fcntl
import logging
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from hdp.contract.errors import HdpError
from hdp.estimator.engines.local import addresses, processes, store
from hdp.estimator.engines.local.addresses import DEFAULT_PORTS, Block
from hdp.estimator.engines.local.home import Home
from hdp.estimator.engines.local.hostns import Support
from hdp.estimator.engines.local.localjob import LocalJob
from hdp.estimator.engines.local.network_plan import rates_of
from hdp.estimator.engines.local.state import HostState, NetworkState

if TYPE_CHECKING:
    from hdp.runtime.emulation import Network

LOG = logging.getLogger(__name__)
PROBE_MODULE = "hdp.runtime.emulation.probe"
_COUNTED = ("sent_bytes", "received_bytes", "sent_packets", "received_packets", "dropped")
#: A second is usual; one that needs a minute won't come.
_PROBE_SECONDS = 60.0


def probe() -> Support:
    """Find out whether hosts can have networks here, by making one, in a child process."""
    command = [sys.executable, "-m", PROBE_MODULE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return Support("none", f"no network was up after {_PROBE_SECONDS:g} s")
    said = done.stdout.strip()
    if done.returncode == 0:
        return Support("user" if said == "user" else "root")
    return Support("none", said or (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1])


class HostNetwork(Protocol):
    """What a job's hosts are on."""

    interface: str
    """Its name inside the hosts."""

    def place(self) -> Block:
        """The hosts' addresses and ports, which are on the job's record."""
        ...

    def popen(self, host: str, argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a program in `host`, as `subprocess.Popen` does with these options."""
        ...

    def count(self) -> None:
        """Record what went over each host's link, where that is known. Raises nothing for what can't be read."""
        ...


@contextmanager
def made(job: LocalJob) -> Iterator[HostNetwork]:
    """The network of the job's hosts, for the block. Raises EmulationError where this machine can't have it.

    After it, nothing runs in the hosts of a network of their own.
    """
    if job.options.network is None:
        yield Loopback(job)
        return
    from hdp.runtime.emulation import Network

    rates = rates_of(job.options.network, job.hosts)
    with Network(len(job.hosts), rates=dict(enumerate(rates.values()))) as network:
        recorded = NetworkState(processes.identify(network.keeper_pid), rates)
        store.update(job.folder, lambda s: replace(s, network=recorded))
        yield Emulated(job, network)


class Loopback:
    """This machine's own network: each host has an address of its own on the loopback interface."""

    interface = "lo"

    def __init__(self, job: LocalJob) -> None:
        self._job = job

    def place(self) -> Block:
        """A free block of addresses, recorded before anybody else can look for one."""
        home = Home(self._job.folder.path.parent.parent)
        with _address_lock(home):
            jobs = store.Store(home).look_all()
            others = [s for s in jobs if not s.stage.terminal and s.name != self._job.folder.name]
            taken = {host.address for other in others for host in other.hosts}
            return _recorded(self._job, addresses.choose(len(self._job.hosts), taken))

    def popen(self, host: str, argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:  # noqa: ARG002
        """As `HostNetwork`; here a host is nothing but its processes."""
        return subprocess.Popen(argv, **options)

    def count(self) -> None:
        """Nothing: hosts share one interface."""


class Emulated:
    """Hosts in network namespaces, each behind a shaped link. Other networks may have the same addresses."""

    def __init__(self, job: LocalJob, network: Network) -> None:
        self._job, self._network = job, network
        self.interface = network.hosts[0].interface

    def place(self) -> Block:
        """As `HostNetwork`; nobody else's ports are there."""
        return _recorded(self._job, Block(tuple(host.address for host in self._network.hosts), DEFAULT_PORTS))

    def popen(self, host: str, argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """As `HostNetwork`."""
        return self._network.popen(self._job.hosts.index(host), argv, **options)

    def count(self) -> None:
        """As `HostNetwork`; a keeper that was killed is a note."""
        try:
            counted = {host: self._network.counters(i) for i, host in enumerate(self._job.hosts)}
        except HdpError as exc:
            LOG.warning("count what went over the links: %s", exc)
            note = f"what went over the hosts' links isn't known: {exc}"
            store.update(self._job.folder, lambda s: replace(s, notes=(*s.notes, note)))
            return
        links = {host: {name: getattr(now, name) for name in _COUNTED} for host, now in counted.items()}
        store.update(self._job.folder, lambda s: replace(s, network=s.network and replace(s.network, links=links)))


def _recorded(job: LocalJob, block: Block) -> Block:
    hosts = tuple(HostState(name, ip) for name, ip in zip(job.hosts, block.addresses, strict=True))
    store.update(job.folder, lambda s: replace(s, hosts=hosts))
    return block


@contextmanager
def _address_lock(home: Home) -> Iterator[None]:
    with (home.path / "addresses.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
