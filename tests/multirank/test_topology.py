"""Topology discovery among real ranks, and the cost model's bytes and messages against what passes between servers."""

import itertools
import json
import os
import struct
import time

import numpy as np
import pytest
from cluster import Cluster
from fault_proxy import FaultProxy

import hdp.collectives as hc
from hdp.collectives import cost, machine, probe
from hdp.collectives.library import Kind
from hdp.collectives.machine import Link, Machine
from hdp.collectives.topology import Topology

_HEADER = struct.Struct("<IIQIIQII")
_MAGIC, _DATA_TYPES = b"HDP2", (30, 31)  # kPart, kShare
_EAGER, _EAGER_BYTES = 21, 48  # kEager: a message's number, and what is in it before the data


# ---- discovery -------------------------------------------------------------------------------------------------------


def discover(comm, folder=None):
    began = time.perf_counter()
    topology = probe.discover(comm)
    path = None if folder is None else probe.keep(topology, {"SAGEMAKER_BASE_DIR": folder})
    return topology.to_json(), time.perf_counter() - began, path


def unhurried(comm):
    """`discover` where a busy machine may take its time: it leaves no pair out."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_SECONDS", "_LATENCY_SECONDS"):
            patch.setattr(probe, name, 30.0)
        return discover(comm)


@pytest.mark.parametrize("cluster", [(2, 1, 1)], indirect=True)
def test_every_rank_gets_the_same_topology(cluster):
    """3 hosts of 2, 1 and 1 ranks on loopback: all 3 pairs have a latency, every host a rate both ways."""
    results = [value for value, _, _ in cluster.run(unhurried)]
    assert all(value == results[0] for value in results)
    found = Topology.from_json(results[0])
    assert [(host.name, host.ranks) for host in found.hosts] == [("algo-1", 2), ("algo-2", 1), ("algo-3", 1)]
    assert sorted((path.one, path.other) for path in found.paths) == [(0, 1), (0, 2), (1, 2)]
    assert all(0 < path.latency < 0.1 for path in found.paths)
    assert all(found.send_rate(i) and found.receive_rate(i) for i in range(3))
    assert 0 < found.barrier < 0.1
    assert found.hosts_on_a_machine == 3 and found.ranks == 4


@pytest.mark.parametrize("cluster", [(2, 1, 1)], indirect=True)
def test_it_tells_what_the_kernel_tells(cluster):
    """Processors are those that this process may run on, spread over the memory nodes; memory is not above MemTotal."""
    host = Topology.from_json(cluster.run(discover)[0][0]).hosts[1]
    assert host.cpus == len(os.sched_getaffinity(0))
    assert set(itertools.chain(*(node.cpus for node in host.numa))) == os.sched_getaffinity(0)
    assert 0 < host.memory_bytes <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 1.01
    assert 1e8 < host.copy_rate < 1e12 and 1e8 < host.add_rate < 1e12


@pytest.mark.parametrize("cluster", [(2,)], indirect=True)
def test_a_single_host_has_no_links(cluster):
    found = Topology.from_json(cluster.run(discover)[0][0])
    assert (found.flows, found.paths, found.barrier, found.link_rate, found.latency) == ((), (), 0.0, None, None)


@pytest.mark.parametrize("cluster", [(2, 1, 1)], indirect=True)
def test_it_is_kept_in_the_output_and_nowhere_else(cluster, tmp_path):
    """Where there is an output folder, its file holds what was measured; where there is none, nothing is made."""
    (tmp_path / "output" / "data").mkdir(parents=True)
    value, _, path = cluster.run(discover, str(tmp_path))[0]
    assert path == tmp_path / "output" / "data" / "hdp-topology.json"
    assert Topology.load(path).to_json() == value
    assert [kept for _, _, kept in cluster.run(discover, str(tmp_path / "nothing"))] == [None] * 4
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("cluster", [(2, 1, 1)], indirect=True)
def test_it_is_measured_at_the_start_only_where_that_is_asked_for(cluster, tmp_path):
    """Without HDP_TOPOLOGY=1 nothing runs and nothing is kept; with it, rank 0 keeps what all ranks get."""
    (tmp_path / "output" / "data").mkdir(parents=True)
    kept = tmp_path / "output" / "data" / "hdp-topology.json"
    base = {"SAGEMAKER_BASE_DIR": str(tmp_path)}
    assert cluster.run(_at_start, base) == [None] * 4
    assert not kept.exists()
    results = cluster.run(_at_start, {**base, "HDP_TOPOLOGY": "1"})
    assert results == [Topology.load(kept).to_json()] * 4


def _at_start(comm, environ):
    found = probe.at_start(comm, environ)
    return found and found.to_json()


@pytest.mark.parametrize("cluster", [(2, 1, 1)], indirect=True)
def test_it_leaves_the_order_of_other_operations_alone(cluster):
    """Operations before, between and after two discoveries, without tags, still meet in the order of calls."""

    def expected(number):
        return [float(number * 4 + 6)] * 3

    results = cluster.run(_around)
    assert results == [[expected(number) for number in range(3)]] * 4


def _around(comm):
    works = []
    for number in range(3):
        works.append(hc.allreduce(np.full(3, float(number + comm.rank)), comm.world))
        if number < 2:
            probe.discover(comm)
    return [work.wait(30).tolist() for work in works]


# ---- the model against the wire --------------------------------------------------------------------------------------


def pieces(comm, size):
    return np.ones((comm.world.size, size // comm.world.size), np.uint8)


def scatter(comm, size):
    out = np.empty(size // comm.world.size, np.uint8)
    return hc.scatter(pieces(comm, size) if comm.rank == 3 else None, comm.world, 3, out=out)


CALLS = {
    "allreduce": lambda comm, size: hc.allreduce(np.ones(size, np.uint8), comm.world),
    "reduce": lambda comm, size: hc.reduce(np.ones(size, np.uint8), comm.world, 3),
    "broadcast": lambda comm, size: hc.broadcast(np.ones(size, np.uint8), comm.world, 3),
    "allgather": lambda comm, size: hc.allgather(pieces(comm, size)[0], comm.world),
    "reduce_scatter": lambda comm, size: hc.reduce_scatter(pieces(comm, size), comm.world),
    "alltoall": lambda comm, size: hc.alltoall(pieces(comm, size), comm.world),
    "gather": lambda comm, size: hc.gather(pieces(comm, size)[0], comm.world, 3),
    "scatter": scatter,
}


def call(comm, kind, size):
    CALLS[kind](comm, size).wait(30)


def data_messages(stream):
    """Sizes of the data messages in what one server sent to another: frames, after the text of the handshake."""
    at, sizes = stream.find(_MAGIC), []
    while 0 <= at < len(stream):
        _, kind, _, _, _, length, _, _ = _HEADER.unpack_from(stream, at)
        assert stream.startswith(_MAGIC, at)
        if kind in _DATA_TYPES:
            sizes.append(length)
        elif kind == _EAGER and length > _EAGER_BYTES:
            sizes.append(length - _EAGER_BYTES)
        at += _HEADER.size + length
    return sizes


@pytest.mark.parametrize(
    "size",
    [
        16 << 10,
        pytest.param(64 << 10, marks=pytest.mark.slow),
        256 << 10,
        pytest.param(3 << 20, marks=pytest.mark.slow),
    ],
    ids=lambda size: f"{size >> 10}KiB",
)
@pytest.mark.parametrize("kind", sorted(CALLS))
def test_bytes_and_messages_are_those_on_the_wire(wire, kind, size):
    """2 hosts x 2 ranks, root 3. The plan's are those of the busier direction, as a proxy counts frames."""
    cluster, seen = wire
    before = {way: len(data_messages(bytes(stream))) for way, stream in seen.items()}
    cluster.run(call, kind, size)
    counted = [data_messages(bytes(stream))[before[way] :] for way, stream in seen.items()]
    plan = cost.plan(Kind[kind.upper()], size, machine.Cluster((2, 2), Link(1e9, 0), Machine(2)))
    assert plan.sent_bytes == pytest.approx(max(map(sum, counted)), rel=0.01)
    assert plan.messages == pytest.approx(max(map(len, counted)), rel=0.25)


