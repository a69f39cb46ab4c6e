"""Each call of torch's as requests to the library: pure functions of a group's place, torch's options and tensors.

Each raises InvalidCollective before anything is started. All sizes are element counts: torch compares no shapes. Where
torch's backends differ, the more liberal one is followed: gather, scatter, allgather, reduce_scatter and alltoall take
tensors of different sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

import torch

from hdp.collectives import Kind
from hdp.contract.errors import InvalidCollective
from hdp.torch.call import Call, Request
from hdp.torch.checks import Place, Tensors, counts_of, expect_elements, one_dtype, only, pairs, split_counts
from hdp.torch.dtypes import reduction
from hdp.torch.tensors import (
    apart,
    flat,
    in_and_out,
    own_place,
    reduced,
    room_for,
    same_memory,
    tensors_of,
)

OneOrMore = Union[torch.Tensor, Tensors]


def allreduce(_: Place, opts: Any, tensors: Tensors) -> Call:
    """Combine each tensor over the group, in place."""
    op, call = opts.reduceOp, Call()
    for t in tensors:
        how = reduction(op, t.dtype)
        source, target, finish = reduced(how, t)
        call.add(Request(Kind.ALLREDUCE, source, target, t.numel(), how.op), [t], finish)
    return call


def broadcast(place: Place, opts: Any, tensors: Tensors) -> Call:
    """Overwrite each tensor with the root's."""
    call = Call()
    for t in tensors:
        both, finish = in_and_out(t)
        call.add(
            Request(Kind.BROADCAST, both, both, t.numel(), root=opts.rootRank),
            [t],
            [] if place.rank == opts.rootRank else finish,
        )
    return call


def reduce(place: Place, opts: Any, tensors: Tensors) -> Call:
    """Combine each tensor over the group, in place on the root; elsewhere it stays as it is."""
    op, call = opts.reduceOp, Call()
    for t in tensors:
        how = reduction(op, t.dtype)
        source, room, finish = reduced(how, t)
        target, finish = (room, finish) if place.rank == opts.rootRank else (None, [])
        call.add(Request(Kind.REDUCE, source, target, t.numel(), how.op, opts.rootRank), [t], finish)
    return call


def allgather(place: Place, _: Any, outputs: Sequence[Tensors], inputs: Tensors) -> Call:
    """Each input of every rank into a list of tensors, one a rank."""
    call = Call()
    for places, t in pairs(outputs, inputs, "output lists"):
        counts = counts_of(place, places, "the output list")
        one_dtype([*places, t])
        expect_elements(t, counts[place.rank], "the input", "as many as this rank's tensor in the output list")
        source = flat([t])
        target, finish = room_for(places)
        source = apart(source, target, same_memory(source, own_place(target, place.rank, counts)))
        call.add(Request(Kind.ALLGATHER, source, target, t.numel(), recv_counts=counts), places, finish)
    return call


def allgather_coalesced(place: Place, _: Any, outputs: Sequence[Tensors], inputs: Tensors) -> Call:
    """All inputs of every rank into lists of tensors, one list a rank."""
    if len(outputs) != place.size:
        raise InvalidCollective(f"{len(outputs)} output lists; expected {place.size}, one for each rank")
    for rank, places in enumerate(outputs):
        what = f"the output lists of this rank and of rank {rank}"
        for mine, theirs in pairs(inputs, places, "inputs"):
            expect_elements(theirs, mine.numel(), what, "as many as the input")
    every = [t for places in outputs for t in places]
    one_dtype([*every, *inputs])
    source = flat(inputs)
    target, finish = room_for(every)
    counts = [source.numel()] * place.size
    source = apart(source, target, same_memory(source, own_place(target, place.rank, counts)))
    return Call([Request(Kind.ALLGATHER, source, target, source.numel())], every, finish)


def allgather_single(place: Place, _: Any, outputs: OneOrMore, inputs: OneOrMore) -> Call:
    """Each input of every rank into one tensor, one rank's after the other's."""
    call = Call()
    for whole, t in pairs(tensors_of(outputs), tensors_of(inputs), "outputs"):
        one_dtype([whole, t])
        expect_elements(whole, place.size * t.numel(), "the output", f"{place.size} x {t.numel()}, the input's")
        source = flat([t])
        target, finish = room_for([whole])
        source = apart(source, target, same_memory(source, own_place(target, place.rank, [t.numel()] * place.size)))
        call.add(Request(Kind.ALLGATHER, source, target, t.numel()), [whole], finish)
    return call


