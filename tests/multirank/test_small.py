"""Small allreduces and barriers, which no server orders: many in flight, failures, and the bits of large ones.

Every rank has 16 cells for them, and announces what is not complete after 20 ms.
"""

import random
import re
import time

import numpy as np
import pytest
from calls import leave
from cluster import Cluster
from fault_proxy import FaultProxy
from faults import Fault, Kind

import hdp.collectives as hc
from hdp.contract.errors import CollectiveMismatch, CollectiveTimeout

CELLS = 16
worlds = pytest.mark.parametrize("cluster", [[3], [2, 2], [1, 1, 1]], indirect=True, ids=str)


# ---- many in flight --------------------------------------------------------------------------------------------------


def _all_in_own_order(comm, tags, seed):
    """Start sums of (rank + 1) * (place of the tag + 1) in an order of this rank's own, wait for them in another."""
    rng = random.Random(f"{seed} {comm.rank}")
    places = list(range(len(tags)))
    rng.shuffle(places)
    group = comm.group(range(comm.world.size), "own orders")
    works = {
        place: hc.allreduce(np.full(7, (comm.rank + 1.0) * (place + 1)), group, tag=tags[place], timeout=20)
        for place in places
    }
    rng.shuffle(places)
    totals = {place: works[place].wait().tolist() for place in places}
    return [totals[place] for place in range(len(tags))]


@worlds
@pytest.mark.parametrize("seed", range(3))
def test_more_than_there_are_cells_in_an_order_of_each_rank(cluster, seed):
    """60 tags: no rank has room for those that the others wait for, so some of them go another way."""
    ranks = sum(range(1, cluster.size + 1))
    expected = [[float(ranks * (place + 1))] * 7 for place in range(60)]
    assert cluster.run(_all_in_own_order, [f"t{place}" for place in range(60)], seed) == [expected] * cluster.size


def _hundred(comm, late):
    if comm.rank == late:
        time.sleep(0.1)  # all others have announced theirs
    works = [hc.allreduce(np.array([comm.rank + i], np.int64), comm.world, timeout=20) for i in range(100)]
    barrier = hc.barrier(comm.world, timeout=20)
    totals = [int(work.wait()[0]) for work in works]
    barrier.wait()
    return totals


@worlds
@pytest.mark.parametrize("late", [None, 0, 2])
def test_a_hundred_in_one_order(cluster, late):
    """More than there are cells, of one sequence; `late` calls when the others have announced theirs."""
    first = sum(range(cluster.size))
    assert cluster.run(_hundred, late) == [[first + i * cluster.size for i in range(100)]] * cluster.size


def _crossing(comm, rounds):
    """A ring of pairs and the world in turns, each rank its pairs in its own order."""
    size = comm.world.size
    groups = {pair: comm.group(pair) for pair in ((r, (r + 1) % size) for r in range(size)) if comm.rank in pair}
    pairs, totals = list(groups), []
    random.Random(comm.rank).shuffle(pairs)
    for index in range(rounds):
        works = [
            hc.allreduce(np.full(20, comm.rank + index), groups[pair], tag=f"{pair}", timeout=20)
            for pair in pairs
            for _ in range(CELLS)
        ]
        whole = int(hc.allreduce(np.full(20, index), comm.world, timeout=20).wait()[0])
        totals.append(whole == index * size)
        totals += [
            int(w.wait()[0]) == sum(pair) + 2 * index for w, pair in zip(works, np.repeat(pairs, CELLS, 0), strict=True)
        ]
    return all(totals)


@pytest.mark.parametrize("cluster", [[3], [2, 2], [1, 1, 1]], indirect=True, ids=str)
def test_groups_that_overlap(cluster):
    """32 in flight of two groups that each rank starts in another order, and one of all ranks behind them."""
    assert cluster.run(_crossing, 5) == [True] * cluster.size


# ---- bits ------------------------------------------------------------------------------------------------------------


def _both_ways(comm, dtype, op, wire, ranks):
    """A sum of 4 KiB, and the same numbers at the beginning of one that is too large for cells."""
    if comm.rank not in ranks:
        return None
    group = comm.group(ranks, "bits")
    rng = np.random.default_rng(comm.rank)
    scale = 1.0 if np.dtype(dtype) == np.float16 else 1e3
    large = (rng.standard_normal(200_000) * scale ** rng.uniform(-1, 1, 200_000)).astype(dtype)
    n = 4096 // large.itemsize
    small = hc.allreduce(large[:n].copy(), group, op, wire=wire, timeout=20).wait()
    return small.tobytes() == hc.allreduce(large, group, op, wire=wire, timeout=20).wait()[:n].tobytes()


@worlds
@pytest.mark.parametrize("op", [hc.ReduceOp.SUM, hc.ReduceOp.AVG])
@pytest.mark.parametrize(
    ("dtype", "wire"),
    [("float32", None), ("float32", "bfloat16"), ("float32", "float16"), ("float16", None), ("float64", None)],
)
def test_the_bits_of_a_large_sum(cluster, dtype, wire, op):
    """Averages in a group whose ranks are in reverse order."""
    ranks = list(range(cluster.size))[:: -1 if op == hc.ReduceOp.AVG else 1]
    assert cluster.run(_both_ways, dtype, op, wire, ranks) == [True] * cluster.size


# ---- failures --------------------------------------------------------------------------------------------------------


def _odd_length(comm, n):
    start = time.monotonic()
    try:
        hc.allreduce(np.ones(n + (comm.rank == 1), np.float32), comm.world, timeout=20).wait()
    except CollectiveMismatch as exc:
        return str(exc), time.monotonic() - start
    return "no error", 0.0


