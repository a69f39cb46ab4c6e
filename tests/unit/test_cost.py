"""The cost model's values, and the pure parts of topology discovery. (On the wire: multirank/test_topology.)"""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdp.collectives import peers, probe
from hdp.collectives.cost import plan
from hdp.collectives.explain import explain
from hdp.collectives.library import Kind
from hdp.collectives.machine import Cluster, Link, Machine, cluster_of
from hdp.collectives.topology import FRAMING, Flow, Host, NumaNode, Route, Topology
from hdp.contract.errors import ContractError, InvalidCollective

MIB = 1 << 20
GBIT = 1e9 / 8


def trial(hosts, ranks, gbits):
    """The cluster of the trial whose figures are below: two cores shared by all hosts, links by token buckets."""
    machine = Machine(2, hosts, move=1.5e-10, move_alone=0.85e-10, wire=6.2e-10, message=3e-6, wake=5e-6, call=4e-6)
    return Cluster((ranks,) * hosts, Link(gbits * GBIT if gbits else math.inf, 0, 128 << 10), machine)


@pytest.mark.parametrize(
    ("hosts", "ranks", "gbits", "milliseconds"),
    [
        (2, 2, 1, 568), (2, 4, 1, 578), (4, 2, 1, 859), (4, 1, 1, 851), (2, 2, 4, 148), (2, 4, 4, 158),
        (4, 2, 2.5, 353), (2, 2, 10, 84), (4, 2, 10, 201), (2, 4, 10, 127),
    ],
)  # fmt: skip
def test_the_trial_of_this_data_path_is_predicted_within_15_percent(hosts, ranks, gbits, milliseconds):
    """64 MiB; 10 clusters, with one set of constants: links are the limit of some, and processors of others."""
    seconds = plan(Kind.ALLREDUCE, 64 * MIB, trial(hosts, ranks, gbits)).seconds
    assert seconds == pytest.approx(milliseconds / 1e3, rel=0.15)


@pytest.mark.parametrize(("ranks", "milliseconds"), [(2, 10.7), (4, 33.4)])
def test_the_trial_on_a_single_host_is_predicted_within_40_percent(ranks, milliseconds):
    """64 MiB. No one constant gives both: four ranks take memory from each other, which the model doesn't know."""
    seconds = plan(Kind.ALLREDUCE, 64 * MIB, trial(1, ranks, 0)).seconds
    assert seconds == pytest.approx(milliseconds / 1e3, rel=0.4)


@pytest.mark.parametrize(
    ("hosts", "ranks", "gbits", "milliseconds"),
    [
        (2, 2, 1, 853), (4, 2, 1, 1002), (4, 4, 1, 1128), (4, 1, 1, 853), (2, 2, 10, 153), (4, 2, 10, 350),
        (1, 2, 0, 52), (1, 4, 0, 152),
    ],
)  # fmt: skip
def test_gloos_flat_ring_is_predicted_within_15_percent(hosts, ranks, gbits, milliseconds):
    """64 MiB, measured in the same trial; the same constants."""
    seconds = peers.flat_ring(64 * MIB, trial(hosts, ranks, gbits)).seconds
    assert seconds == pytest.approx(milliseconds / 1e3, rel=0.15)


@given(
    st.sampled_from([kind for kind in Kind if kind is not Kind.BARRIER]),
    st.integers(1, 1 << 30),
    st.integers(1, 40),
    st.integers(1, 9),
)
def test_a_plan_is_consistent(kind, size, hosts, ranks):
    """Bytes are not below the least, parts add up, a larger vector never takes less in the same way."""
    cluster = Cluster((ranks,) * hosts, Link(GBIT, 1e-5), Machine(16))
    size = max(size, hosts * ranks)  # there is no piece of less than a byte
    found = plan(kind, size, cluster)
    assert found.sent_bytes >= found.least_bytes * 0.999
    assert found.seconds == pytest.approx(sum(part.seconds for part in found.parts))
    assert found.seconds >= found.least_bytes / GBIT * 0.999
    double = plan(kind, 2 * size, cluster)
    never_below = 0.9 if kind is Kind.ALLTOALL else 0.999  # its chunks may become fewer, each with a cost of its own
    assert double.algorithm != found.algorithm or double.seconds >= found.seconds * never_below
    assert (found.hops == 0) == (found.sent_bytes == 0) == (hosts == 1)


def test_nothing_to_move_costs_the_announcement_alone():
    cluster = Cluster((2, 2), Link(GBIT, 1e-5), Machine(16))
    found = plan(Kind.ALLREDUCE, 0, cluster)
    assert ([part.name for part in found.parts], found.chunks, found.hops) == (["announce"], 0, 0)


@pytest.mark.parametrize(("size", "hops", "sent"), [(16 << 10, 1, 48 << 10), ((16 << 10) + 4, 2, 24582), (0, 1, 0)])
def test_small_ones_take_one_hop_while_that_is_little(size, hops, sent):
    """4 hosts: up to 3 x 16 KiB a host in one hop; above, two hops of 3/4 of the vector. A barrier has one."""
    found = plan(Kind.ALLREDUCE if size else Kind.BARRIER, size, Cluster((2,) * 4, Link(GBIT, 1e-5), Machine(16)))
    assert (found.hops, found.sent_bytes, found.messages) == (hops, sent, 3 * hops)
    assert found.algorithm.startswith("eager")


