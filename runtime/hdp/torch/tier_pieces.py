"""Calls of torch's as pieces for the local tier: what is done inside the host before and after the exchange.

A rank is number h * L + p: place p of L on host h of N. Ranks with the same place on each host exchange through the
library; ranks of one host go through a `HostGroup`. Of S bytes on each rank, S / L a rank leave and reach a host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from hdp.collectives import Kind, ReduceOp
from hdp.contract.errors import InvalidCollective
from hdp.torch.call import Request
from hdp.torch.checks import expect_elements
from hdp.torch.dtypes import DTYPES, kind_of
from hdp.torch.host_group import HostGroup
from hdp.torch.tensors import flat, in_and_out, room_for

#: So many bytes of a tensor at once: while one piece travels, the next is summed inside the host. A guess.
PIECE_BYTES = 32 << 20

#: Less isn't worth two calls of NCCL's on top of the exchange. A guess.
LEAST_BYTES = 64 << 10

#: NCCL's reductions and the library's.
OPS = {
    dist.ReduceOp.SUM: ReduceOp.SUM,
    dist.ReduceOp.AVG: ReduceOp.AVG,
    dist.ReduceOp.MIN: ReduceOp.MIN,
    dist.ReduceOp.MAX: ReduceOp.MAX,
}


@dataclass(frozen=True)
class Hosts:
    """Where a rank is, and its host's ranks: one group for what comes before the exchange, one for what comes after.

    Two, because a communicator's calls run one after the other, and those after an exchange wait for it.
    """

    count: int
    before: HostGroup
    after: HostGroup

    @property
    def size(self) -> int:
        """Ranks on a host."""
        return self.before.size


@dataclass(frozen=True)
class Piece:
    """`before`, the exchange, `after`; each in a stream, which the next one waits for."""

    memory: Sequence[torch.Tensor]
    before: Callable[[], None] | None
    exchange: Request | None
    after: Callable[[], None] | None


@dataclass(frozen=True)
class Tiered:
    """A call as pieces, and what all ranks must have in common of it."""

    pieces: list[Piece]
    outputs: list[torch.Tensor]
    op: ReduceOp
    compared: list[int]
    """Sizes, in elements."""


def allreduce(hosts: Hosts, opts: Any, tensors: Sequence[torch.Tensor]) -> Tiered | None:
    """Combine each tensor over all ranks, in place. None: not for this tier."""
    op = kind_of(opts.reduceOp)
    if not _fits(tensors, op):
        return None
    pieces: list[Piece] = []
    for t in tensors:
        whole, finish = in_and_out(t)
        cut = [_summed(hosts, op, part) for part in torch.split(whole, _piece_elements(hosts, t.dtype))]
        pieces += [*cut, *(Piece([t, whole], None, None, action) for action in finish)]
    return Tiered(pieces, list(tensors), OPS[op], [t.numel() for t in tensors])


def reduce_scatter_single(hosts: Hosts, opts: Any, output: torch.Tensor, whole: torch.Tensor) -> Tiered | None:
    """Combine `whole` over all ranks; each keeps its part, in `output`."""
    op, ranks = kind_of(opts.reduceOp), hosts.count * hosts.size
    if not _fits([output, whole], op):
        return None
    expect_elements(whole, ranks * output.numel(), "the input", f"{ranks} x {output.numel()}, the output's")
    source = flat([whole]).view(hosts.count, hosts.size, -1)
    target, finish = room_for([output])
    shard = target if hosts.count == 1 else target.new_empty(hosts.count * target.numel())

    def before() -> None:
        """By place, then by host: so a rank gets what those of its place on all hosts keep."""
        hosts.before.reduce_scatter(shard, source.transpose(0, 1).contiguous().view(-1), op)

    exchange = Request(Kind.REDUCE_SCATTER, shard, target, target.numel(), OPS[op]) if hosts.count > 1 else None
    piece = Piece([source, target, shard, output], before, exchange, _all_of(finish))
    return Tiered([piece], [output], OPS[op], [whole.numel()])


def all_gather_single(hosts: Hosts, _: Any, output: torch.Tensor, part: torch.Tensor) -> Tiered | None:
    """Every rank's `part`, one after the other, into `output`."""
    if not _fits([output, part], dist.ReduceOp.SUM):
        return None
    ranks = hosts.count * hosts.size
    expect_elements(output, ranks * part.numel(), "the output", f"{ranks} x {part.numel()}, the input's")
    source = flat([part])
    target, finish = room_for([output])
    of_place = source if hosts.count == 1 else source.new_empty(hosts.count * source.numel())

    def after() -> None:
        by_place = target if hosts.count == 1 else torch.empty_like(target)
        hosts.after.all_gather(by_place, of_place)
        if hosts.count > 1:
            by_host = by_place.view(hosts.size, hosts.count, -1).transpose(0, 1)
            target.view(hosts.count, hosts.size, -1).copy_(by_host)

    exchange = Request(Kind.ALLGATHER, source, of_place, source.numel()) if hosts.count > 1 else None
    piece = Piece([source, target, of_place, output], None, exchange, _all_of([after, *finish]))
    return Tiered([piece], [output], ReduceOp.SUM, [output.numel()])


