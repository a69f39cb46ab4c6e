"""Measures a job's topology with the library's own operations, so that it sees what they see: TLS, wake-ups and all.

One rank a host takes part, its first; the others wait for the result. Messages go between pairs of hosts in the rounds
of a tournament, in which every host has one partner at a time. Hosts that share a machine also share its processors:
of their pairs only so many go at once that they don't measure each other.

- *latency*: a message of 8 bytes there and back. A send is announced to hosts[0], which grants it to both ends; so
  there and back are 6 messages one after the other between servers, or 4 where one of the two is hosts[0] itself.
- *rate*: two hosts give each other as much, a little first, and then so much that it lasts long enough. The rate is
  the difference in bytes over that in time: start-up costs are in both. What a token bucket lets pass unshaped is sent
  before each, uncounted.

``python -m hdp.collectives.probe``, as every rank of a job, has the first rank write the topology as JSON.
"""

from __future__ import annotations

import json
import logging
import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hdp.collectives import hostfacts, operations
from hdp.collectives.arrays import Array
from hdp.collectives.communicator import Communicator, Group, from_environment
from hdp.collectives.topology import Flow, Host, Route, Topology
from hdp.collectives.work import Work
from hdp.contract import env
from hdp.contract.files import Layout
from hdp.contract.units import format_rate, format_time
from hdp.contract.zipping import zip_strict

logger = logging.getLogger(__name__)

#: Name of the group of the hosts' first ranks.
_LEADERS = "hdp topology"
#: Pairs to take the latency of: all of 16 hosts, and a sample of the pairs of more.
_MOST_PAIRS = 128
#: Round trips of which the median counts, after one that warms up.
_ROUND_TRIPS = 5
#: Rounds in which every host measures the rate to a partner. With two, a slow link doesn't pass for its partner's.
_RATE_ROUNDS = 2
#: The short message, and what goes before each that counts: the 128 KiB that an emulated link lets pass unshaped. The
#: long one aims at _RATE_SECONDS, and is grown again while it takes less than half of that.
_SHORT_BYTES = 128 << 10
_RATE_SECONDS = 0.02
_MOST_BYTES = 64 << 20

#: At most so long for all together, and for latencies. Pairs that are left then aren't measured.
_SECONDS = 1.6
_LATENCY_SECONDS = 0.4

#: The environment variable that asks for it: measuring takes 0.1 s for two hosts, and up to 2 s for many.
ASKED = env.TOPOLOGY.name

Pair = tuple[int, int]


def discover(comm: Communicator) -> Topology:
    """Measure. Every rank of the job calls it, and gets the same answer; takes less than 2 s for 16 hosts.

    Operations in flight on the job's links would be measured with it. Raises what any operation does.
    """
    began = time.perf_counter()
    firsts = [sum(comm.layout.local_sizes[:i]) for i in range(len(comm.layout.hosts))]
    found: dict[str, Any] | None = None
    if comm.rank in firsts:
        leaders = comm.group(firsts, _LEADERS)
        found = _measure(comm, leaders, began).to_json()
    return Topology.from_json(_from_first(comm.world, found))


def at_start(comm: Communicator, environ: Mapping[str, str] = os.environ) -> Topology | None:
    """`discover` and `keep`, where the environment has HDP_TOPOLOGY=1, as every rank's must then; None elsewhere."""
    if environ.get(ASKED) != "1":
        return None
    topology = discover(comm)
    if comm.rank == 0:
        path = keep(topology, environ)
        link = "" if topology.link_rate is None else f", {format_rate(topology.link_rate)}"
        where = "" if path is None else f"; it is in {path}"
        took = format_time(topology.seconds)
        size = f"{len(topology.hosts)} hosts, {topology.ranks} ranks"
        logger.info("topology: %s%s, measured in %s%s", size, link, took, where)
    return topology


