"""What an operation of this library costs: algorithm, chunks, hops, bytes and time. Pure functions.

An alpha-beta model of the library as it is built (the shares: route.h; the chunks: cut.cc), with processors as a third
resource beside latency and bandwidth, since on fast links and on emulated hosts they are the limit.

A small allreduce (64 KiB or less) and a barrier go *eagerly* (eager.h): each rank leaves its data in a cell, the last
one of a host adds, the hosts exchange, and all copy out; in one hop where that is little, else in two. How the time of
any other operation comes about:

1. *announce*: every rank tells its server, servers tell hosts[0], which grants the operation to all.
2. *fill*: the first chunk goes through all stages one after the other: copied in by one rank after the other,
   exchanged in its hops, copied out.
3. *stream*: the other chunks follow as fast as the slowest resource lets them: the link, a server's thread, a rank's
   own core, or all processors together.

`peers` has the same for other libraries' algorithms. Times are in seconds, rates in bytes a second, sizes in bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hdp.collectives.library import Kind
from hdp.collectives.machine import Cluster
from hdp.contract.errors import InvalidCollective

#: eager.h: an allreduce of up to so many bytes goes eagerly ...
EAGER_BYTES = 64 << 10
#: ... and in one hop while a host sends no more than so many by it: its whole sum to all others.
ONE_HOP_BYTES = 48 << 10
#: cut.cc: a chunk is a sixteenth of the vector, within these limits; on one host the upper one depends on its ranks.
_LEAST_CHUNK = 64 << 10
_ONE_HOST_CHUNK = {True: 128 << 10, False: 256 << 10}
_HEADER_BYTES = 40

MOVES_TO_ALL = frozenset({Kind.ALLREDUCE, Kind.REDUCE, Kind.BROADCAST})
BY_PIECE = frozenset({Kind.ALLGATHER, Kind.REDUCE_SCATTER})
_SUMS = frozenset({Kind.ALLREDUCE, Kind.REDUCE, Kind.REDUCE_SCATTER})


@dataclass(frozen=True)
class Part:
    """A part of the time."""

    name: str
    seconds: float
    what: str


@dataclass(frozen=True)
class Plan:
    """How an operation goes, and what it is expected to take."""

    kind: str
    size: int
    algorithm: str
    chunks: int
    chunk_bytes: int
    hops: int
    """Messages, one after the other, that a byte of the result depends on."""
    sent_bytes: int
    """Data that the busiest host's link carries in its busier direction."""
    least_bytes: int
    """The least that any algorithm without help from the network can do with there."""
    messages: int
    """Data messages that the busiest host sends or receives, whichever is more."""
    seconds: float
    limit: str
    """What the stream of chunks waits for."""
    parts: tuple[Part, ...] = field(default=())


@dataclass(frozen=True)
class _Traffic:
    """What an operation moves, all chunks together. Bytes and messages: the busiest host's, in its busier direction."""

    hops: int
    sent: float
    least: float
    fan: int  # messages a chunk
    through: float  # bytes that the busiest server handles, sent and received, halved
    mean: float  # the same, of the mean host
    moves_in: float  # bytes that a rank puts into the arena
    moves_out: float  # bytes that it takes out: the mean rank
    busiest: float  # bytes that the busiest rank puts in and takes out
    total: float  # bytes that are cut into chunks


def plan(kind: Kind, size: int, cluster: Cluster, *, wire_ratio: float = 1.0, pause: bool = True) -> Plan:
    """The plan of an operation with the whole array of `size` bytes.

    size: bytes of the larger array that a rank has: of the vector for allreduce, reduce, broadcast, send and recv; of
    all pieces for the others. wire_ratio: 0.5 where a sum of float32 travels as a half type. pause: nothing ran
    before, so that a token bucket is full and processors sleep. Raises InvalidCollective.
    """
    if size < 0:
        raise InvalidCollective(f"size is {size}; expected 0 or more")
    if kind == Kind.BARRIER:
        return _eager(kind, 0, cluster, wire_ratio, pause)
    if size == 0:
        return _nothing_to_move(kind, cluster, pause)
    if kind == Kind.ALLREDUCE and size <= EAGER_BYTES:
        return _eager(kind, size, cluster, wire_ratio, pause)
    traffic = _traffic(kind, size, cluster, wire_ratio)
    cut = traffic.total * (wire_ratio if kind in _SUMS else 1.0)
    chunk = min(cut, chunk_bytes(kind, cut, cluster))
    chunks = math.ceil(cut / chunk)
    parts, limit = _parts(kind, traffic, chunks, cluster, pause)
    return Plan(
        kind=kind.name.lower(),
        size=size,
        algorithm=_algorithm(kind, cluster),
        chunks=chunks,
        chunk_bytes=int(chunk),
        hops=traffic.hops,
        sent_bytes=round(traffic.sent),
        least_bytes=round(traffic.least),
        messages=chunks * traffic.fan,
        seconds=sum(part.seconds for part in parts),
        limit=limit,
        parts=parts,
    )


