"""Calls that don't fit: one that is wrong by itself is refused, calls that differ raise on every rank (DESIGN I7)."""

import re

import numpy as np
import pytest
from calls import ones

import hdp.collectives as hc
from hdp.contract.errors import CollectiveMismatch, InvalidCollective


def _sum_of_own_length(comm):
    return hc.allreduce(np.ones(10 + comm.rank), comm.world).wait()


def _own_call(comm, calls):
    if calls[comm.rank] == "barrier":
        return hc.barrier(comm.world).wait()
    if calls[comm.rank] == "broadcast":
        return hc.broadcast(np.ones(10), comm.world).wait()
    return hc.allreduce(np.ones(10, calls[comm.rank]), comm.world).wait()


@pytest.mark.parametrize("own_cluster", [[2], [2, 2], [1, 2]], indirect=True, ids=str)
def test_a_mismatch_raises_on_every_rank_and_names_what_each_called(own_cluster):
    """Rank r reduces 10 + r elements."""
    for error in own_cluster.try_run(_sum_of_own_length):
        assert isinstance(error, CollectiveMismatch)
        views = re.findall(r"rank (\d) \(algo-\d\) called allreduce\(float64\[(\d+)\], sum\)", str(error))
        assert [(int(rank), int(length)) for rank, length in views] == [(r, 10 + r) for r in range(own_cluster.size)]
    for error in own_cluster.try_run(ones):
        assert isinstance(error, CollectiveMismatch), "the group is unusable from then on"


@pytest.mark.parametrize("own_cluster", [[2, 2]], indirect=True, ids=str)
@pytest.mark.parametrize(
    "calls", [["float32"] * 3 + ["barrier"], ["float32", "float64"] * 2, ["broadcast"] + ["int8"] * 3]
)
def test_different_calls_are_a_mismatch(own_cluster, calls):
    for error in own_cluster.try_run(_own_call, calls):
        assert isinstance(error, CollectiveMismatch)


#: Of a group, each in one of its own: what ranks 0, 1, 3 call, and what rank 2 calls.
ODD_ONE_OUT = {
    "shape": (lambda g: hc.allreduce(np.ones((2, 3)), g), lambda g: hc.allreduce(np.ones((3, 2)), g)),
    "dtype": (lambda g: hc.reduce(np.ones(3), g), lambda g: hc.reduce(np.ones(3, np.int8), g)),
    "op": (
        lambda g: hc.reduce_scatter(np.ones((4, 1)), g),
        lambda g: hc.reduce_scatter(np.ones((4, 1)), g, hc.ReduceOp.MAX),
    ),
    "root": (lambda g: hc.broadcast(np.ones(3), g, 0), lambda g: hc.broadcast(np.ones(3), g, 3)),
    "counts": (
        lambda g: hc.allgather(np.ones(1), g, counts=[1, 1, 1, 1]),
        lambda g: hc.allgather(np.ones(1), g, counts=[1, 2, 1, 1]),
    ),
    "kind": (lambda g: hc.alltoall(np.ones((4, 2)), g), hc.barrier),
    "calls": (
        lambda g: hc.allreduce(np.ones(3), g).wait() is None or hc.barrier(g),
        lambda g: hc.allreduce(np.ones(3), g).wait() is None or hc.allreduce(np.ones(3), g),
    ),
}


def _odd(comm, what):
    return ODD_ONE_OUT[what][comm.rank == 2](comm.group(range(4), what)).wait()


@pytest.mark.parametrize("cluster", [[2, 2]], indirect=True, ids=str)
@pytest.mark.parametrize("what", ODD_ONE_OUT)
def test_one_rank_calls_something_else(cluster, what):
    """Rank 2 of 4, on the second host, differs in one thing. All raise; the message tells the three from the one."""
    errors = cluster.try_run(_odd, what)
    assert all(isinstance(e, CollectiveMismatch) for e in errors)
    text = str(errors[0])
    assert {str(e) for e in errors} == {text}
    three = r"(?<=: )rank 0 \(algo-1\), rank 1 \(algo-1\), rank 3 \(algo-2\) called (.*); rank 2 \(algo-2\) called (.*)"
    called = re.search(three, text)
    assert called and called[1] != called[2]


#: The call in a group, then who gives to whom, and how much either end says.
UNEQUAL_ENDS = {
    "gather": (
        lambda g: hc.gather(np.ones(2 + g.rank), g, 0, counts=[2, 5, 4] if g.rank == 0 else None),
        (1, 0, 3, 5),
    ),
    "scatter": (
        lambda g: hc.scatter(
            np.ones(6) if g.rank == 0 else None, g, 0, counts=[1, 2, 3], out=np.ones(1) if g.rank else None
        ),
        (0, 1, 2, 1),
    ),
    "alltoall": (
        lambda g: hc.alltoall(np.ones(3), g, send_counts=[1, 1, 1], recv_counts=[1, 1, 1 + (g.rank == 1)]),
        (2, 1, 1, 2),
    ),
}


def _unequal(comm, what):
    return UNEQUAL_ENDS[what][0](comm.group([0, 1, 2], what)).wait() if comm.rank < 3 else None


