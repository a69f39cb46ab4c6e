"""Collective operations and messages on NumPy arrays and on anything with the buffer protocol.

What all have in common. Every rank of the group calls (of a message: the sender and the receiver), with the same dtype,
`op`, `root` and `tag`. Inputs may have any shape and strides; what isn't contiguous is copied first. Outputs are
contiguous and writable; None: a new array. Nobody may change an input or read an output before `Work.wait` returns.
Memory may be shared between an input and an output in any way; where the operation can't work in place, the input is
copied first.

``tag``: operations with a tag meet by tag, in any order; those without meet in the order of calls. ``timeout``: seconds
until the operation fails for want of a rank; once all have called it, it lasts as long as anything moves. None:
$HDP_TIMEOUT_SECONDS. After an error the output is undefined and the group unusable. ``wire``: "bfloat16" or "float16"
rounds sums of float32 on the way between hosts, to halve what travels (`hdp.collectives.wires.choose` has the rules);
inside a host they stay float32, and every rank still gets the same bits.

Costs are for N hosts and an array of S bytes on each rank, in bytes on a host's link and direction, and in hops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hdp.collectives import arrays
from hdp.collectives.arrays import Array
from hdp.collectives.communicator import Group, check_rank
from hdp.collectives.library import DType, Kind, ReduceOp
from hdp.collectives.work import Work
from hdp.contract.errors import HdpError, InvalidCollective


def allreduce(
    array: Any,
    group: Group,
    op: ReduceOp = ReduceOp.SUM,
    *,
    out: Any = None,
    wire: str | None = None,
    tag: str | None = None,
    timeout: float | None = None,
) -> Work:
    """Combine `array` over the group, element by element; every rank gets the same bits.

    array: the same shape on every rank. Result: that shape. In place: ``out=array``.
    Cost: 2 (N-1)/N S, half of that with a `wire` of 16 bits; 2 hops.
    Callers: every rank of the group. After an error: the result is undefined, and so is `array` where it shares
    memory with `out`.
    """
    source = arrays.source(array)
    target = arrays.target(out, source.shape, source.dtype)
    source = arrays.apart(source, target, allowed=target)
    size = source.size
    return _start(group, Kind.ALLREDUCE, source, target, size, like=source, op=op, wire=wire, tag=tag, timeout=timeout)


def reduce(
    array: Any,
    group: Group,
    root: int = 0,
    op: ReduceOp = ReduceOp.SUM,
    *,
    out: Any = None,
    wire: str | None = None,
    tag: str | None = None,
    timeout: float | None = None,
) -> Work:
    """Combine `array` over the group, element by element, for the group's rank `root` alone.

    array: the same shape on every rank. Result: that shape on the root, None elsewhere, where `out` isn't looked at.
    In place: ``out=array``. Cost: up to 2 (N-1)/N S on the root's link, half of that with a `wire` of 16 bits; 2 hops.
    Callers: every rank of the group. After an error: the result is undefined, and so is `array` where it shares
    memory with `out`.
    """
    check_rank(root, group.size, "root")
    source = arrays.source(array)
    target = arrays.target(out, source.shape, source.dtype) if group.rank == root else None
    if target is not None:
        source = arrays.apart(source, target, allowed=target)
    size = source.size
    return _start(
        group, Kind.REDUCE, source, target, size, like=source, op=op, root=root, wire=wire, tag=tag, timeout=timeout
    )


def broadcast(array: Any, group: Group, root: int = 0, *, tag: str | None = None, timeout: float | None = None) -> Work:
    """Overwrite `array` on every rank with that of the group's rank `root`.

    array: contiguous, writable, the same shape on every rank. Result: `array`.
    Cost: up to 2 (N-1)/N S on the root's link; 2 hops.
    Callers: every rank of the group. After an error: `array` is undefined, but on the root it is as it was.
    """
    check_rank(root, group.size, "root")
    target = arrays.itself(array)
    return _start(group, Kind.BROADCAST, target, target, target.size, like=target, root=root, tag=tag, timeout=timeout)


def allgather(
    array: Any,
    group: Group,
    *,
    counts: Sequence[int] | None = None,
    out: Any = None,
    tag: str | None = None,
    timeout: float | None = None,
) -> Work:
    """Every rank gets every rank's `array`.

    array: shape (*s), the same on every rank. Result: shape (group size, *s), by rank.
    counts: rows of each rank, the same list on every rank; then rank i has shape (counts[i], *s), and the result is
    all rows one below the other, shape (sum(counts), *s).
    In place: `array` is its own place in `out`. Cost: what the host's ranks have, to N-1 hosts; 1 hop.
    Callers: every rank of the group. After an error: the result is undefined; `array` is as it was.
    """
    source = arrays.source(array)
    counts = _checked(counts, group, "counts")
    target, row = _gathered(source, group, counts, out)
    source = arrays.apart(source, target, allowed=_own(target, group.rank, counts))
    more: dict[str, Any] = {"recv_counts": _times(counts, row), "like": source if counts is None else None}
    return _start(group, Kind.ALLGATHER, source, target, source.size, tag=tag, timeout=timeout, **more)


def gather(
    array: Any,
    group: Group,
    root: int = 0,
    *,
    counts: Sequence[int] | None = None,
    out: Any = None,
    tag: str | None = None,
    timeout: float | None = None,
) -> Work:
    """The group's rank `root` gets every rank's `array`.

    array: shape (*s), the same on every rank. Result: shape (group size, *s) on the root, by rank; None elsewhere.
    counts: rows of each rank, looked at on the root alone; then rank i has shape (counts[i], *s), and the result has
    shape (sum(counts), *s). In place: on the root `array` is its own place in `out`.
    Cost: what a host's ranks have; the root's link takes that of all other hosts; 1 hop.
    Callers: every rank of the group. After an error: the result is undefined; `array` is as it was.
    """
    check_rank(root, group.size, "root")
    source = arrays.source(array)
    target, row = None, 1
    if group.rank == root:
        counts = _checked(counts, group, "counts")
        target, row = _gathered(source, group, counts, out)
        source = arrays.apart(source, target, allowed=_own(target, root, counts))
    more: dict[str, Any] = {"root": root, "recv_counts": _times(counts, row) if target is not None else None}
    return _start(group, Kind.GATHER, source, target, source.size, tag=tag, timeout=timeout, **more)


def scatter(
    array: Any,
    group: Group,
    root: int = 0,
    *,
    counts: Sequence[int] | None = None,
    out: Any = None,
    tag: str | None = None,
    timeout: float | None = None,
) -> Work:
    """Every rank gets its piece of the array of the group's rank `root`.

    array: on the root shape (group size, *s), a piece for each rank; not looked at elsewhere, say None.
    out: shape (*s); needed on every rank but the root. Result: `out`.
    counts: rows for each rank, looked at on the root alone; then `array` has shape (sum(counts), *s) there, and rank
    i's `out` shape (counts[i], *s). In place: on the root `out` is its own place in `array`.
    Cost: the pieces of other hosts' ranks on the root's link; 1 hop.
    Callers: every rank of the group. After an error: `out` is undefined; `array` is as it was, but for what is
    shared with `out`.
    """
    check_rank(root, group.size, "root")
    if group.rank != root:
        if out is None:
            raise InvalidCollective("scatter needs `out` on every rank but the root: it says how much comes")
        received = arrays.itself(out)
        return _start(group, Kind.SCATTER, None, received, received.size, root=root, tag=tag, timeout=timeout)
    source = arrays.source(array)
    counts = _checked(counts, group, "counts")
    own = _pieces(source, group, counts, "counts")
    target = arrays.target(out, own.shape, source.dtype)
    source = _apart_but_own(source, own, target)
    more: dict[str, Any] = {"root": root, "send_counts": _times(counts, arrays.row_elements(source.shape))}
    return _start(group, Kind.SCATTER, source, target, target.size, tag=tag, timeout=timeout, **more)


def reduce_scatter(
    array: Any,
    group: Group,
    op: ReduceOp = ReduceOp.SUM,
    *,
    counts: Sequence[int] | None = None,
    out: Any = None,
    wire: str | None = None,
    tag: str | None = None,
    timeout: float | None = None,
) -> Work:
    """Combine `array` over the group, element by element; every rank gets its piece of the result.

    array: shape (group size, *s), the same on every rank. Result: shape (*s).
    counts: rows for each rank, the same list on every rank; then `array` has shape (sum(counts), *s), and rank i's
    result shape (counts[i], *s). In place: `out` is its own place in `array`.
    Cost: (N-1)/N S, where hosts have as many rows, half of that with a `wire` of 16 bits; 1 hop.
    Callers: every rank of the group. After an error: the result is undefined; `array` is as it was, but for what is
    shared with `out`.
    """
    source = arrays.source(array)
    counts = _checked(counts, group, "counts")
    own = _pieces(source, group, counts, "counts")
    target = arrays.target(out, own.shape, source.dtype)
    source = _apart_but_own(source, own, target)
    row = arrays.row_elements(source.shape)
    more: dict[str, Any] = {"op": op, "recv_counts": _times(counts, row), "like": own if counts is None else None}
    return _start(group, Kind.REDUCE_SCATTER, source, target, target.size, wire=wire, tag=tag, timeout=timeout, **more)


def alltoall(
    array: Any,
    group: Group,
    *,
    send_counts: Sequence[int] | None = None,
    recv_counts: Sequence[int] | None = None,
    out: Any = None,
    tag: str | None = None,
    timeout: float | None = None,
) -> Work:
    """Every rank gets a piece of every rank's `array`.

    array: shape (group size, *s), a piece for each rank, the same shape on every rank. Result: the same shape, the
    pieces by the rank that they come from.
    send_counts, recv_counts: rows for, and from, each rank; both or neither on every rank. Then `array` has shape
    (sum(send_counts), *s) and the result (sum(recv_counts), *s); what i sends to j is what j receives from i.
    In place: ``out=array`` without counts. Cost: what goes to other hosts' ranks; 1 hop.
    Callers: every rank of the group. After an error: the result is undefined, and so is `array` where it shares
    memory with `out`.
    """
    source = arrays.source(array)
    if (send_counts is None) != (recv_counts is None):
        raise InvalidCollective("alltoall needs both send_counts and recv_counts, or neither")
    send_counts = _checked(send_counts, group, "send_counts")
    recv_counts = _checked(recv_counts, group, "recv_counts")
    own = _pieces(source, group, send_counts, "send_counts")
    row = arrays.row_elements(source.shape)
    rows = source.shape[0] if recv_counts is None else sum(recv_counts)
    target = arrays.target(out, (rows, *source.shape[1:]), source.dtype)
    source = arrays.apart(source, target, allowed=target if send_counts is None else None)
    more: dict[str, Any] = {"send_counts": _times(send_counts, row), "recv_counts": _times(recv_counts, row)}
    more["like"] = own if send_counts is None else None
    return _start(group, Kind.ALLTOALL, source, target, own.size, tag=tag, timeout=timeout, **more)


def send(array: Any, group: Group, to: int, *, tag: int = 0, timeout: float | None = None) -> Work:
    """Send `array` to the group's rank `to`, which calls `recv`. Complete once `array` may be changed: after that call.

    The n-th `send` from one rank to another with a tag meets the n-th `recv`. Two ranks that send to each other must
    both start before either waits. Result: None. Cost: S between the two hosts; 1 hop.
    Callers: the sender, and the receiver of `recv`. After an error: `array` is as it was.
    """
    check_rank(to, group.size, "the receiver")
    source = arrays.source(array)
    return _start(group, Kind.SEND, source, None, source.size, like=source, root=to, tag=str(tag), timeout=timeout)


def recv(out: Any, group: Group, source: int, *, tag: int = 0, timeout: float | None = None) -> Work:
    """Receive what the group's rank `source` sends with the same `tag`, into `out`.

    out: contiguous, writable; shape and dtype of what is sent. Result: `out`. Cost: see `send`.
    Callers: the receiver, and the sender of `send`. After an error: `out` is undefined.
    """
    check_rank(source, group.size, "the sender")
    target = arrays.itself(out)
    return _start(group, Kind.RECV, None, target, target.size, like=target, root=source, tag=str(tag), timeout=timeout)


def barrier(group: Group, *, tag: str | None = None, timeout: float | None = None) -> Work:
    """Complete once every rank of the group has called it. Result: None.

    Cost: a message to hosts[0] and back.
    Callers: every rank of the group. After an error: there is nothing that could be undefined.
    """
    return _start(group, Kind.BARRIER, None, None, 0, tag=tag, timeout=timeout)


# ---- what they share -----------------------------------------------------------------------------------------------


def _start(
    group: Group,
    kind: Kind,
    source: Array | None,
    target: Array | None,
    count: int,
    like: Array | None = None,
    **how: Any,
) -> Work:
    """Start an operation. `like`: has the shape that all ranks must have. `how`: see `Group.start`."""
    typed = source if source is not None else target
    dtype = DType.UINT8 if typed is None else arrays.dtype_of(typed)
    here = arrays.address(source)
    there = here if target is source else arrays.address(target)
    work = Work(group, (source, target), target)
    try:
        ticket = group.start(kind, dtype, here, there, count, shape=() if like is None else like.shape, **how)
    except HdpError:
        work.refused()
        raise
    work.started(ticket)
    return work


def _gathered(source: Array, group: Group, counts: Sequence[int] | None, out: Any) -> tuple[Array, int]:
    """Where all ranks' arrays go, and how many elements a row has."""
    if counts is None:
        return arrays.target(out, (group.size, *source.shape), source.dtype), 1
    arrays.check_rows(source, [counts[group.rank]], "this rank's counts")
    return arrays.target(out, (sum(counts), *source.shape[1:]), source.dtype), arrays.row_elements(source.shape)


