"""A graceful end when ranks leave at different times: who doesn't need them is not disturbed, and who does is told."""

import random
import subprocess
import sys
import time

import numpy as np
import pytest
from calls import leave
from cluster import Cluster
from fault_proxy import FaultProxy
from faults import Fault, Kind

import hdp.collectives as hc
from hdp.collectives.communicator import join
from hdp.contract.errors import CollectiveError, PeerLost

#: More than the arena holds.
LARGE = 1_500_000


def slow(*arguments):
    return pytest.param(*arguments, marks=pytest.mark.slow)


def _sums(comm, ranks, count, times=1, pause=0.0):
    """Reduce (rank + 1) * index over `ranks`, with `pause` seconds between; the sums of rank + 1 that came out."""
    group, totals = comm.group(ranks), []
    index = np.arange(1, count + 1, dtype=np.float64)
    for _ in range(times):
        quotient = hc.allreduce(index * (comm.rank + 1), group, timeout=20).wait() / index
        assert np.all(quotient == quotient[0])
        totals.append(float(quotient[0]))
        time.sleep(pause)
    return totals


def _total(ranks):
    return float(sum(rank + 1 for rank in ranks))


def _rejoin(places, rank):
    """A new Communicator. places: (socket, local rank, secret) by rank."""
    socket_path, local_rank, secret = places[rank]
    return join(socket_path, secret, rank, local_rank, 20)


def _places(cluster):
    return [
        (cluster.socket(host), local, str(cluster.secret)) for host, n in enumerate(cluster.sizes) for local in range(n)
    ]


def _logs(cluster):
    return "".join(cluster.log(index) for index in range(len(cluster.sizes)))


# ---- those who stay --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own_cluster", "leavers"),
    [slow([4], [0]), ([2, 2], [0, 3]), ([1, 2], [0]), slow([2, 1, 1], [0, 1])],
    indirect=["own_cluster"],
    ids=str,
)
def test_those_who_stay_go_on(own_cluster, leavers):
    """The leavers go while the others reduce. In two cases they are all of hosts[0], where the order is made."""
    stay = [rank for rank in range(own_cluster.size) if rank not in leavers]
    own_cluster.run(_sums, list(range(own_cluster.size)), 1000)
    for rank in stay:
        own_cluster.call(rank, _sums, stay, LARGE, 5, 0.02)
    time.sleep(0.05)
    for rank in leavers:
        own_cluster.call(rank, leave)
    assert set(own_cluster.collect(ranks=leavers).values()) == {None}
    assert own_cluster.collect(ranks=stay) == {rank: [_total(stay)] * 5 for rank in stay}
    for rank in stay:  # a group that is made only now
        own_cluster.call(rank, _sums, stay[::-1], 10)
    assert own_cluster.collect(ranks=stay) == {rank: [_total(stay)] for rank in stay}


def _stages(comm, places, order, seed):
    """In stage s the ranks order[s:] reduce, and then order[s] leaves. The sums by stage."""
    comm = _rejoin(places, comm.rank) if comm.closed else comm
    rng, totals = random.Random(f"{seed} {comm.rank}"), []
    for stage, leaver in enumerate(order):
        count = random.Random(f"{seed} {stage}").choice([1, 1000, 200_000])
        totals += _sums(comm, sorted(order[stage:]), count)
        time.sleep(rng.random() * 0.02)
        if leaver == comm.rank:
            break
    comm.close()
    return totals


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [[4], [1, 2, 1], [2, 2]], ids=str)
def test_ranks_leave_one_by_one_and_come_back(sizes):
    """In any order, three times with the same servers, which see no failure in it."""
    with Cluster(sizes) as cluster:
        for seed in range(3):
            order = random.Random(seed).sample(range(cluster.size), cluster.size)
            results = cluster.run(_stages, _places(cluster), order, seed)
            for rank, totals in enumerate(results):
                assert totals == [_total(order[stage:]) for stage in range(order.index(rank) + 1)]
        assert _logs(cluster) == ""


def _comes_back(comm, places, ranks):
    comm.close()
    again = _rejoin(places, comm.rank)
    try:
        return _sums(again, ranks, 1000)
    finally:
        again.close()