def test_half_types_on_the_wire_halve_its_bytes():
    cluster = Cluster((2, 2), Link(GBIT, 1e-5), Machine(16))
    whole, half = (plan(Kind.ALLREDUCE, 64 * MIB, cluster, wire_ratio=ratio) for ratio in (1.0, 0.5))
    assert half.sent_bytes == whole.sent_bytes / 2
    assert half.seconds == pytest.approx(whole.seconds / 2, rel=0.02)


def test_more_ranks_than_an_arena_has_room_for_are_refused():
    cluster = Cluster((8,) * 16384, Link(GBIT, 1e-5), Machine(16))
    with pytest.raises(InvalidCollective, match="131072 ranks needs a larger arena"):
        plan(Kind.ALLGATHER, MIB, cluster)


def test_explain_refuses_what_it_does_not_know():
    with pytest.raises(InvalidCollective, match="no collective 'allredce'; there are allreduce"):
        explain({"kind": "allredce", "size": 1})


# ---- topology --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3, 4, 7, 16, 33])
def test_in_a_tournament_all_meet_once_and_nobody_has_two_partners(count):
    met = list(probe.rounds(count))
    assert sorted(itertools.chain(*met)) == list(itertools.combinations(range(count), 2))
    assert all(len(set(itertools.chain(*pairs))) == 2 * len(pairs) for pairs in met)


def test_hosts_of_one_machine_take_turns_and_those_of_different_ones_do_not():
    """a has hosts 0, 1, 4, 5, and one pair at a time; 2-3 lie between machines."""
    pairs = [(0, 1), (2, 3), (4, 5)]
    assert list(probe.batches(pairs, ["a", "a", "b", "c", "a", "a"], {"a": 1, "b": 1, "c": 1})) == [
        [(0, 1), (2, 3)],
        [(4, 5)],
    ]


def test_latencies_are_told_apart_from_round_trips():
    """Every way different: a send goes to hosts[0] and back before it goes to its receiver."""
    ways = {pair: 1e-5 * (number + 1) for number, pair in enumerate(itertools.combinations(range(5), 2))}
    trips = {(i, j): 4 * way if i == 0 else 2 * ways[0, i] + 2 * ways[0, j] + 2 * way for (i, j), way in ways.items()}
    found = probe.one_way(trips)
    least = {pair: trips[pair] / 24 for pair in ways}
    assert found == {pair: pytest.approx(max(way, least[pair] if pair[0] else 0)) for pair, way in ways.items()}


def host(name, machine, ranks=2):
    return Host(name, "10.0.0.1", ranks, machine, 2, "a processor", 1 << 34, (NumaNode((0, 1), 1 << 34),), 6e9, 1e10)


TOPOLOGY = Topology(
    hosts=(host("a", "m1"), host("b", "m2", 3), host("c", "m3")),
    flows=(Flow(0, 1, 100e6), Flow(1, 0, 110e6), Flow(0, 2, 30e6), Flow(2, 0, 31e6), Flow(1, 2, 29e6)),
    paths=(Route(0, 1, 1e-4), Route(0, 2, 3e-4), Route(1, 2, 2e-4)),
    barrier=5e-4,
    seconds=0.3,
)


def test_a_slow_link_does_not_pass_for_its_partners():
    """c is slow; a and b have been seen fast with each other."""
    gbits = [
        rate and rate / 1e9 for rate in (TOPOLOGY.send_rate(0), TOPOLOGY.receive_rate(0), TOPOLOGY.receive_rate(2))
    ]
    assert gbits == pytest.approx([0.8 * FRAMING, 0.88 * FRAMING, 0.24 * FRAMING])
    assert TOPOLOGY.link_rate == pytest.approx(30e6 * 8 * FRAMING)
    assert TOPOLOGY.latency == 2e-4


def test_the_model_computes_with_a_topology():
    cluster = cluster_of(TOPOLOGY)
    assert cluster.ranks == (2, 3, 2)
    assert cluster.link.rate == pytest.approx(30e6 * FRAMING)
    assert cluster.machine.cores == 2 and cluster.machine.hosts == 1
    assert cluster.link.latency + 2 * cluster.machine.wake == pytest.approx(TOPOLOGY.latency)
    answer = explain({"kind": "allreduce", "size": MIB, "topology": TOPOLOGY.to_json()})
    assert answer["plan"]["sent_bytes"] == round(4 / 3 * MIB)


@pytest.mark.parametrize(("key", "value"), [("version", 2), ("hosts", [{}]), ("flows", 3), ("paths", [{"one": 1}])])
def test_a_topology_that_is_none_is_refused(key, value):
    with pytest.raises(ContractError, match="topology"):
        Topology.from_json({**TOPOLOGY.to_json(), key: value})


def test_a_topology_is_json_and_back():
    assert Topology.from_json(TOPOLOGY.to_json()) == TOPOLOGY
