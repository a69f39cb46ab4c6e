"""Random programs on random emulated hosts: every operation, in another order on each rank, against NumPy bit for bit.

A program is a list of operations on overlapping groups. Every rank submits its operations in an order of its own. The
expected bits come from `reference`, which knows nothing of hosts' slots, so results are the same for every chunk size.
"""

import os
from dataclasses import dataclass

import numpy as np
import pytest
import reference
from cluster import Cluster
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hdp.collectives as hc

DTYPES = ["float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool"]
EXAMPLES = int(os.environ.get("HDP_TEST_EXAMPLES", "6"))


@dataclass(frozen=True)
class Step:
    kind: str
    dtype: str
    op: str
    members: tuple[int, ...]
    root: int  # within the group; of a message the sender
    peer: int  # of a message the receiver
    shape: tuple[int, ...]
    counts: tuple[tuple[int, ...], ...] | None  # rows from rank i for rank j; None: all pieces have `shape`
    in_place: bool

    def rows(self, i, j=0):
        return self.counts[i][j]


@st.composite
def steps(draw, world):
    members = draw(st.permutations(range(world)))
    members = tuple(members[: draw(st.integers(1, world))])
    size = len(members)
    kinds = [
        "allreduce",
        "reduce",
        "broadcast",
        "allgather",
        "gather",
        "scatter",
        "reduce_scatter",
        "alltoall",
        "barrier",
    ]
    kind = draw(st.sampled_from(kinds + ["message"] * (size > 1)))
    dtype = draw(st.sampled_from(DTYPES))
    ops = ["SUM", "MIN", "MAX", "PRODUCT"] + ["AVG"] * dtype.startswith(("float", "bfloat"))
    root = draw(st.integers(0, size - 1))
    large = draw(st.booleans())
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
    if large:
        shape = (draw(st.integers(0, 60_000 if kind in ("allreduce", "reduce", "broadcast", "message") else 20_000)),)
    counts = None
    if kind in ("allgather", "gather", "scatter", "reduce_scatter", "alltoall") and draw(st.booleans()):
        rows = st.integers(0, 4_000 if large else 6)
        counts = tuple(tuple(draw(rows) for _ in range(size)) for _ in range(size))
        shape = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
    peer = (root + 1 + draw(st.integers(0, max(0, size - 2)))) % size
    return Step(kind, dtype, draw(st.sampled_from(ops)), members, root, peer, shape, counts, draw(st.booleans()))


@st.composite
def cases(draw):
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    program = draw(st.lists(steps(sum(sizes)), min_size=4, max_size=14))
    slots = {"slots": draw(st.integers(1, 5)), "slot_bytes": draw(st.sampled_from([4096, 64 << 10, 512 << 10]))}
    return sizes, program, slots, draw(st.integers(0, 1000))


def inputs(step, place, number):
    """The array that the group's rank `place` gives."""
    rank, size = step.members[place], len(step.members)
    leading = {
        "scatter": sum(step.rows(place, j) for j in range(size)) if step.counts else size,
        "reduce_scatter": sum(step.rows(0, j) for j in range(size)) if step.counts else size,
        "alltoall": sum(step.rows(place, j) for j in range(size)) if step.counts else size,
    }
    shape = step.shape
    if step.kind in leading:
        shape = (leading[step.kind], *shape)
    elif step.counts:
        shape = (step.rows(place), *shape)
    return reference.data(rank, shape, step.dtype, number)


def _rank(comm, program, seed):
    order = np.random.default_rng([seed, comm.rank]).permutation(len(program))
    works = {}
    for number in map(int, order):
        step = program[number]
        if comm.rank in step.members:
            group = comm.group(step.members, "of a step")
            works[number] = _submit(step, number, group, f"step {number}")
    return {n: None if (r := w.wait(60)) is None else (r.shape, r.tobytes()) for n, w in works.items() if w}


