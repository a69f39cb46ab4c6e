"""Bitwise reductions, which the library doesn't have: each rank gets everybody's data of its share, and combines it.

An allreduce moves as much as any other, 2 (N-1)/N of the tensor. The share of a rank is combined in rank order, which
doesn't matter for bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch

from hdp.collectives import Kind
from hdp.torch.call import Call, Request
from hdp.torch.checks import Place, Tensors, counts_of, expect_elements, one_dtype, pairs
from hdp.torch.dtypes import BITWISE, check_bitwise, kind_of
from hdp.torch.tensors import flat, room_for, tensors_of


def is_bitwise(opts: Any) -> bool:
    """Whether a call's options ask for a bitwise reduction."""
    op = getattr(opts, "reduceOp", None)
    return op is not None and kind_of(op) in BITWISE


def allreduce(place: Place, opts: Any, tensors: Tensors) -> Iterator[Call]:
    """Combine each tensor over the group, in place."""
    return _shared(place, opts, tensors, None)


def reduce(place: Place, opts: Any, tensors: Tensors) -> Iterator[Call]:
    """Combine each tensor over the group, in place on the root alone."""
    return _shared(place, opts, tensors, opts.rootRank)


def reduce_scatter(place: Place, opts: Any, outputs: Tensors, inputs: Sequence[Tensors]) -> Iterator[Call]:
    """Combine lists of tensors, one a rank, over the group; each rank keeps its own."""
    call = Call()
    for t, pieces in pairs(outputs, inputs, "outputs"):
        counts = counts_of(place, pieces, "the input list")
        expect_elements(t, counts[place.rank], "the output", "as many as this rank's tensor in the input list")
        _add_shares(call, place, opts, t, pieces, counts)
    yield call


def reduce_scatter_single(place: Place, opts: Any, outputs: Any, inputs: Any) -> Iterator[Call]:
    """Combine each tensor over the group; each rank keeps its part of it."""
    call = Call()
    for t, whole in pairs(tensors_of(outputs), tensors_of(inputs), "outputs"):
        expect_elements(whole, place.size * t.numel(), "the input", f"{place.size} x {t.numel()}, the output's")
        _add_shares(call, place, opts, t, [whole], [t.numel()] * place.size)
    yield call


def _shared(place: Place, opts: Any, tensors: Tensors, root: int | None) -> Iterator[Call]:
    first, second = Call(), Call()
    for t in tensors:
        counts = [t.numel() * (r + 1) // place.size - t.numel() * r // place.size for r in range(place.size)]
        share = torch.empty(counts[place.rank], dtype=t.dtype, device=t.device)
        _add_shares(first, place, opts, share, [t], counts)
        if root is None:
            target, finish = room_for([t])
            second.add(Request(Kind.ALLGATHER, share, target, share.numel(), recv_counts=counts), [t], finish)
        else:
            there = place.rank == root
            target, finish = room_for([t]) if there else (share[:0], [])
            more: dict[str, Any] = {"root": root, "recv_counts": counts if there else None}
            second.add(Request(Kind.GATHER, share, target if there else None, share.numel(), **more), [t], finish)
    yield first
    yield second


def _add_shares(
    call: Call, place: Place, opts: Any, share: torch.Tensor, pieces: Tensors, counts: Sequence[int]
) -> None:
    """All ranks' data of each share to the rank whose it is, combined there."""
    one_dtype([*pieces, share])
    check_bitwise(opts.reduceOp, share.dtype)
    own = counts[place.rank]
    rows = torch.empty(place.size, own, dtype=share.dtype, device=share.device)
    request = Request(
        Kind.ALLTOALL, flat(pieces), rows.view(-1), own, send_counts=counts, recv_counts=[own] * place.size
    )
    call.add(request, [share], [partial(_combine, BITWISE[kind_of(opts.reduceOp)], rows, share)])


def _combine(function: Any, rows: torch.Tensor, share: torch.Tensor) -> None:
    combined = rows[0]
    for row in rows[1:]:
        function(combined, row, out=combined)
    share.detach().copy_(combined.view(share.shape))
