"""What all ranks must have in common, compared: the price is a few bytes where they agree."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import numpy as np

from hdp.collectives import operations
from hdp.contract.errors import CollectiveMismatch
from hdp.contract.zipping import zip_strict
from hdp.tensorflow import process


def agree(what: str, mine: Sequence[tuple[str, str]], names: Sequence[str] = ()) -> None:
    """Raise CollectiveMismatch on every rank, with the first difference, unless all ranks have the same list.

    mine: the name of a variable, and what it (or its gradient, `what`) is. names: this rank's, where they may differ.
    """
    world = process.communicator().world
    text = json.dumps(mine).encode()
    digest = np.frombuffer(hashlib.blake2b(text, digest_size=16).digest(), np.uint8)
    digests = operations.allgather(digest, world, tag=f"hdp.tensorflow {what}").wait()
    assert digests is not None
    if (digests == digests[0]).all():
        return
    sizes = operations.allgather(np.array([len(text)]), world, tag=f"hdp.tensorflow {what} n").wait()
    assert sizes is not None
    counts = sizes.ravel().tolist()
    texts = operations.allgather(
        np.frombuffer(text, np.uint8), world, counts=counts, tag=f"hdp.tensorflow {what} t"
    ).wait()
    assert texts is not None
    ends = np.cumsum(counts).tolist()
    lists = [json.loads(texts[end - n : end].tobytes()) for end, n in zip_strict(ends, counts)]
    raise CollectiveMismatch(difference(what, lists, names))


def difference(what: str, lists: Sequence[Sequence[Sequence[str]]], names: Sequence[str] = ()) -> str:
    """Between rank 0's list and that of the first rank that has another."""
    rank, other = next((r, found) for r, found in enumerate(lists) if found != lists[0])
    for place, ((name, one), (another, two)) in enumerate(zip(lists[0], other)):
        if name != another:
            return f"ranks have different variables: where rank 0 has {name!r}, rank {rank} has {another!r}"
        if one != two:
            known = names[place] if place < len(names) else name
            return f"ranks have different {what} for {known!r}: rank 0 has {one}, rank {rank} has {two}"
    return f"ranks have different variables: rank 0 has {len(lists[0])}, rank {rank} has {len(other)}"