def _submit(step, number, group, tag):
    size, me, op = group.size, group.rank, hc.ReduceOp[step.op]
    array = inputs(step, me, number)
    column = [step.rows(i, 0) for i in range(size)] if step.counts else None
    row = [step.rows(0, j) for j in range(size)] if step.counts else None
    if step.kind == "allreduce":
        return hc.allreduce(array, group, op, out=array if step.in_place else None, tag=tag)
    if step.kind == "reduce":
        return hc.reduce(array, group, step.root, op, out=array if step.in_place else None, tag=tag)
    if step.kind == "broadcast":
        return hc.broadcast(array, group, step.root, tag=tag)
    if step.kind == "allgather":
        return hc.allgather(array, group, counts=column, tag=tag)
    if step.kind == "gather":
        return hc.gather(array, group, step.root, counts=column if me == step.root else None, tag=tag)
    if step.kind == "scatter":
        if me == step.root:
            mine = [step.rows(me, j) for j in range(size)] if step.counts else None
            return hc.scatter(array, group, step.root, counts=mine, tag=tag)
        shape = (step.rows(step.root, me), *step.shape) if step.counts else step.shape
        out = np.empty(shape, reference.dtype_of(step.dtype))
        return hc.scatter(None, group, step.root, out=out, tag=tag)
    if step.kind == "reduce_scatter":
        out = None
        if step.in_place:
            out = array[sum(row[:me]) : sum(row[: me + 1])] if step.counts else array[me : me + 1].reshape(step.shape)
        return hc.reduce_scatter(array, group, op, counts=row, out=out, tag=tag)
    if step.kind == "alltoall":
        sends = [step.rows(me, j) for j in range(size)] if step.counts else None
        receives = [step.rows(i, me) for i in range(size)] if step.counts else None
        out = array if step.in_place and not step.counts else None
        return hc.alltoall(array, group, send_counts=sends, recv_counts=receives, out=out, tag=tag)
    if step.kind == "barrier":
        return hc.barrier(group, tag=tag)
    if me == step.root:
        return hc.send(array, group, step.peer, tag=number)
    return hc.recv(np.empty_like(array), group, step.root, tag=number) if me == step.peer else None


def expected(sizes, step, number):
    """Results by place in the group; None: no result there."""
    size = len(step.members)
    arrays = [inputs(step, place, number) for place in range(size)]
    nothing = [None] * size
    if step.kind == "barrier":
        return nothing
    if step.kind == "message":
        return [arrays[step.root] if place == step.peer else None for place in range(size)]
    if step.kind == "broadcast":
        return [arrays[step.root]] * size
    if step.kind in ("allgather", "gather"):
        whole = np.concatenate(arrays) if step.counts else np.stack(arrays)
        return [whole if step.kind == "allgather" or place == step.root else None for place in range(size)]
    if step.kind == "alltoall":
        cut = [
            _cut(step, array, [step.rows(i, j) for j in range(size)] if step.counts else None)
            for i, array in enumerate(arrays)
        ]
        received = [[cut[i][j] for i in range(size)] for j in range(size)]
        return [np.concatenate(pieces) if step.counts else np.stack(pieces) for pieces in received]
    if step.kind == "scatter":
        rows = [step.rows(step.root, j) for j in range(size)] if step.counts else None
        return _cut(step, arrays[step.root], rows)
    total = reference.combine(sizes, step.members, arrays, step.op)
    if step.kind == "reduce_scatter":
        return _cut(step, total, [step.rows(0, j) for j in range(size)] if step.counts else None)
    return [total if step.kind == "allreduce" or place == step.root else None for place in range(size)]


def _cut(step, array, rows):
    return np.split(array, np.cumsum(rows)[:-1]) if rows is not None else list(array)


@pytest.mark.slow
@pytest.mark.timeout(60 + 60 * EXAMPLES)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=cases())
def test_a_random_program_gives_the_reference_on_every_rank(case):
    """1 to 4 hosts of 1 to 4 ranks; 4 to 14 operations. Run twice on the same ranks: the same bits."""
    sizes, program, slots, seed = case
    with Cluster(sizes, **slots) as cluster:
        results = cluster.run(_rank, program, seed, timeout=60)
        assert cluster.run(_rank, program, seed + 1, timeout=60) == results
    for number, step in enumerate(program):
        for place, value in enumerate(expected(sizes, step, number)):
            got = results[step.members[place]].get(number)
            want = None if value is None else (value.shape, value.tobytes())
            assert got == want, (number, step, place)
