"""One operation of any kind, as all ranks of its group see it: what each gives, the call, and what each must get."""

from dataclasses import dataclass

import numpy as np
import reference

import hdp.collectives as hc


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

    def rows(self, i, j=0):
        return self.counts[i][j]


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
