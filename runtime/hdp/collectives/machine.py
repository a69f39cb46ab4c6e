"""Where an operation runs, as the cost model sees it: links, processors, and ranks by host."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hdp.collectives.topology import FRAMING, Topology
from hdp.collectives.world import SLOT_BYTES, SLOTS


@dataclass(frozen=True)
class Link:
    """What joins a host to the others, in each direction."""

    rate: float
    """Bytes a second, frames and all."""
    latency: float
    """From host to host, without what the processors do."""
    burst: int = 0
    """Bytes that pass at once after a pause, where a token bucket shapes the link."""

    def seconds(self, payload: float, free: bool = False) -> float:
        """How long `payload` takes on the link. free: the bucket is full."""
        return max(0.0, payload * FRAMING - (self.burst if free else 0)) / self.rate


@dataclass(frozen=True)
class Machine:
    """What the processors cost. The figures are those of one core; they are measured where the job runs."""

    cores: int
    hosts: int = 1
    """Hosts that share these cores: more than one only where hosts are emulated."""
    move: float = 1.5e-10
    """Seconds a byte for a rank to copy or add between its array and the arena, while servers use the caches too."""
    move_alone: float = 1.0e-10
    """The same where nothing crosses a network, and the arena stays in the caches."""
    wire: float = 6.0e-10
    """Seconds a byte that a server sends and another one receives and adds: both ends together, kernel included."""
    message: float = 4e-6
    """Seconds of a core for a message between servers, both ends together, and for waking somebody in a host."""
    wake: float = 5e-6
    """Seconds until somebody who sleeps goes on, after it was rung, with a free core."""
    call: float = 8e-6
    """Seconds of a core for a rank's call itself, and for the server's work for it."""
    cold: float = 0.0
    """Seconds that an operation takes longer where the processors were idle before: they sleep deeper the longer."""


@dataclass(frozen=True)
class Cluster:
    """Where an operation runs."""

    ranks: tuple[int, ...]
    """Ranks of the group on each host."""
    link: Link
    machine: Machine
    slots: int = SLOTS
    slot_bytes: int = SLOT_BYTES

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return len(self.ranks)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return sum(self.ranks)

    @property
    def local(self) -> int:
        """The most ranks on a host: the host with them is the last one to be ready."""
        return max(self.ranks)

    def cpu(self, seconds_of_a_host: float) -> float:
        """Time that the processors need, where every host has so many CPU seconds of work."""
        return seconds_of_a_host * self.machine.hosts / self.machine.cores


def cluster_of(topology: Topology, machine: Machine | None = None) -> Cluster:
    """The cluster that a topology describes, with `machine`'s costs, or those that follow from what was measured."""
    first = topology.hosts[0]
    shared = topology.hosts_on_a_machine
    costs = machine or Machine(cores=first.cpus)
    wake = costs.wake
    if topology.latency is not None and machine is None:
        # What a message takes is the network's latency and two wake-ups. On one machine there is no network.
        wake = topology.latency / 2 if shared > 1 else min(costs.wake, topology.latency / 2)
    costs = replace(costs, cores=first.cpus, hosts=shared, wake=wake)
    if machine is None:
        costs = replace(costs, move=(1 / first.copy_rate + 1 / first.add_rate) / 2)
    latency = max(0.0, (topology.latency or 0.0) - 2 * wake)
    rate = (topology.link_rate or math.inf) / 8
    return Cluster(tuple(host.ranks for host in topology.hosts), Link(rate, latency), costs)
