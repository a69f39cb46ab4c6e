"""Variables on all ranks: taken over from one rank, and compared."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hdp.collectives import operations
from hdp.collectives.communicator import check_rank
from hdp.contract.errors import CollectiveError, InvalidCollective
from hdp.contract.zipping import zip_strict
from hdp.tensorflow import functions, process
from hdp.tensorflow.agreement import agree
from hdp.tensorflow.refusals import refuse


class OutOfSync(CollectiveError):
    """Ranks that should have the same weights don't. The text names the first variable that differs."""

    collateral = False


def broadcast_variables(variables: Any, root_rank: int = 0, process_set: Any = None, inplace: bool = True) -> Any:  # noqa: ARG001
    """Give every rank the values of `variables` (TensorFlow's or Keras's) on rank `root_rank`; returns nothing.

    Every rank has the same variables, in the same order; all go in one transfer. inplace: Horovod's, and without a
    meaning here. In a graph of TensorFlow 1 it returns the operation that does it; in a tf.function it is a part of
    the function. Raises CollectiveMismatch that names the first variable that differs.
    """
    refuse("broadcast_variables", {"process_set": (process_set, None)})
    check_rank(root_rank, process.size(), "root_rank")
    found = [plain(v) for v in variables]
    if not tf.executing_eagerly():
        ours = enumerate(found if process.size() > 1 else ())
        everything = tf.group(*[v.assign(functions.broadcast(v, root_rank, f"variable {i}")) for i, v in ours])
        return None if tf.inside_function() else everything
    if process.size() > 1:
        _broadcast_now(found, root_rank)
    return None


def broadcast_global_variables(root_rank: int = 0) -> Any:
    """`broadcast_variables` of all global variables of the current graph of TensorFlow 1; returns the operation."""
    if tf.executing_eagerly():
        raise InvalidCollective("global variables are a graph's, and this is none; use broadcast_variables")
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


def check_in_sync(model: Any, root_rank: int = 0) -> None:
    """Raise OutOfSync on every rank unless `model` (or a list of variables) has the same bits on every rank.

    Of a Keras model, what layers keep for themselves is left out: random seeds, and the statistics of normalization,
    which are each rank's own.
    Costs a hash of the weights (about 1 GB/s) and 16 bytes a variable on the link. Every rank calls it.
    """
    check_rank(root_rank, process.size(), "root_rank")
    named = [(name_of(v, i), plain(v)) for i, v in enumerate(_kept_equal(model))]
    texts = [hashlib.blake2b(_raw(v), digest_size=16).digest() for _, v in named]
    world = process.communicator().world
    counts = operations.allgather(np.array([len(texts)]), world, tag="hdp.tensorflow in sync n").wait()
    assert counts is not None
    if (counts != counts[0]).any():
        raise OutOfSync(f"ranks have different models: {counts.ravel().tolist()} variables, by rank")
    if not texts:
        return
    mine = np.frombuffer(b"".join(texts), np.uint8).reshape(len(texts), 16)
    all_ranks = operations.allgather(mine, world, tag="hdp.tensorflow in sync").wait()
    assert all_ranks is not None
    differs = (all_ranks != all_ranks[root_rank]).any(axis=2)
    if differs.any():
        first = int(differs.any(axis=0).argmax())
        ranks = np.flatnonzero(differs[:, first]).tolist()
        raise OutOfSync(
            f"variable {named[first][0]!r} differs from rank {root_rank}'s on {_ranks(ranks)}; so do "
            f"{int(differs.any(axis=0).sum()) - 1} of the other {len(named) - 1} variables"
        )


def _kept_equal(model: Any) -> list[Any]:
    """Variables of `model` that all ranks should have alike: also those of frozen layers."""
    if not hasattr(model, "_flatten_layers"):
        return list(getattr(model, "variables", model))
    made = {
        id(variable)
        for layer in model._flatten_layers()
        for variable in getattr(layer, "_trainable_variables", None) or getattr(layer, "_trainable_weights", None) or ()
    }
    return [variable for variable in model.weights if id(variable) in made]


def plain(variable: Any) -> Any:
    """TensorFlow's variable within one of Keras 3's."""
    inner = getattr(variable, "value", None)
    return variable if inner is None or callable(inner) else inner


def name_of(variable: Any, place: int) -> str:
    """For messages."""
    return str(getattr(variable, "path", None) or getattr(variable, "name", None) or f"number {place}")


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else "ranks " + ", ".join(map(str, ranks))


def _raw(variable: Any) -> bytes:
    return bytes(np.asarray(variable.numpy()).tobytes())


def _broadcast_now(variables: Sequence[Any], root: int) -> None:
    world = process.communicator().world
    arrays = [np.asarray(v.numpy(), order="C") for v in variables]  # of 0-d it keeps the shape
    described = [(str(i), f"{a.dtype.name} of shape {list(a.shape)}") for i, a in enumerate(arrays)]
    agree("values", described, [name_of(v, i) for i, v in enumerate(variables)])
    if not arrays:
        return
    whole = np.concatenate([a.reshape(-1).view(np.uint8) for a in arrays])
    operations.broadcast(whole, world, root, tag="hdp.tensorflow values b").wait()
    if world.rank == root:
        return
    at = 0
    for variable, array in zip_strict(variables, arrays):
        part = whole[at : at + array.nbytes]
        at += array.nbytes
        variable.assign(part.view(array.dtype).reshape(array.shape))