@pytest.mark.slow
@pytest.mark.parametrize("own_cluster", [[2], [1, 2]], indirect=True, ids=str)
def test_who_comes_back_early_waits_for_the_others(own_cluster):
    """Rank 0 leaves and joins again while the others still work without it; then they come too."""
    everybody = list(range(own_cluster.size))
    own_cluster.call(0, _comes_back, _places(own_cluster), everybody)
    for rank in everybody[1:]:
        own_cluster.call(rank, _sums, everybody[1:], 1000, 10, 0.03)
    assert own_cluster.collect(ranks=everybody[1:]) == {r: [_total(everybody[1:])] * 10 for r in everybody[1:]}
    assert not own_cluster.pipes[0].poll(0.1)
    for rank in everybody[1:]:
        own_cluster.call(rank, _comes_back, _places(own_cluster), everybody)
    assert own_cluster.collect() == {rank: [_total(everybody)] for rank in everybody}


# ---- those who leave -------------------------------------------------------------------------------------------------


def _broadcast_and_leave(comm, count):
    array = np.arange(count, dtype=np.float32) if comm.rank == 0 else np.zeros(count, np.float32)
    hc.broadcast(array, comm.world, 0, timeout=20).wait()
    comm.close()
    return int(np.count_nonzero(array != np.arange(count, dtype=np.float32)))


@pytest.mark.slow
@pytest.mark.parametrize("count", [100, LARGE])
def test_what_a_rank_sent_arrives_though_it_has_left(count):
    """Rank 0 broadcasts and leaves at once; its host's connection is slow."""
    slow = Fault(Kind.JITTER, (1, 0), direction=1, offset=100, length=10**9, segment=60_000, seconds=0.01)
    with FaultProxy([slow]) as proxy, Cluster([1, 1], route=proxy.route) as cluster:
        assert cluster.run(_broadcast_and_leave, count) == [0, 0]
        assert proxy.fired
        assert _logs(cluster) == ""


def _use_after_leaving(comm):
    comm.close()
    comm.close()
    with pytest.raises(CollectiveError, match="the communicator is closed"):
        hc.barrier(comm.world)


@pytest.mark.parametrize("own_cluster", [[1]], indirect=True, ids=str)
def test_leaving_twice_is_fine_and_calling_after_it_is_not(own_cluster):
    assert own_cluster.run(_use_after_leaving) == [None]


_ENDS = """
import sys, numpy as np
import hdp.collectives as hc
from hdp.collectives.communicator import join
comm = join(sys.argv[1], sys.argv[2], 0, 0, 20)
print(hc.allreduce(np.ones(3), comm.world).wait())
if len(sys.argv) > 3: raise SystemExit("an error of the script")
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [[], ["error"]], ids=["end", "error"])
def test_a_script_that_ends_without_a_word_leaves(how):
    """Also by an error: only a process that is killed can't say goodbye."""
    with Cluster([1]) as cluster:
        cluster.run(leave)
        for _ in range(2):
            command = [sys.executable, "-c", _ENDS, cluster.socket(0), str(cluster.secret), *how]
            done = subprocess.run(command, capture_output=True, text=True, timeout=30)
            assert (done.stdout, done.returncode) == ("[1. 1. 1.]\n", len(how)), done.stderr
        assert _logs(cluster) == ""


# ---- those who wait for one who left ---------------------------------------------------------------------------------


def _wait_for_all(comm, stay):
    """Start a sum over all and one over those who stay; how the first ends, how long that takes, the second's sum."""
    everybody = hc.allreduce(np.ones(10), comm.world, timeout=20)
    rest = hc.allreduce(np.ones(10), comm.group(stay), timeout=20)
    total, start = float(rest.wait()[0]), time.monotonic()
    try:
        everybody.wait()
    except PeerLost as exc:
        return str(exc), time.monotonic() - start, total
    return "no error", time.monotonic() - start, total


@pytest.mark.parametrize(
    ("own_cluster", "leaver", "host"),
    [slow([3], 1, 1), ([1, 1, 1], 2, 3), slow([1, 2], 0, 1), slow([2, 1], 1, 1)],
    indirect=["own_cluster"],
    ids=str,
)
def test_who_waits_already_is_told_and_their_other_groups_work(own_cluster, leaver, host):
    """The others have called an allreduce of all ranks when one leaves instead; nobody waits for the limit of 20 s."""
    stay = [rank for rank in range(own_cluster.size) if rank != leaver]
    for rank in stay:
        own_cluster.call(rank, _wait_for_all, stay)
    time.sleep(0.3)
    own_cluster.call(leaver, leave)
    own_cluster.collect(ranks=[leaver])
    for text, seconds, total in own_cluster.collect(ranks=stay).values():
        assert f"rank {leaver} (algo-{host}) has left" in text
        assert seconds < 5 and total == len(stay)
    for rank in stay:
        own_cluster.call(rank, _sums, stay, 10)
    assert own_cluster.collect(ranks=stay) == {rank: [_total(stay)] for rank in stay}
