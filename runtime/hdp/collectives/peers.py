"""What an allreduce costs by the algorithms of other libraries, in the same model as `cost`. Pure functions.

`flat_ring` is that of gloo and of Horovod over gloo; `recursive_doubling` and `binomial_tree` are those of MPI
libraries for short vectors; `double_tree` is NCCL's pipelined pair of binary trees; `two_level_ring` reduces in the
host, goes round the hosts, and broadcasts in the host, one stage after the other, as Horovod's hierarchical one does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from hdp.collectives.machine import Cluster


@dataclass(frozen=True)
class Estimate:
    """One algorithm's allreduce."""

    algorithm: str
    hops: int
    """Steps that follow each other."""
    sent_bytes: int
    """Data that the busiest host's link carries in each direction."""
    seconds: float


def flat_ring(size: float, cluster: Cluster) -> Estimate:
    """A ring of all ranks, those of a host one after the other: each sends 2(W-1)/W of the vector to the next.

    Ranks of a host talk over TCP too, so each byte costs what it costs on the wire.
    """
    world, m = cluster.size, cluster.machine
    steps, each = 2 * (world - 1), 2 * (world - 1) / world * size
    sent = each if cluster.hosts > 1 else 0.0
    start = cluster.link.latency * (cluster.hosts > 1) + m.message + 2 * m.wake
    step = max(start, cluster.cpu(cluster.local * 3 * m.message))
    work = cluster.cpu(cluster.local * each * (m.wire + m.move / 2))
    stream = max(cluster.link.seconds(sent), each * (m.wire + m.move / 2), work)
    # Segments follow each other round the ring: while there are any, the start of a step hides behind the stream.
    return Estimate("flat ring", steps, round(sent), max(steps * step, stream) + step)


def recursive_doubling(size: float, cluster: Cluster) -> Estimate:
    """One rank a host, log2 N exchanges of the whole vector; then it is copied out."""
    steps = _log2(cluster.hosts)
    return _tree("recursive doubling", size, cluster, steps, float(steps))


def binomial_tree(size: float, cluster: Cluster) -> Estimate:
    """One rank a host, the whole vector up a binomial tree and down again."""
    steps = 2 * _log2(cluster.hosts)
    return _tree("binomial tree", size, cluster, steps, float(steps))


def double_tree(size: float, cluster: Cluster) -> Estimate:
    """Two binary trees with half of the vector each, pipelined: a host is a leaf in one and a node in the other."""
    steps = 2 * _log2(cluster.hosts)
    return _tree("double binary tree", size, cluster, steps, min(2.0, float(steps)))


def two_level_ring(size: float, cluster: Cluster) -> Estimate:
    """Reduced in each host, round a ring of the hosts, and broadcast in each host; no two stages at once."""
    hosts, m = cluster.hosts, cluster.machine
    steps, each = 2 * (hosts - 1), 2 * (hosts - 1) / hosts * size
    start = cluster.link.latency + m.message + 2 * m.wake
    ring = steps * max(start, cluster.cpu(3 * m.message)) + max(
        cluster.link.seconds(each), each * (m.wire + m.move / 2), cluster.cpu(each * (m.wire + m.move / 2))
    )
    return Estimate("two-level ring", steps, round(each), _in_host(size, cluster) + ring)


ALL: tuple[Callable[[float, Cluster], Estimate], ...] = (
    flat_ring,
    recursive_doubling,
    binomial_tree,
    double_tree,
    two_level_ring,
)


def _log2(hosts: int) -> int:
    return math.ceil(math.log2(hosts)) if hosts > 1 else 0


def _tree(name: str, size: float, cluster: Cluster, steps: int, vectors: float) -> Estimate:
    """`steps` after each other, in which the busiest link carries the vector `vectors` times."""
    m = cluster.machine
    start = cluster.link.latency + m.message + 2 * m.wake
    sent = vectors * size
    stream = max(cluster.link.seconds(sent), sent * (m.wire + m.move / 2), cluster.cpu(sent * (m.wire + m.move / 2)))
    between = steps * max(start, cluster.cpu(3 * m.message)) + stream
    return Estimate(name, steps, round(sent), _in_host(size, cluster) + between)


def _in_host(size: float, cluster: Cluster) -> float:
    """Into one rank's array by shared memory, slices at once on all ranks, and out again, before and after the rest."""
    m, local = cluster.machine, cluster.local
    if local == 1:
        return 0.0
    move = m.move_alone  # the network rests meanwhile
    return max(2 * size * move + 4 * m.wake, cluster.cpu(2 * local * size * move + 4 * local * m.message))