def keep(topology: Topology, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Write `topology` into the job's output, where this process's environment names a tree with one.

    Returns the file, or None where there is no such folder (a rank that plain torchrun started).
    """
    layout = Layout(Path(environ.get(env.BASE_DIR.name, env.BASE_DIR.default)))
    if not layout.output_data.is_dir():
        return None
    path = layout.output_data / "hdp-topology.json"
    try:
        topology.save(path)
    except OSError as exc:
        logger.warning("the topology can't be kept in %s: %s", path, exc)
        return None
    return path


# ---- among the first ranks of the hosts ------------------------------------------------------------------------------


def _measure(comm: Communicator, leaders: Group, began: float) -> Topology:
    hosts = _hosts(comm, leaders)
    paths = _latencies(leaders, hosts, time.perf_counter() + _LATENCY_SECONDS)
    flows = _rates(leaders, hosts, began + _SECONDS)
    barrier = _barrier_time(leaders)
    trips = {(one, other): trip for one, mine in enumerate(_gather(leaders, paths)) for other, trip in mine}
    return Topology(
        hosts=hosts,
        flows=tuple(Flow(*flow) for mine in _gather(leaders, flows) for flow in mine),
        paths=tuple(Route(*pair, latency) for pair, latency in one_way(trips).items()),
        barrier=barrier,
        seconds=time.perf_counter() - began,
    )


def _hosts(comm: Communicator, leaders: Group) -> tuple[Host, ...]:
    facts = _gather(leaders, hostfacts.facts())
    speeds = _core_speeds(leaders, [fact["machine"] for fact in facts])
    return tuple(
        Host.from_json({"name": host.name, "address": host.address, "ranks": host.local_size, **fact, **speed})
        for host, fact, speed in zip_strict(comm.layout.hosts, facts, speeds)
    )


def _latencies(leaders: Group, hosts: Sequence[Host], until: float) -> list[tuple[int, float]]:
    """(partner, seconds of a round trip), where this host is the lower one of the pair."""
    found = []
    for batch in _latency_batches(hosts):
        for one, other in batch:
            if leaders.rank == one:
                found.append((other, _round_trip(leaders, other, first=True)))
            elif leaders.rank == other:
                _round_trip(leaders, one, first=False)
        if not _time_left(leaders, until):
            break
    return found


def _rates(leaders: Group, hosts: Sequence[Host], until: float) -> list[tuple[int, int, float]]:
    """(source, target, bytes a second), where this host is the target."""
    found, me = [], leaders.rank
    for batch in _rate_batches(hosts):
        for pair in batch:
            if me in pair:
                group = leaders.comm.group([leaders.ranks[host] for host in pair], _LEADERS)
                found.append((pair[0] + pair[1] - me, me, _rate(group)))
        if not _time_left(leaders, until):
            break
    return found


def _time_left(leaders: Group, until: float) -> bool:
    """Whether hosts[0] has not come to `until`; and nobody goes on before all are here."""
    left = np.array([time.perf_counter() < until])
    _pause(leaders)
    return bool(_result(operations.broadcast(left, leaders))[0])


def one_way(trips: Mapping[Pair, float]) -> dict[Pair, float]:
    """Seconds from server to server, from round trips by pair (the lower host first).

    With h(i,j) what is sought, t(0,j) = 4 h(0,j), and t(i,j) = 2 h(0,i) + 2 h(0,j) + 2 h(i,j). Where a pair's way to
    hosts[0] wasn't measured, or noise leaves less than a quarter of the mean, the mean stands in: t/6.
    """
    ways = {pair: trip / 4 for pair, trip in trips.items() if pair[0] == 0}
    for (one, other), trip in trips.items():
        if one == 0:
            continue
        mean = trip / 6
        first = trips.get((0, one), 4 * mean) + trips.get((0, other), 4 * mean)
        ways[one, other] = max((trip - first / 2) / 2, mean / 4)
    return ways


def rounds(count: int) -> Iterator[list[Pair]]:
    """The rounds of a tournament of `count` players, who all meet once; pairs have the lower one first.

    One stays, the others move round it. An odd one out in each round where `count` is odd.
    """
    players = list(range(count + count % 2))
    for _ in range(len(players) - 1):
        half = len(players) // 2
        met = zip_strict(players[:half], reversed(players[half:]))
        yield [(min(pair), max(pair)) for pair in met if max(pair) < count]
        players.insert(1, players.pop())


def batches(pairs: Sequence[Pair], machines: Sequence[str], at_once: Mapping[str, int]) -> Iterator[list[Pair]]:
    """`pairs` in groups that may go at once: at most ``at_once[machine]`` of those that lie within one machine."""
    left = list(pairs)
    while left:
        room, batch = dict(at_once), []
        for pair in left:
            machine = machines[pair[0]]
            if machine != machines[pair[1]]:
                batch.append(pair)
            elif room[machine] > 0:
                room[machine] -= 1
                batch.append(pair)
        yield batch
        left = [pair for pair in left if pair not in batch]


def _latency_batches(hosts: Sequence[Host]) -> Iterator[list[Pair]]:
    pairs = 0
    for met in rounds(len(hosts)):
        if pairs + len(met) > max(_MOST_PAIRS, len(hosts)):
            return
        pairs += len(met)
        yield from _batches(met, hosts)


def _rate_batches(hosts: Sequence[Host]) -> Iterator[list[Pair]]:
    for number, met in enumerate(rounds(len(hosts))):
        if number == _RATE_ROUNDS:
            return
        yield from _batches(met, hosts)


def _batches(pairs: Sequence[Pair], hosts: Sequence[Host]) -> Iterator[list[Pair]]:
    at_once = {host.machine: max(1, host.cpus // 4) for host in hosts}  # two servers and two ranks work for a pair
    return batches(pairs, [host.machine for host in hosts], at_once)


def _core_speeds(leaders: Group, machines: Sequence[str]) -> list[dict[str, float]]:
    """Every host's `hostfacts.core_speed`: measured by one host of each machine, while the others wait."""
    measures = machines.index(machines[leaders.rank]) == leaders.rank
    speed = hostfacts.core_speed() if measures else None
    of_machine = {m: s for m, s in zip_strict(machines, _gather(leaders, speed)) if s is not None}
    return [{"copy_rate": of_machine[m][0], "add_rate": of_machine[m][1]} for m in machines]


def _round_trip(leaders: Group, partner: int, *, first: bool) -> float:
    """Median seconds from the start of a send to the end of what comes back."""
    word = np.zeros(1, np.int64)
    times = []
    for _ in range(1 + _ROUND_TRIPS):
        began = time.perf_counter()
        if first:
            operations.send(word, leaders, partner).wait()
            operations.recv(word, leaders, partner).wait()
        else:
            operations.recv(word, leaders, partner).wait()
            operations.send(word, leaders, partner).wait()
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def _rate(pair: Group) -> float:
    """Bytes a second that come from the other one of two hosts while as much goes there."""
    short = min(_swap(pair, _SHORT_BYTES) for _ in range(2))  # one that was held up would make the link look faster
    size, seconds = _SHORT_BYTES, short
    while True:
        decided = _result(operations.broadcast(np.array([_next_size(size, seconds)]), pair))  # by the first one
        if decided[0] == 0:
            break
        size = int(decided[0])
        seconds = _swap(pair, size)
    if size == _SHORT_BYTES or seconds <= short:
        return size / seconds
    return (size - _SHORT_BYTES) / (seconds - short)


def _next_size(size: int, seconds: float) -> int:
    """Bytes of the next message; 0: the last one was long enough."""
    if seconds >= _RATE_SECONDS / 2 or size == _MOST_BYTES:
        return 0
    return int(min(_MOST_BYTES, max(8 * size, size * _RATE_SECONDS / seconds)))


def _swap(pair: Group, size: int) -> float:
    """Seconds in which two hosts give each other `size` bytes. (Two sends would go one after the other.)"""
    own, both = np.ones(size, np.uint8), np.empty((2, size), np.uint8)
    both.fill(0)  # memory that is touched here isn't made while it counts
    operations.allgather(own[:_SHORT_BYTES], pair).wait()
    _pause(pair)
    began = time.perf_counter()
    operations.allgather(own, pair, out=both).wait()
    return time.perf_counter() - began


def _barrier_time(leaders: Group) -> float:
    """Median seconds of a barrier; the slowest rank's."""
    if leaders.size == 1:
        return 0.0
    times = []
    for _ in range(1 + _ROUND_TRIPS):
        began = time.perf_counter()
        _pause(leaders)
        times.append(time.perf_counter() - began)
    return float(max(_gather(leaders, statistics.median(times[1:]))))


def _pause(leaders: Group) -> None:
    operations.barrier(leaders).wait()


# ---- values between ranks --------------------------------------------------------------------------------------------


def _gather(group: Group, value: Any) -> list[Any]:
    """Every rank's value, by rank."""
    data = np.frombuffer(json.dumps(value).encode(), np.uint8)
    counts = _result(operations.allgather(np.array([data.size]), group)).ravel().tolist()
    whole = _result(operations.allgather(data, group, counts=counts)).tobytes()
    ends = np.cumsum(counts).tolist()
    return [json.loads(whole[end - count : end]) for end, count in zip_strict(ends, counts)]


def _from_first(group: Group, value: Any) -> Any:
    """The value of the group's first rank."""
    data = np.frombuffer(json.dumps(value).encode(), np.uint8)
    count = _result(operations.broadcast(np.array([data.size]), group))
    data = data.copy() if group.rank == 0 else np.zeros(int(count[0]), np.uint8)
    return json.loads(_result(operations.broadcast(data, group)).tobytes())


def _result(work: Work) -> Array:
    """Of an operation that gives every rank an array."""
    array = work.wait()
    assert array is not None
    return array


def main() -> int:
    """Measure, as a rank."""
    comm = from_environment()
    topology = discover(comm)
    if comm.rank == 0:
        json.dump(topology.to_json(), sys.stdout)
    comm.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