@pytest.mark.parametrize("own_cluster", [[3], [1, 1, 1], [2, 1]], indirect=True, ids=str)
@pytest.mark.parametrize("count", [1, 16_000])  # of 3 hosts, the second goes in two hops
def test_a_mismatch_is_known_at_once_and_names_everybody(own_cluster, count):
    """Not only when the 20 s are over: what a rank called is told 20 ms later, and the verdict waits a second."""
    for text, seconds in own_cluster.try_run(_odd_length, count):
        assert re.search(rf"rank 0 \(.*\), rank 2 \(.*\) called allreduce\(float32\[{count}\], sum\)", text)
        assert re.search(rf"rank 1 \(algo-\d\) called allreduce\(float32\[{count + 1}\], sum\)", text)
        assert "called nothing yet" not in text
        assert seconds < 5


def _in_time(comm, seconds, timeout):
    time.sleep(seconds)
    start = time.monotonic()
    try:
        hc.barrier(comm.world, timeout=timeout).wait()
    except CollectiveTimeout as exc:
        return str(exc), time.monotonic() - start
    return "no error", 0.0


@pytest.mark.parametrize("own_cluster", [[3], [1, 1, 1]], indirect=True, ids=str)
def test_who_did_not_call_it_is_named_with_the_times(own_cluster):
    """Rank 2 doesn't call a barrier; rank 1 does, 0.3 s after rank 0, whose limit is 2 s."""
    own_cluster.run(_in_time, 0, 20)
    own_cluster.call(1, _in_time, 0.3, 20)
    own_cluster.call(0, _in_time, 0, 2)
    for text, seconds in own_cluster.collect(ranks=[0, 1]).values():
        told = r"barrier #2, barrier\(\), waited [2-4]\.\d s for rank 2 \(algo-\d\), which did not call"
        assert re.search(told, text)
        assert text.endswith("called so far: rank 2: 1")
        assert seconds < 8


def _last(comm, members, leaver):
    total = float(hc.allreduce(np.ones(4), comm.group(members), timeout=20).wait()[0])
    if comm.rank == leaver:
        comm.close()
    return total


@pytest.mark.parametrize("link", [(2, 1), (1, 0), (2, 0)])
def test_leaving_behind_the_last_sum_disturbs_nobody(link):
    """Of two hosts, once both hosts without the sequencer: the leaver has the sum 0.3 s before the other one."""
    leaver, stays = link
    slow = Fault(Kind.DELAY, link, direction=0, seconds=0.3)
    with FaultProxy() as proxy, Cluster([1, 1, 1], route=proxy.route) as cluster:
        for rank in link:
            cluster.call(rank, _last, sorted(link), None)
        cluster.collect(ranks=link)
        proxy.strike(slow)
        for rank in link:
            cluster.call(rank, _last, sorted(link), leaver)
        assert cluster.collect(ranks=link) == {leaver: 2.0, stays: 2.0}
        assert proxy.fired
        assert "".join(cluster.log(index) for index in range(3)) == ""


@pytest.mark.parametrize("own_cluster", [[4], [2, 2]], indirect=True, ids=str)
def test_all_leave_behind_their_last_sum(own_cluster):
    """Each as soon as it has it, while others may still wait for theirs."""
    everybody = list(range(own_cluster.size))
    for rank in everybody:
        own_cluster.call(rank, _last, everybody, rank)
    assert own_cluster.collect() == {rank: float(own_cluster.size) for rank in everybody}
    assert "".join(own_cluster.log(index) for index in range(len(own_cluster.sizes))) == ""


# ---- slow networks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("link", [(1, 0), (2, 1)])
@pytest.mark.parametrize("direction", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_slow_network_delays_and_changes_nothing(link, direction):
    """What one host sends another stands still for 0.5 s while a hundred are under way."""
    with FaultProxy() as proxy, Cluster([1, 1, 1], route=proxy.route) as cluster:
        cluster.run(_hundred, None)
        proxy.strike(Fault(Kind.DELAY, link, direction=direction, seconds=0.5))
        assert cluster.run(_hundred, None) == [[3 + 3 * i for i in range(100)]] * 3
        assert proxy.fired


def _ahead(comm):
    """Rank 1's cells are taken by sums with rank 0, so what all call meanwhile is granted; ranks 0 and 2 go on."""
    pair = comm.group([0, 1]) if comm.rank < 2 else None
    ones = np.ones(4)

    def start(group, name):
        return [hc.allreduce(ones, group, tag=f"{name}{i}", timeout=20) for i in range(CELLS)]

    works = start(pair, "pair") if comm.rank == 1 else []
    time.sleep(0.1)
    works += start(comm.world, "first")
    time.sleep(0.2 * (comm.rank != 1))
    works += start(comm.world, "second")
    time.sleep(0.4 * (comm.rank == 0))
    works += start(pair, "pair") if comm.rank == 0 else []
    return sum(float(work.wait()[0]) for work in works)


def test_a_host_that_hears_late_of_grants_is_sent_more_than_there_are_cells():
    """What hosts[0] grants reaches host 1 0.6 s late; host 2 has its cells back by then, and sends from them again."""
    with FaultProxy() as proxy, Cluster([1, 1, 1], route=proxy.route) as cluster:
        cluster.run(_hundred, None)
        proxy.strike(Fault(Kind.DELAY, (1, 0), direction=1, seconds=0.6))
        assert cluster.run(_ahead) == [CELLS * 8.0, CELLS * 8.0, CELLS * 6.0]
        assert proxy.fired
        assert cluster.run(leave) == [None] * 3