#: Name of a call of torch's -> its pieces. What isn't here is the library's.
CALLS: dict[str, Callable[..., Tiered | None]] = {
    "allreduce": allreduce,
    "allreduce_coalesced": allreduce,
    "reduce_scatter_single": reduce_scatter_single,
    "all_gather_single": all_gather_single,
}


def _fits(tensors: Sequence[torch.Tensor], op: Any) -> bool:
    """Whether NCCL and the library both have it, and it is large enough; the same on all ranks."""
    dtypes = {t.dtype for t in tensors}
    dtype = tensors[0].dtype if tensors else torch.bool
    return (
        op in OPS
        and len(dtypes) == 1
        and dtype in DTYPES
        and dtype != torch.bool
        and (op != dist.ReduceOp.AVG or dtype.is_floating_point)
        and all(t.layout == torch.strided for t in tensors)
        and sum(t.nbytes for t in tensors) >= LEAST_BYTES
    )


def _piece_elements(hosts: Hosts, dtype: torch.dtype) -> int:
    """A multiple of the host's ranks, so that only the last piece may need to be padded."""
    return PIECE_BYTES // dtype.itemsize // hosts.size * hosts.size


def _summed(hosts: Hosts, op: Any, part: torch.Tensor) -> Piece:
    """One piece of an allreduce, a flat tensor, in place."""
    if hosts.count == 1:
        return Piece([part], partial(hosts.before.all_reduce, part, op), None, None)
    length = -(-part.numel() // hosts.size)
    padded = part if length * hosts.size == part.numel() else part.new_zeros(length * hosts.size)
    shard = part.new_empty(length)

    def before() -> None:
        if padded is not part:
            padded[: part.numel()].copy_(part)
        hosts.before.reduce_scatter(shard, padded, op)

    def after() -> None:
        hosts.after.all_gather(padded, shard)
        if padded is not part:
            part.copy_(padded[: part.numel()])

    return Piece([part, padded, shard], before, Request(Kind.ALLREDUCE, shard, shard, length, OPS[op]), after)


def _all_of(actions: Sequence[Callable[[], None]]) -> Callable[[], None] | None:
    def run() -> None:
        for action in actions:
            action()

    return run if actions else None


def compared_shape(sizes: Sequence[int]) -> list[int]:
    """What the library compares of several sizes: it takes 32 numbers."""
    if not sizes:
        raise InvalidCollective("a call without tensors")
    return [*sizes[:31], hash(tuple(sizes)) & 0xFFFFFFFF] if len(sizes) > 32 else list(sizes)
