"""The operations in Python, by `tf.numpy_function`, where the native ones can't be had.

TensorFlow runs such functions one after the other, in the order of the program; so an operation is started by one
function and waited for by another, and several that are started first are in flight together.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hdp.collectives import Kind, ReduceOp, operations
from hdp.collectives.work import Work
from hdp.tensorflow import process

_lock = threading.Lock()
_tickets = itertools.count()
_flying: dict[int, tuple[Work, list[tuple[int, ...]]]] = {}


def start_allreduce(tensors: Sequence[Any], op: ReduceOp, wire: str | None, tag: str) -> Any:
    """Start it; gives a ticket, an int64 scalar."""

    def start(*arrays: np.ndarray[Any, Any]) -> Any:
        joined = np.empty(sum(a.size for a in arrays), arrays[0].dtype)
        at = 0
        for array in arrays:
            joined[at : at + array.size] = array.ravel()
            at += array.size
        work = operations.allreduce(joined, process.communicator().world, op, out=joined, wire=wire, tag=tag)
        return np.int64(_keep(work, [a.shape for a in arrays]))

    return tf.numpy_function(start, list(tensors), tf.int64, name="hdp_start")


def finish(ticket: Any, dtypes: Sequence[Any]) -> list[Any]:
    """The results of what `ticket` stands for."""

    def wait(number: np.int64) -> list[np.ndarray[Any, Any]]:
        with _lock:
            work, shapes = _flying.pop(int(number))
        joined, at, results = work.wait(), 0, []
        assert joined is not None
        for shape in shapes:
            count = int(np.prod(shape, dtype=np.int64))
            results.append(joined.ravel()[at : at + count].reshape(shape))
            at += count
        return results

    return tf.nest.flatten(tf.numpy_function(wait, [ticket], list(dtypes), name="hdp_finish"))  # one is no list, eagerly


def exchange(
    tensor: Any, shape: Any, kind: Kind, op: ReduceOp, root: int, send_counts: Any, recv_counts: Any, tag: str
) -> Any:
    """Every other kind, see `ops.exchange`."""

    def run(
        array: np.ndarray[Any, Any],
        dims: np.ndarray[Any, Any],
        send: np.ndarray[Any, Any],
        receive: np.ndarray[Any, Any],
    ) -> np.ndarray[Any, Any]:
        group, flat = process.communicator().world, np.ascontiguousarray(array).ravel()
        out = np.empty(int(np.prod(dims, dtype=np.int64)), array.dtype)
        if kind == Kind.BROADCAST:
            if group.rank == root:
                out[:] = flat
            work = operations.broadcast(out, group, root, tag=tag)
        elif kind == Kind.ALLGATHER:
            work = operations.allgather(flat, group, counts=receive.tolist(), out=out, tag=tag)
        elif kind == Kind.REDUCE_SCATTER:
            work = operations.reduce_scatter(flat, group, op, counts=receive.tolist(), out=out, tag=tag)
        else:
            counts = {"send_counts": send.tolist(), "recv_counts": receive.tolist()}
            work = operations.alltoall(flat, group, out=out, tag=tag, **counts)
        result = work.wait()
        assert result is not None
        return result.reshape(dims)

    return tf.numpy_function(run, [tensor, shape, send_counts, recv_counts], tensor.dtype, name="hdp_exchange")


def _keep(work: Work, shapes: list[tuple[int, ...]]) -> int:
    ticket = next(_tickets)
    with _lock:
        _flying[ticket] = (work, shapes)
    return ticket