@pytest.fixture(scope="module")
def wire():
    """A cluster of 2 x 2 ranks, and what passes between its servers."""
    seen = {}
    with FaultProxy(seen=seen) as proxy, Cluster([2, 2], route=proxy.route) as cluster:
        yield cluster, seen


def test_three_hosts_move_the_least_possible_bytes():
    """3 hosts: an allreduce of 3 MB moves 2 x 2/3 of it from each host, all links together 3 x that."""
    seen = {}
    with FaultProxy(seen=seen) as proxy, Cluster([1, 1, 1], route=proxy.route) as cluster:
        before = sum(map(len, seen.values()))
        cluster.run(call, "allreduce", 3_000_000)
        moved = sum(map(len, seen.values())) - before
    plan = cost.plan(Kind.ALLREDUCE, 3_000_000, machine.Cluster((1, 1, 1), Link(1e9, 0), Machine(2)))
    assert plan.sent_bytes == plan.least_bytes == 4_000_000
    assert moved == pytest.approx(3 * plan.sent_bytes, rel=0.01)


def test_a_topology_survives_json(tmp_path):
    """What a rank writes is plain JSON, and the summary says what follows from it."""
    with Cluster([1, 1]) as cluster:
        value = cluster.run(discover)[0][0]
    found = Topology.from_json(json.loads(json.dumps(value)))
    assert found.to_json() == value
    assert value["summary"]["link_rate_bits_per_second"] == found.link_rate > 0
