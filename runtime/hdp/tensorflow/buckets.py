"""Which gradients travel together. Fixed by the order of the variables, and agreed by all ranks once."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hdp.collectives import operations
from hdp.contract.errors import CollectiveMismatch, InvalidCollective
from hdp.tensorflow import process

#: The first bucket is small, so that something travels early in the backward pass.
FIRST_BUCKET_BYTES = 1 << 20


@dataclass(frozen=True)
class Gradient:
    """What ranks must agree on of a gradient."""

    name: str
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
_plans: dict[tuple[object, ...], Plan] = {}


def plan(gradients: Sequence[Gradient], bucket_bytes: int) -> Plan:
    """The plan for `gradients`, in the order of the variables. The first time, all ranks compare them.

    Raises CollectiveMismatch, which names the first gradient that differs.
    """
    key = (id(process.communicator()), bucket_bytes, *gradients)
    with _lock:
        if key not in _plans:
            _agree(gradients)
            _plans[key] = Plan(_cut(gradients, bucket_bytes), _places(gradients, "sparse"))
        return _plans[key]


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
        held, limit = 0, min(FIRST_BUCKET_BYTES, most)
        for place in reversed(_places(gradients, "dense")):
            if gradients[place].dtype != dtype:
                continue
            size = gradients[place].bytes
            if bucket and held + size > limit:
                buckets.append(tuple(bucket))
                bucket, held, limit = [], 0, most
            bucket.append(place)
            held += size
        if bucket:
            buckets.append(tuple(bucket))
    return tuple(buckets)


def _places(gradients: Sequence[Gradient], kind: str) -> tuple[int, ...]:
    return tuple(i for i, g in enumerate(gradients) if g.kind == kind)


def _agree(gradients: Sequence[Gradient]) -> None:
    """Raise on every rank unless all ranks have the same gradients."""
    world = process.communicator().world
    mine = json.dumps([[g.name, str(g)] for g in gradients]).encode()
    digest = np.frombuffer(hashlib.blake2b(mine, digest_size=16).digest(), np.uint8)
    digests = operations.allgather(digest, world, tag="hdp.tensorflow gradients").wait()
    assert digests is not None
    if (digests == digests[0]).all():
        return
    sizes = operations.allgather(np.array([len(mine)]), world, tag="hdp.tensorflow gradients n").wait()
    assert sizes is not None
    counts = sizes.ravel().tolist()
    texts = operations.allgather(
        np.frombuffer(mine, np.uint8), world, counts=counts, tag="hdp.tensorflow gradients t"
    ).wait()
    assert texts is not None
    ends = np.cumsum(counts).tolist()
    lists = [json.loads(texts[end - n : end].tobytes()) for end, n in zip(ends, counts, strict=True)]
    raise CollectiveMismatch(_difference(lists))


def _difference(lists: Sequence[Sequence[Sequence[str]]]) -> str:
    """Of rank 0's list and that of the first rank that has another. Each entry: variable, what its gradient is."""
    rank, other = next((r, found) for r, found in enumerate(lists) if found != lists[0])
    for (name, one), (another, two) in zip(lists[0], other, strict=False):
        if name != another:
            return f"ranks have different variables: where rank 0 has {name!r}, rank {rank} has {another!r}"
        if one != two:
            return f"ranks have different gradients for {name!r}: rank 0 has {one}, rank {rank} has {two}"
    return f"ranks have different variables: rank 0 has {len(lists[0])}, rank {rank} has {len(other)}"