def chunk_bytes(kind: Kind, total: float, cluster: Cluster) -> int:
    """Bytes of a chunk where `total` bytes are cut. Raises InvalidCollective where the arena is too small for all."""
    one_host = cluster.hosts == 1
    most = min(cluster.slot_bytes, _ONE_HOST_CHUNK[cluster.size <= 2] if one_host else cluster.slot_bytes)
    chunk = int(min(max(total / 16, min(_LEAST_CHUNK, most)), most))
    if kind in BY_PIECE:  # each piece may round up by an element
        room = cluster.slot_bytes - 8 * cluster.size
        if room <= 0:
            raise InvalidCollective(
                f"{kind.name.lower()} over {cluster.size} ranks needs a larger arena than slots of "
                f"{cluster.slot_bytes} bytes"
            )
        chunk = min(chunk, room)
    return chunk


# ---- what moves ------------------------------------------------------------------------------------------------------


def _traffic(kind: Kind, size: int, cluster: Cluster, wire_ratio: float) -> _Traffic:
    kind = Kind.SEND if kind == Kind.RECV else kind
    hosts, local, world = cluster.hosts, cluster.local, cluster.size
    far = hosts > 1
    travels = size * wire_ratio
    vector = travels * (hosts - 1) / hosts  # of a vector, the shares of the other hosts
    away = travels * (world - local) / world  # of all pieces, those of the other hosts' ranks
    piece = size / world
    moves_in, moves_out = {
        Kind.ALLREDUCE: (size, size),
        Kind.REDUCE: (size, size / local),
        Kind.BROADCAST: (size / local, size),
        Kind.REDUCE_SCATTER: (size, piece),
        Kind.ALLGATHER: (piece, size),
        Kind.ALLTOALL: (size, size),
        Kind.GATHER: (piece, size / local),
        Kind.SCATTER: (size / local, piece),
        Kind.SEND: (size / 2, size / 2),
    }[kind]
    busiest = moves_in + moves_out if kind in (Kind.ALLREDUCE, Kind.ALLTOALL) else size + min(piece, size)
    if not far and kind in (Kind.ALLREDUCE, Kind.REDUCE):
        moves_out *= (local - 1) / local  # the last rank adds straight into its own array
    # Bytes that a server sends and receives, halved: of the busiest one, and of the mean one.
    sent, least, through, mean = {
        Kind.ALLREDUCE: (2 * vector, 2 * vector, 2 * vector, 2 * vector),
        Kind.REDUCE: (2 * vector, travels * far, 1.5 * vector, vector + vector / hosts),
        Kind.BROADCAST: (2 * vector, travels * far, vector, vector),
        Kind.REDUCE_SCATTER: (away, away, away, away),
        Kind.ALLGATHER: (away, away, away, away),
        Kind.ALLTOALL: (local * away, local * away, local * away, local * away),
        Kind.GATHER: (away, away, away / 2, away / hosts),
        Kind.SCATTER: (away, away, away / 2, away / hosts),
        Kind.SEND: (travels * far, travels * far, travels * far / 2, travels * far / hosts),
    }[kind]
    fan = {
        Kind.REDUCE_SCATTER: world - local,
        Kind.ALLGATHER: local * (hosts - 1),
        Kind.ALLTOALL: local * (world - local),
        Kind.GATHER: world - local,
        Kind.SCATTER: world - local,
        Kind.SEND: int(far),
    }.get(kind, 2 * (hosts - 1))
    return _Traffic(
        hops=far * (2 if kind in MOVES_TO_ALL else 1),
        sent=sent,
        least=least,
        fan=fan,
        through=through,
        mean=mean,
        moves_in=moves_in,
        moves_out=moves_out,
        busiest=busiest,
        total=_cut_bytes(kind, size, local, world),
    )


def _cut_bytes(kind: Kind, size: int, local: int, world: int) -> float:
    """Bytes that are cut into chunks: where ranks exchange, all that the busiest host's ranks send and receive."""
    if kind == Kind.ALLTOALL:
        return 2.0 * local * size
    if kind in (Kind.GATHER, Kind.SCATTER):
        return size * (1 + local / world)
    return float(size)


def _algorithm(kind: Kind, cluster: Cluster) -> str:
    if cluster.hosts == 1:
        return "inside a host: a chain of ranks adds in the arena" if kind in _SUMS else "inside a host: the arena"
    return {
        Kind.ALLREDUCE: "two hops: each host sums its share of all, and sends it to all",
        Kind.REDUCE: "two hops: each host sums its share of all, and sends it to the root's host",
        Kind.BROADCAST: "two hops: the root's host sends each host its share, and that sends it to all",
        Kind.REDUCE_SCATTER: "one hop: each host sends its sums of other hosts' pieces to them",
        Kind.ALLGATHER: "one hop: each host sends its ranks' pieces to all others",
    }.get(kind, "one hop: straight to the receiver's host")


# ---- what it takes ---------------------------------------------------------------------------------------------------


def _nothing_to_move(kind: Kind, cluster: Cluster, pause: bool) -> Plan:
    part = _announce(cluster, pause)
    name = "announced and granted: there is nothing to move"
    return Plan(kind.name.lower(), 0, name, 0, 0, 0, 0, 0, 0, part.seconds, part.name, (part,))