@pytest.mark.parametrize("cluster", [[2, 2]], indirect=True, ids=str)
@pytest.mark.parametrize("what", UNEQUAL_ENDS)
def test_two_ranks_disagree_on_how_much_one_gives_the_other(cluster, what):
    source, sink, given, taken = UNEQUAL_ENDS[what][1]
    names = ["rank 0 (algo-1)", "rank 1 (algo-1)", "rank 2 (algo-2)"]
    for error in cluster.try_run(_unequal, what)[:3]:
        assert isinstance(error, CollectiveMismatch)
        assert f"{names[source]} gives {given} elements to {names[sink]}, which expects {taken}" in str(error)


def _message(comm):
    group = comm.group(range(comm.world.size), "message")
    if comm.rank == 0:
        hc.send(np.ones(3), group, 2, tag=5).wait()
    if comm.rank == 2:
        hc.recv(np.ones(4), group, 0, tag=5).wait()
    return hc.barrier(group).wait()


@pytest.mark.parametrize("cluster", [[2, 2]], indirect=True, ids=str)
def test_a_message_of_another_length_poisons_the_group(cluster):
    """Rank 0 sends 3 elements, rank 2 receives 4; the others are in a barrier."""
    for error in cluster.try_run(_message):
        assert isinstance(error, CollectiveMismatch)
        assert "rank 0 (algo-1) called send(float64[3], to 2)" in str(error)
        assert "rank 2 (algo-2) called recv(float64[4], from 0)" in str(error)


MISUSES = {
    "root is 7; expected 0 to 1": lambda w: hc.reduce(np.ones(1), w, 7),
    "the receiver is 2; expected 0 to 1": lambda w: hc.send(np.ones(1), w, 2),
    "a message of a rank to itself": lambda w: hc.send(np.ones(1), w, w.rank),
    "shape [3, 2]; expected 2 pieces": lambda w: hc.alltoall(np.ones((3, 2)), w),
    "needs both send_counts and recv_counts": lambda w: hc.alltoall(np.ones(2), w, send_counts=[1, 1]),
    "counts has 3 numbers; expected 2": lambda w: hc.allgather(np.ones(1), w, counts=[1, 1, 1]),
    "counts are [2, -1]; none may be below 0": lambda w: hc.reduce_scatter(np.ones(1), w, counts=[2, -1]),
    "3 rows together, but the array has shape [4]": lambda w: hc.reduce_scatter(np.ones(4), w, counts=[2, 1]),
    "scatter needs `out` on every rank but the root": lambda w: hc.scatter(None, w, 1 - w.rank),
    "expected a contiguous writable float64[2, 3]": lambda w: hc.allgather(np.ones(3), w, out=np.ones((3, 2)).T),
    "dtype complex128 can't be sent; expected one of float16, ": lambda w: hc.gather(np.ones(1, complex), w),
    "dtype >f4 has another byte order": lambda w: hc.allreduce(np.ones(2, ">f4"), w),
    "which gives no memory to write to": lambda w: hc.allreduce(np.ones(2), w, out=[0.0, 0.0]),
    "counts is [1.0, 1.0]; expected 2 integers": lambda w: hc.allgather(np.ones(1), w, counts=[1.0, 1.0]),
    "recv_counts are [-5, 1]; none may be below 0": lambda w: hc.alltoall(
        np.ones(2), w, send_counts=[1, 1], recv_counts=[-5, 1]
    ),
    "timeout is -1; expected seconds": lambda w: hc.barrier(w, timeout=-1),
    "has a NUL in it": lambda w: hc.barrier(w, tag="a\0b"),
    "avg is for floating-point types": lambda w: hc.reduce(np.ones(1, int), w, 0, hc.ReduceOp.AVG),
    "a tag is longer than 63 bytes": lambda w: hc.barrier(w, tag="t" * 64),
    "a group of ranks [0, 0]; expected some of 0 to 1, each once": lambda w: w.comm.group([0, 0]),
    "isn't in the group": lambda w: w.comm.group([1 - w.rank]),
    "a group of ranks [0, 7]; expected some": lambda w: w.comm.group([0, 7]),
    "the ranks of a group are [0.0, 1.0]; expected integers": lambda w: w.comm.group([0.0, 1.0]),
}


def _misuse(comm, text):
    try:
        MISUSES[text](comm.world)
    except InvalidCollective as exc:
        return str(exc)


@pytest.mark.parametrize("cluster", [[2]], indirect=True, ids=str)
def test_a_wrong_argument_is_refused_before_anything_starts(cluster):
    """And the group is as good as before."""
    for text in MISUSES:
        for message in cluster.run(_misuse, text):
            assert text in (message or "")
    assert cluster.run(ones) == [[2.0] * 10] * 2


def _in_groups(comm):
    try:
        hc.allreduce(np.ones(3 + comm.rank), comm.group([0, 1], "bad")).wait()
    except CollectiveMismatch:
        return hc.allreduce(np.ones(3), comm.group([0, 1], "good")).wait().tolist()


@pytest.mark.parametrize("own_cluster", [[2], [1, 1]], indirect=True, ids=str)
def test_a_mismatch_poisons_its_group_alone(own_cluster):
    assert own_cluster.run(_in_groups) == [[2.0, 2.0, 2.0]] * 2
