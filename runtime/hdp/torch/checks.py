"""What a call's tensors must have in common. Everything here raises InvalidCollective, before anything is started."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from hdp.contract.errors import InvalidCollective
from hdp.contract.zipping import zip_strict

Tensors = Sequence[torch.Tensor]


class Place(NamedTuple):
    """A rank within a group."""

    rank: int
    size: int


def one_dtype(tensors: Tensors) -> None:
    """Raise unless all tensors have the same dtype."""
    dtypes = list(dict.fromkeys(t.dtype for t in tensors))
    if len(dtypes) > 1:
        raise InvalidCollective(
            f"tensors of {' and '.join(str(d) for d in dtypes)} in one operation; expected one dtype"
        )


def expect_elements(tensor: torch.Tensor, count: int, what: str, why: str) -> None:
    """Raise unless `tensor`, which the message calls `what`, has `count` elements; `why` says where that comes from."""
    if tensor.numel() != count:
        raise InvalidCollective(f"{what} has {tensor.numel()} elements; expected {count} ({why})")


def counts_of(place: Place, tensors: Tensors, what: str) -> list[int]:
    """Elements of a list of tensors, one for each rank; raises where the list is longer or shorter."""
    if len(tensors) != place.size:
        raise InvalidCollective(f"{what} has {len(tensors)} tensors; expected {place.size}, one for each rank")
    return [t.numel() for t in tensors]


def split_counts(place: Place, tensor: torch.Tensor, rows: Sequence[int], what: str) -> list[int]:
    """Elements for each rank of a tensor that is split along its first dimension; raises unless `rows` do that.

    rows: of each rank; none: equally many.
    """
    have = tensor.shape[0] if tensor.dim() else 1
    if not rows and have % place.size:
        raise InvalidCollective(f"the {what} has {have} rows, which can't be split equally over {place.size} ranks")
    rows = list(rows) or [have // place.size] * place.size
    if len(rows) != place.size or min(rows) < 0 or sum(rows) != have:
        raise InvalidCollective(
            f"the {what} split sizes are {rows}; expected {place.size} numbers, none below 0, {have} together: "
            f"the {what} has {have} rows"
        )
    return [n * (tensor.numel() // have) if have else 0 for n in rows]


def pairs(outputs: Sequence[Any], inputs: Sequence[Any], what: str) -> list[tuple[Any, Any]]:
    """Each output with its input; raises where one has no partner."""
    if len(outputs) != len(inputs):
        raise InvalidCollective(f"{len(outputs)} {what} for {len(inputs)} inputs; expected as many")
    return list(zip_strict(outputs, inputs))


def only(items: Sequence[Any], what: str) -> Any:
    """The one item of a list; raises where it has more or none."""
    if len(items) != 1:
        raise InvalidCollective(f"{len(items)} {what}s on this rank; expected 1")
    return items[0]