def gather(place: Place, opts: Any, outputs: Sequence[Tensors], inputs: Tensors) -> Call:
    """The input of every rank into a list of tensors on the root, which is empty elsewhere."""
    t = only(inputs, "input")
    source = flat([t])
    if place.rank != opts.rootRank:
        if any(outputs):
            raise InvalidCollective("gather's output list must be empty on ranks other than the root")
        return Call([Request(Kind.GATHER, source, None, t.numel(), root=opts.rootRank)])
    places = only(outputs, "output list")
    counts = counts_of(place, places, "the output list")
    one_dtype([*places, t])
    expect_elements(t, counts[place.rank], "the input", "as many as this rank's tensor in the output list")
    target, finish = room_for(places)
    source = apart(source, target, same_memory(source, own_place(target, place.rank, counts)))
    request = Request(Kind.GATHER, source, target, t.numel(), root=opts.rootRank, recv_counts=counts)
    return Call([request], list(places), finish)


def scatter(place: Place, opts: Any, outputs: Tensors, inputs: Sequence[Tensors]) -> Call:
    """A list of tensors on the root, empty elsewhere: each rank gets its own into the output."""
    t = only(outputs, "output")
    target, finish = room_for([t])
    if place.rank != opts.rootRank:
        if any(inputs):
            raise InvalidCollective("scatter's input list must be empty on ranks other than the root")
        return Call([Request(Kind.SCATTER, None, target, t.numel(), root=opts.rootRank)], [t], finish)
    pieces = only(inputs, "input list")
    counts = counts_of(place, pieces, "the input list")
    one_dtype([*pieces, t])
    expect_elements(t, counts[place.rank], "the output", "as many as this rank's tensor in the input list")
    source = flat(pieces)
    source = apart(source, target, same_memory(target, own_place(source, place.rank, counts)))
    request = Request(Kind.SCATTER, source, target, t.numel(), root=opts.rootRank, send_counts=counts)
    return Call([request], [t], finish)


def reduce_scatter(place: Place, opts: Any, outputs: Tensors, inputs: Sequence[Tensors]) -> Call:
    """Combine each list of tensors, one a rank, over the group; each rank keeps its own."""
    call = Call()
    for t, pieces in pairs(outputs, inputs, "outputs"):
        counts = counts_of(place, pieces, "the input list")
        expect_elements(t, counts[place.rank], "the output", "as many as this rank's tensor in the input list")
        _add_reduce_scatter(call, place, opts, t, pieces, counts)
    return call


def reduce_scatter_single(place: Place, opts: Any, outputs: OneOrMore, inputs: OneOrMore) -> Call:
    """Combine each tensor over the group; each rank keeps its part of it."""
    call = Call()
    for t, whole in pairs(tensors_of(outputs), tensors_of(inputs), "outputs"):
        expect_elements(whole, place.size * t.numel(), "the input", f"{place.size} x {t.numel()}, the output's")
        _add_reduce_scatter(call, place, opts, t, [whole], [t.numel()] * place.size)
    return call


def _add_reduce_scatter(
    call: Call, place: Place, opts: Any, t: torch.Tensor, pieces: Tensors, counts: Sequence[int]
) -> None:
    one_dtype([*pieces, t])
    how = reduction(opts.reduceOp, t.dtype)
    source = flat(pieces) if how.plain else how.operand(flat(pieces))
    target, finish = room_for([t], how.dtype)
    source = apart(source, target, same_memory(target, own_place(source, place.rank, counts)))
    call.add(Request(Kind.REDUCE_SCATTER, source, target, t.numel(), how.op, recv_counts=counts), [t], finish)


def alltoall(place: Place, _: Any, outputs: Tensors, inputs: Tensors) -> Call:
    """A tensor for each rank, and one from each."""
    sends = counts_of(place, inputs, "the input list")
    receives = counts_of(place, outputs, "the output list")
    return _alltoall(place, outputs, inputs, sends, receives)


def alltoall_single(
    place: Place,
    _: Any,
    output: torch.Tensor,
    input: torch.Tensor,  # noqa: A002  (torch's name)
    output_splits: Sequence[int],
    input_splits: Sequence[int],
) -> Call:
    """Rows of one tensor for each rank, and rows from each; the splits, in rows, may be empty for equal ones."""
    sends = split_counts(place, input, input_splits, "input")
    receives = split_counts(place, output, output_splits, "output")
    return _alltoall(place, [output], [input], sends, receives)


def _alltoall(place: Place, outputs: Tensors, inputs: Tensors, sends: Sequence[int], receives: Sequence[int]) -> Call:
    one_dtype([*outputs, *inputs])
    if sends[place.rank] != receives[place.rank]:
        raise InvalidCollective(
            f"this rank sends {sends[place.rank]} elements to itself, but expects {receives[place.rank]} from itself"
        )
    source = flat(inputs)
    target, finish = room_for(outputs)
    even = sends == receives and len(set(sends)) == 1
    source = apart(source, target, even and same_memory(source, target))
    request = Request(Kind.ALLTOALL, source, target, sends[place.rank], send_counts=sends, recv_counts=receives)
    return Call([request], list(outputs), finish)


def barrier(_: Place, __: Any) -> Call:
    """Complete once every rank has called it."""
    return Call([Request(Kind.BARRIER)])
