"""One operation of any kind, as all ranks of its group see it: what each gives, the call, and what each must get."""

from dataclasses import dataclass

import numpy as np
import reference

import hdp.collectives as hc

DTYPES = ["float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool"]
#: Kinds whose arrays have a piece for each member; the others. A "message" is both a send and its recv.
PIECES = ["allgather", "gather", "scatter", "reduce_scatter", "alltoall"]
WHOLE = ["allreduce", "reduce", "broadcast", "barrier"]


@dataclass(frozen=True)
class Step:
    """One call of an operation."""

    kind: str
    dtype: str
    op: str
    members: tuple[int, ...]
    root: int  # within the group; of a message the sender
    peer: int  # of a message the receiver
    shape: tuple[int, ...]
    counts: tuple[tuple[int, ...], ...] | None  # rows from rank i for rank j; None: all pieces have `shape`
    in_place: bool
    wire: str | None = None  # allreduce, reduce, reduce_scatter of float32

    def from_rank(self, i):
        """Rows from rank i for each rank; None: all pieces have `shape`."""
        return list(self.counts[i]) if self.counts else None

    def for_rank(self, j):
        """Rows from each rank for rank j; None likewise."""
        return [row[j] for row in self.counts] if self.counts else None


def inputs(step, place, number):
    """The array that the group's rank `place` gives."""
    shape = step.shape
    if step.kind in ("scatter", "reduce_scatter", "alltoall"):
        rows = step.from_rank(0 if step.kind == "reduce_scatter" else place)
        shape = (len(step.members) if rows is None else sum(rows), *shape)
    elif step.counts:
        shape = (step.counts[place][0], *shape)
    return reference.data(step.members[place], shape, step.dtype, number)


def run(comm, program, seed):
    """Do this rank's part of `program`, in an order of its own; shape and bytes of each result by step."""
    order = np.random.default_rng([seed, comm.rank]).permutation(len(program))
    works = {}
    for number in map(int, order):
        step = program[number]
        if comm.rank in step.members:
            group = comm.group(step.members, "of a step")
            works[number] = submit(step, number, group, f"step {number}")
    return {n: None if (r := w.wait(60)) is None else (r.shape, r.tobytes()) for n, w in works.items() if w}


def submit(step, number, group, tag):
    """Start this rank's part of a step; its Work, or None where it has none (a message of others)."""
    me, op = group.rank, hc.ReduceOp[step.op]
    array = inputs(step, me, number)
    if step.kind == "allreduce":
        return hc.allreduce(array, group, op, out=array if step.in_place else None, wire=step.wire, tag=tag)
    if step.kind == "reduce":
        return hc.reduce(array, group, step.root, op, out=array if step.in_place else None, wire=step.wire, tag=tag)
    if step.kind == "broadcast":
        return hc.broadcast(array, group, step.root, tag=tag)
    if step.kind == "allgather":
        return hc.allgather(array, group, counts=step.for_rank(0), tag=tag)
    if step.kind == "gather":
        return hc.gather(array, group, step.root, counts=step.for_rank(0) if me == step.root else None, tag=tag)
    if step.kind == "scatter":
        if me == step.root:
            return hc.scatter(array, group, step.root, counts=step.from_rank(me), tag=tag)
        shape = (step.counts[step.root][me], *step.shape) if step.counts else step.shape
        out = np.empty(shape, reference.dtype_of(step.dtype))
        return hc.scatter(None, group, step.root, out=out, tag=tag)
    if step.kind == "reduce_scatter":
        out, row = None, step.from_rank(0)
        if step.in_place:
            out = array[sum(row[:me]) : sum(row[: me + 1])] if step.counts else array[me : me + 1].reshape(step.shape)
        return hc.reduce_scatter(array, group, op, counts=row, out=out, wire=step.wire, tag=tag)
    if step.kind == "alltoall":
        rows = {"send_counts": step.from_rank(me), "recv_counts": step.for_rank(me)}
        out = array if step.in_place and not step.counts else None
        return hc.alltoall(array, group, **rows, out=out, tag=tag)
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
        cut = [_cut(array, step.from_rank(i)) for i, array in enumerate(arrays)]
        received = [[cut[i][j] for i in range(size)] for j in range(size)]
        return [np.concatenate(pieces) if step.counts else np.stack(pieces) for pieces in received]
    if step.kind == "scatter":
        return _cut(arrays[step.root], step.from_rank(step.root))
    total = reference.combine(sizes, step.members, arrays, step.op, step.wire)
    if step.kind == "reduce_scatter":
        return _cut(total, step.from_rank(0))
    return [total if step.kind == "allreduce" or place == step.root else None for place in range(size)]


def check(sizes, program, results):
    """Assert that `results`, of `run` by rank, have the shapes and bits of the reference."""
    for number, step in enumerate(program):
        for place, value in enumerate(expected(sizes, step, number)):
            got = results[step.members[place]].get(number)
            want = None if value is None else (value.shape, value.tobytes())
            assert got == want, (number, step, place)


def _cut(array, rows):
    return np.split(array, np.cumsum(rows)[:-1]) if rows is not None else list(array)
