"""Which gradients travel together. Fixed by the order of the variables, and agreed by all ranks once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hdp.contract.errors import CollectiveMismatch, CollectiveTimeout, InvalidCollective
from hdp.contract.zipping import zip_strict
from hdp.tensorflow import process
from hdp.tensorflow.agreement import agree

#: The first bucket is small, so that something travels early in the backward pass.
FIRST_BUCKET_BYTES = 1 << 20

#: Into so many buckets gradients go that would fit into fewer: of a bucket as large as a small model nothing would
#: travel before the backward pass ends. (keras_step.py, 2 x 2 at 1 Gbit/s: of the time that 22 MB take by themselves, a
#: step showed all where they went in a bucket of 25 MB, and 0.6 where they went in eight.)
LEAST_BUCKETS = 8

#: A bucket isn't made smaller than this for it.
SMALL_BUCKET_BYTES = 2 << 20


@dataclass(frozen=True)
class Gradient:
    """What ranks must agree on of a gradient."""

    name: str = field(compare=False)
    """This rank's: a rank that made more models has other numbers in its names."""
    dtype: str
    shape: tuple[int | None, ...]
    kind: str
    """dense, sparse, or none: this variable has no gradient."""
    bytes: int

    def __str__(self) -> str:
        if self.kind == "none":
            return "no gradient"
        dims = ", ".join("?" if n is None else str(n) for n in self.shape)
        return f"{'a sparse' if self.kind == 'sparse' else 'a'} gradient {self.dtype} of shape [{dims}]"


@dataclass(frozen=True)
class Plan:
    """Places of the gradients in the list: buckets in the order in which they'll be ready, and the sparse ones."""

    buckets: tuple[tuple[int, ...], ...]
    sparse: tuple[int, ...]


_lock = threading.Lock()
_plans: dict[tuple[Any, ...], Plan] = {}


def plan(gradients: Sequence[Gradient], bucket_bytes: int) -> Plan:
    """The plan for `gradients`, in the order of the variables. The first time, all ranks compare them.

    Raises CollectiveMismatch, which names the first gradient that differs.
    """
    key = (process.generation(), bucket_bytes, *gradients)
    with _lock:
        if key not in _plans:
            _agree(gradients)
            _plans[key] = Plan(_cut(gradients, bucket_bytes), _places(gradients, "sparse"))
        return _plans[key]


def _agree(gradients: Sequence[Gradient]) -> None:
    try:
        agree("gradients", [(str(i), str(g)) for i, g in enumerate(gradients)], [g.name for g in gradients])
    except CollectiveTimeout as exc:
        change = _change(gradients)
        if change is None:
            raise
        raise CollectiveMismatch(f"{change}; the other ranks have nothing new to agree on: {exc}") from None


def _change(gradients: Sequence[Gradient]) -> str | None:
    """How `gradients` differ from those of the same variables that ranks have agreed on before."""
    for _, _, *before in reversed(_plans):
        if [old.name for old in before] == [new.name for new in gradients]:
            old, new = next((old, new) for old, new in zip_strict(before, gradients) if old != new)
            return f"the gradient for {new.name!r} has changed on this rank: it was {old}, and is {new}"
    return None


def bucket_bytes_of(megabytes: float) -> int:
    """Bytes of ``bucket_cap_mb=``. Raises InvalidCollective."""
    if isinstance(megabytes, bool) or not isinstance(megabytes, (int, float)) or not megabytes > 0:
        raise InvalidCollective(f"bucket_cap_mb is {megabytes!r}; expected megabytes, more than 0")
    return max(1, int(megabytes * (1 << 20)))


def _cut(gradients: Sequence[Gradient], most: int) -> tuple[tuple[int, ...], ...]:
    """The backward pass makes the last variables' gradients first."""
    buckets: list[tuple[int, ...]] = []
    for dtype in dict.fromkeys(g.dtype for g in reversed(gradients) if g.kind == "dense"):
        bucket: list[int] = []
        places = [i for i in reversed(_places(gradients, "dense")) if gradients[i].dtype == dtype]
        share = sum(gradients[i].bytes for i in places) // LEAST_BUCKETS
        held, limit = 0, min(FIRST_BUCKET_BYTES, most)
        for place in places:
            size = gradients[place].bytes
            if bucket and held + size > limit:
                buckets.append(tuple(bucket))
                bucket, held, limit = [], 0, min(most, max(SMALL_BUCKET_BYTES, share))
            bucket.append(place)
            held += size
        if bucket:
            buckets.append(tuple(bucket))
    return tuple(buckets)


def _places(gradients: Sequence[Gradient], kind: str) -> tuple[int, ...]:
    return tuple(i for i, g in enumerate(gradients) if g.kind == kind)
