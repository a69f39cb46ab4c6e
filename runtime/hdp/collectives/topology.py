"""What a job runs on: hosts, their ranks, processors and memory, and the links between them. Values, read and written.

`probe.discover` measures it; `cost` computes with it; a job that was told to (HDP_TOPOLOGY=1) keeps it as
``hdp-topology.json`` in its output, and `hdp topology NAME` shows that.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hdp.contract.errors import ContractError
from hdp.contract.files import read_json, write_json

VERSION = 1
#: Bytes on the wire for bytes of data: an Ethernet frame of 1514 holds 1448 of a TCP stream with timestamps.
FRAMING = 1514 / 1448


@dataclass(frozen=True)
class NumaNode:
    """One memory node of a host."""

    cpus: tuple[int, ...]
    """Its processors that this job may use."""
    memory_bytes: int


@dataclass(frozen=True)
class Host:
    """One host, as the first of its ranks sees it."""

    name: str
    address: str
    ranks: int
    machine: str
    """The same on hosts that share a kernel: emulated ones."""
    cpus: int
    """Processors that it may use. Hosts of one machine share them."""
    cpu_model: str
    memory_bytes: int
    """What it may use: the machine's, or its control group's limit."""
    numa: tuple[NumaNode, ...]
    copy_rate: float
    """Bytes a second that one core copies from memory to memory."""
    add_rate: float
    """Bytes a second of float32 that one core adds from memory onto what is in its cache."""

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Host:
        """Inverse of `dataclasses.asdict`."""
        nodes = (NumaNode(tuple(node["cpus"]), node["memory_bytes"]) for node in value["numa"])
        return Host(**{**value, "numa": tuple(nodes)})


@dataclass(frozen=True)
class Flow:
    """Data between two hosts while the same goes the other way."""

    source: int
    target: int
    rate: float
    """Bytes of data a second."""


@dataclass(frozen=True)
class Route:
    """A small message's way between two hosts."""

    one: int
    other: int
    latency: float
    """Seconds from one server to the other, with the wake-ups at both ends."""


@dataclass(frozen=True)
class Topology:
    """What was found. Hosts are numbered in the job's order."""

    hosts: tuple[Host, ...]
    flows: tuple[Flow, ...]
    paths: tuple[Route, ...]
    barrier: float
    """Seconds of a barrier over one rank a host: an operation without data. 0: a single host."""
    seconds: float
    """What the measurement took."""

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return sum(host.ranks for host in self.hosts)

    def send_rate(self, host: int) -> float | None:
        """Bits a second that `host`'s link carries out, frames and all: the best that was seen. None: not measured."""
        return _best(flow.rate for flow in self.flows if flow.source == host)

    def receive_rate(self, host: int) -> float | None:
        """Bits a second that `host`'s link carries in, frames and all: the best that was seen. None: not measured."""
        return _best(flow.rate for flow in self.flows if flow.target == host)

    @property
    def link_rate(self) -> float | None:
        """Bits a second of the slowest link, which sets the pace of all. None: a single host."""
        rates = [rate for i in range(len(self.hosts)) for rate in (self.send_rate(i), self.receive_rate(i)) if rate]
        return min(rates, default=None)

    @property
    def latency(self) -> float | None:
        """Seconds of a small message between two servers: the median over pairs. None: a single host."""
        return statistics.median(path.latency for path in self.paths) if self.paths else None

    @property
    def hosts_on_a_machine(self) -> int:
        """The most hosts that share a machine; 1 on a cluster."""
        machines = [host.machine for host in self.hosts]
        return max(machines.count(machine) for machine in machines)

    def to_json(self) -> dict[str, Any]:
        """Plain values, with what follows from them under ``summary``, for readers that aren't us."""
        summary = {
            "ranks": self.ranks,
            "link_rate_bits_per_second": self.link_rate,
            "latency_seconds": self.latency,
            "hosts_on_a_machine": self.hosts_on_a_machine,
        }
        return {"version": VERSION, **asdict(self), "summary": summary}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Topology:
        """Inverse of `to_json`. Raises ContractError."""
        if value.get("version") != VERSION:
            raise ContractError(f"a topology of version {value.get('version')!r}; this hdp reads version {VERSION}")
        try:
            return Topology(
                hosts=tuple(Host.from_json(host) for host in value["hosts"]),
                flows=tuple(Flow(**flow) for flow in value["flows"]),
                paths=tuple(Route(**path) for path in value["paths"]),
                barrier=float(value["barrier"]),
                seconds=float(value["seconds"]),
            )
        except (KeyError, TypeError, ValueError) as exc:
            raise ContractError(f"a topology that can't be read: {exc!r}") from exc

    def save(self, path: Path) -> None:
        """Write it, whole or not at all. Raises OSError."""
        write_json(path, self.to_json())

    @staticmethod
    def load(path: Path) -> Topology:
        """Read what `save` wrote. Raises ContractError."""
        return Topology.from_json(read_json(path))


def _best(rates: Iterable[float]) -> float | None:
    best = max(rates, default=math.nan)
    return None if math.isnan(best) else best * FRAMING * 8
