"""What the library needs of torch's tensors: flat memory.

The library reads and writes contiguous memory. Tensors that are contiguous and lie in a row are used where they are;
others are copied before, and the results copied back after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import torch

from hdp.contract.zipping import zip_strict
from hdp.torch.dtypes import Reduction

#: What is left to do once the library is done.
Finish = list[Callable[[], None]]


def tensors_of(value: Any) -> list[torch.Tensor]:
    """One tensor or several, as a list."""
    return [value] if isinstance(value, torch.Tensor) else list(value)


def lists_of(value: Any) -> list[list[torch.Tensor]]:
    """One list of tensors or several, as a list of lists."""
    rows = list(value)
    return [rows] if rows and isinstance(rows[0], torch.Tensor) else [list(row) for row in rows]


def tensors_in(values: Iterable[Any]) -> list[torch.Tensor]:
    """All tensors among a call's arguments, in lists and lists of lists too."""
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, list):
            found += tensors_in(value)
    return found


def flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """All elements, one tensor's after the other's: in their own memory where they are in a row, else copied."""
    own = _in_a_row(tensors)
    return own if own is not None else torch.cat([t.detach().reshape(-1) for t in tensors])


def room_for(tensors: Sequence[torch.Tensor], dtype: torch.dtype | None = None) -> tuple[torch.Tensor, Finish]:
    """Where results for `tensors` can go, one tensor's after the other's, and what then brings them there.

    dtype: of the results, where it isn't that of the tensors.
    """
    own = _in_a_row(tensors) if dtype is None else None
    if own is not None:
        return own, []
    room = torch.empty(sum(t.numel() for t in tensors), dtype=dtype or tensors[0].dtype, device=tensors[0].device)
    return room, [partial(_spread, room, list(tensors))]


def in_and_out(tensor: torch.Tensor) -> tuple[torch.Tensor, Finish]:
    """`tensor`'s elements, to be overwritten, and what then brings them into `tensor`."""
    own = _in_a_row([tensor])
    if own is not None:
        return own, []
    copied = flat([tensor])
    return copied, [partial(_spread, copied, [tensor])]


def reduced(how: Reduction, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Finish]:
    """What the library reduces of `tensor`, where the result can go, and what then brings it into `tensor`."""
    if how.plain:
        both, finish = in_and_out(tensor)
        return both, both, finish
    source = how.operand(flat([tensor]))
    return source, source, [partial(_spread, source, [tensor])]


def own_place(whole: torch.Tensor, rank: int, counts: Sequence[int]) -> torch.Tensor:
    """A rank's elements of a flat tensor that has all ranks'."""
    return whole.narrow(0, sum(counts[:rank]), counts[rank])


def apart(source: torch.Tensor, target: torch.Tensor, in_place: bool) -> torch.Tensor:
    """`source`, copied where it shares memory with `target` and the operation can't work in place."""
    shared = (
        source.data_ptr() < target.data_ptr() + target.nbytes and target.data_ptr() < source.data_ptr() + source.nbytes
    )
    return source.clone() if shared and not in_place else source


def same_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two flat tensors are the same elements."""
    return a.data_ptr() == b.data_ptr() and a.numel() == b.numel()


def _in_a_row(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """A flat view of tensors that are contiguous and follow one another in memory; None where they don't."""
    if len(tensors) == 1 and tensors[0].is_contiguous():
        only = tensors[0].detach()
        return None if only.is_neg() or only.is_conj() else only.view(-1)
    parts = [t.detach() for t in tensors if t.numel()]
    if not parts:
        return torch.empty(0, dtype=tensors[0].dtype, device=tensors[0].device)
    ends = accumulate((t.nbytes for t in parts), initial=parts[0].data_ptr())
    storage = parts[0].untyped_storage().data_ptr()
    for t, expected in zip(parts, ends):
        elsewhere = t.data_ptr() != expected or t.untyped_storage().data_ptr() != storage
        if elsewhere or not t.is_contiguous() or t.is_neg() or t.is_conj():
            return None
    return parts[0].as_strided((sum(t.numel() for t in parts),), (1,))


def _spread(whole: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    for t, piece in zip_strict(tensors, torch.split(whole, [t.numel() for t in tensors])):
        t.detach().copy_(piece.view(t.shape))