def _eager(kind: Kind, size: int, c: Cluster, wire_ratio: float, pause: bool) -> Plan:
    """Of what is too small to be announced. size 0: a barrier."""
    m, others = c.machine, c.hosts - 1
    one = others == 1 or others * size * wire_ratio <= ONE_HOP_BYTES  # two hosts send as much either way
    hops = (1 if one else 2) if others else 0
    sent = size * wire_ratio * (others if one else 2 * others / c.hosts)
    move = m.move if others else m.move_alone
    messages = hops * others
    server = messages * m.message + sent * m.wire
    path = {
        "call": m.call + size * move + (m.cold if pause else 0.0),
        "sum": m.message + size * move * c.local,
        "hops": hops * (c.link.latency + 2 * m.wake) + server + c.link.seconds(sent, free=pause) if hops else 0.0,
        "copy out": m.wake + size * move,
    }
    whats = {
        "call": "each rank puts its data into a cell of its own",
        "sum": "the last rank of a host adds all cells",
        "hops": "the hosts' sums, between servers",
        "copy out": "every rank wakes, and copies the result",
    }
    work = c.cpu(c.local * (m.call + m.message + (2 + 1) * size * move) + server)
    stretch = max(1.0, work / sum(path.values()))
    parts = tuple(Part(name, seconds * stretch, whats[name]) for name, seconds in path.items() if seconds > 0)
    how = {0: "inside the host", 1: "in one hop, every host to all others"}.get(hops, "in two hops, by shares")
    return Plan(
        kind=kind.name.lower(),
        size=size,
        algorithm=f"eager, without an announcement: cells {how}",
        chunks=int(size > 0),
        chunk_bytes=size,
        hops=hops,
        sent_bytes=round(sent),
        least_bytes=round(2 * others / c.hosts * size * wire_ratio),
        messages=messages,
        seconds=sum(part.seconds for part in parts),
        limit="the processors" if stretch > 1 else max(parts, key=lambda part: part.seconds).name,
        parts=parts,
    )


def _announce(cluster: Cluster, pause: bool) -> Part:
    """Rank to server, to hosts[0], and back. hosts[0] hears from all hosts, and answers all, one after the other."""
    m, hosts = cluster.machine, cluster.hosts
    far = hosts > 1
    path = 2 * m.wake + m.call + (m.cold if pause else 0.0)
    work = cluster.local * (m.call + m.message)
    if far:
        path += 2 * (cluster.link.latency + m.wake) + (hosts - 1) * m.message
        work += 4 * m.message
    what = "ranks to servers, servers to hosts[0], and back" if far else "ranks to their server, and back"
    return Part("announce", max(path, cluster.cpu(work)), what)


def _parts(kind: Kind, t: _Traffic, chunks: int, c: Cluster, pause: bool) -> tuple[tuple[Part, ...], str]:
    m, link = c.machine, c.link
    move = m.move if t.hops else m.move_alone
    in_turn = kind in _SUMS
    local_cores = max(1.0, min(c.local, m.cores / m.hosts))
    # of a chunk
    moves_in, moves_out = t.moves_in * move / chunks, t.moves_out * move / chunks
    server = (t.through * m.wire + t.fan * chunks * m.message) / chunks
    mean_server = (t.mean * m.wire + t.fan * chunks * m.message) / chunks
    wakes = (2 * c.local + (2 + t.hops if t.hops else 0)) * m.message
    work = c.local * (moves_in + moves_out) + mean_server + wakes
    fill = {
        "copy in": (c.local if in_turn else c.local / local_cores) * moves_in + (c.local if in_turn else 1) * m.wake,
        "hops": t.hops * (link.latency + 2 * m.wake) + server + link.seconds(t.sent / chunks, free=pause),
        "copy out": c.local / local_cores * moves_out + m.wake,
    }
    if not t.hops:
        fill["hops"] = 0.0
    path = sum(fill.values())
    resources = {
        "the link": link.seconds(t.sent / chunks) if t.hops else 0.0,
        "a server's thread": server,
        "a rank's core": t.busiest * move / chunks + 2 * m.message,
        "the processors": c.cpu(work),
    }
    limit, pace = max(resources.items(), key=lambda item: item[1])
    first = max(path, c.cpu(work))
    if path < c.cpu(work):
        fill = {name: seconds / path * first for name, seconds in fill.items()} if path else fill
    parts = [
        _announce(c, pause),
        Part("copy in", fill["copy in"], "the first chunk, from the ranks into the arena"),
        Part("hops", fill["hops"], "the first chunk, between hosts"),
        Part("stream", (chunks - 1) * pace, f"the other {chunks - 1} chunks, at the pace of {limit}"),
        Part("copy out", fill["copy out"], "the last chunk, from the arena to the ranks"),
    ]
    if chunks == 1:
        limit = max((part for part in parts), key=lambda part: part.seconds).name
    return tuple(part for part in parts if part.seconds > 0), limit