def _own(whole: Array, rank: int, counts: Sequence[int] | None) -> Array:
    """A rank's place in an array of all ranks' pieces."""
    if counts is None:
        return np.asarray(whole[rank])
    first = sum(counts[:rank])
    return whole[first : first + counts[rank]]


def _pieces(source: Array, group: Group, counts: Sequence[int] | None, what: str) -> Array:
    """This rank's own piece of an array that has one for each rank; raises where it hasn't."""
    if counts is not None:
        arrays.check_rows(source, counts, what)
    elif source.ndim == 0 or source.shape[0] != group.size:
        raise InvalidCollective(
            f"the array has shape {list(source.shape)}; expected {group.size} pieces, one for each rank, along the "
            f"first axis (or say {what}=)"
        )
    return _own(source, group.rank, counts)


def _apart_but_own(source: Array, own: Array, target: Array) -> Array:
    """`source`, or a copy where `target` shares memory with more of it than exactly `own`."""
    in_place = arrays.address(own) == arrays.address(target) and own.nbytes == target.nbytes
    return source if in_place else arrays.apart(source, target)


def _checked(counts: Sequence[int] | None, group: Group, what: str) -> list[int] | None:
    return None if counts is None else arrays.counts_of(counts, group.size, what)


def _times(counts: Sequence[int] | None, row: int) -> list[int] | None:
    return None if counts is None else [n * row for n in counts]
