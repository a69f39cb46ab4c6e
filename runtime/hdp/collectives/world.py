"""What a host's server and its ranks agree on: the hosts, and the numbers of the arena."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from hdp.contract.errors import InvalidCollective

#: Chunks in transfer at once, and bytes of each. In the data path's trial four slots of 256 to 512 KiB were best:
#: the working set stays in the L2 cache, and no switch buffer overflows.
SLOTS = 4
#: On a host with GPUs a chunk is longer on its way: it comes by a copy, passes each rank in turn, and leaves by a copy.
GPU_SLOTS = 16
SLOT_BYTES = 512 << 10


@dataclass(frozen=True)
class Host:
    """One host of the job."""

    name: str
    address: str
    """Where its server listens for the other servers."""
    local_size: int
    port: int = 0


@dataclass(frozen=True)
class World:
    """All hosts; ranks are numbered host by host."""

    hosts: tuple[Host, ...]

    @property
    def size(self) -> int:
        """Number of ranks."""
        return sum(h.local_size for h in self.hosts)

    @property
    def local_sizes(self) -> list[int]:
        """Ranks of each host."""
        return [h.local_size for h in self.hosts]

    @property
    def names(self) -> list[str]:
        """Name of each host."""
        return [h.name for h in self.hosts]

    def host_of(self, rank: int) -> int:
        """Index of the host of `rank`."""
        first = 0
        for index, host in enumerate(self.hosts):
            first += host.local_size
            if rank < first:
                return index
        raise InvalidCollective(f"rank {rank} in a world of {self.size} ranks")

    def local_rank(self, rank: int) -> int:
        """Place of `rank` among the ranks of its host."""
        return rank - sum(h.local_size for h in self.hosts[: self.host_of(rank)])

    def to_json(self) -> list[dict[str, Any]]:
        """Plain values."""
        return [asdict(h) for h in self.hosts]

    @staticmethod
    def from_json(value: list[dict[str, Any]], port: int = 0) -> World:
        """Inverse of `to_json`; `port` where a host has none of its own."""
        return World(tuple(Host(**{"port": port, **h}) for h in value))
