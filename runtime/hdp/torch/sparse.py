"""Allreduce of sparse tensors: every rank gets every rank's indices and values, and sums them the same way.

So the result has the same bits on every rank. A rank may have any number of elements, none too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from hdp.collectives import Kind
from hdp.contract.errors import InvalidCollective
from hdp.torch.call import Call, Request
from hdp.torch.checks import Place, Tensors
from hdp.torch.dtypes import kind_of, reduction


def check_layout(name: str, tensors: Tensors) -> bool:
    """Whether all tensors of a call are sparse ones. Raises InvalidCollective for what can't be done with them."""
    odd = [t.layout for t in tensors if t.layout != torch.strided]
    if not odd:
        return False
    served = name.startswith("allreduce") and set(odd) == {torch.sparse_coo} and len(odd) == len(tensors)
    if not served:
        what = f"{name} of a {odd[0]} tensor"
        raise InvalidCollective(
            f"{what}: only allreduce takes sparse tensors, of layout torch.sparse_coo and not mixed with dense ones; "
            "convert it (to_sparse_coo, to_dense), or send its indices and values"
        )
    return True


def allreduce(place: Place, opts: Any, tensors: Tensors) -> Iterator[Call]:
    """Sum (or average) each sparse tensor over the group, in place; it is coalesced then."""
    kind = kind_of(opts.reduceOp)
    if kind not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
        raise InvalidCollective(f"{kind.name} of a sparse tensor: only SUM and AVG are served; use to_dense()")
    for t in tensors:
        reduction(opts.reduceOp, t.dtype)
        yield from _sum(place, t, kind == dist.ReduceOp.AVG)


def _sum(place: Place, tensor: torch.Tensor, average: bool) -> Iterator[Call]:
    own = tensor.detach().coalesce()
    indices, values = own.indices(), own.values()
    shape = [own.sparse_dim(), own.dense_dim(), *own.shape]
    there = own.device
    described = torch.empty(place.size, 1 + len(shape), dtype=torch.int64, device=there)
    yield _gather(torch.tensor([indices.shape[1], *shape], device=there), described, None)
    _same_shapes(described[:, 1:].tolist())
    counts = described[:, 0].tolist()
    # A row for each element, so that what the ranks have can lie one below the other.
    all_indices = torch.empty(sum(counts), indices.shape[0], dtype=torch.int64, device=there)
    all_values = torch.empty(sum(counts), *values.shape[1:], dtype=values.dtype, device=there)
    yield _gather(indices.t().contiguous(), all_indices, counts)
    yield _gather(values.contiguous(), all_values, counts)
    whole = torch.sparse_coo_tensor(all_indices.t(), all_values, own.shape, check_invariants=False).coalesce()
    with torch.no_grad():  # not `detach`, whose result keeps its own number of elements
        tensor.copy_(whole / place.size if average else whole)


def _gather(rows: torch.Tensor, target: torch.Tensor, counts: list[int] | None) -> Call:
    """All ranks' rows, one rank's below the other's."""
    elements = None if counts is None else [n * math.prod(target.shape[1:]) for n in counts]
    request = Request(Kind.ALLGATHER, rows.view(-1), target.view(-1), rows.numel(), recv_counts=elements)
    return Call([request], [target])


def _same_shapes(shapes: list[list[int]]) -> None:
    if any(shape != shapes[0] for shape in shapes):
        told = [f"rank {r}: {s[2:]}, {s[0]} dimensions sparse" for r, s in enumerate(shapes)]
        raise InvalidCollective(f"sparse tensors of different shapes: {'; '.join(told)}")
