"""The operations in Python, by `tf.numpy_function`, where the native ones can't be had.

TensorFlow runs such functions one after the other, in the order of the program; so an operation is started by one
function and waited for by another, and several that are started first are in flight together. They run on the CPU;
TensorFlow copies to it and from it where tensors are on a GPU. Graphs of TensorFlow 1
have no such order: there, operations that one run has several of must depend on each other.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hdp.collectives import Kind, ReduceOp, arrays, wires
from hdp.collectives.work import Work
from hdp.contract.errors import HdpError, InvalidCollective
from hdp.contract.zipping import zip_strict
from hdp.tensorflow import process

_WIRES = ("float32", "float16", "bfloat16")

_lock = threading.Lock()
_tickets = itertools.count()
_flying: dict[int, tuple[Work, list[tuple[int, ...]]]] = {}


def start_allreduce(tensors: Sequence[Any], op: ReduceOp, wire: int, tag: str) -> Any:
    """Start it; gives a ticket, an int64 scalar."""

    def start(*given: np.ndarray[Any, Any]) -> Any:
        joined = np.empty(sum(a.size for a in given), given[0].dtype)
        at = 0
        for array in given:
            joined[at : at + array.size] = array.ravel()
            at += array.size
        work = _start(
            Kind.ALLREDUCE, joined, joined, joined.size, _compared(given), op=op, wire=_chosen(wire, joined), tag=tag
        )
        return np.int64(_keep(work, [a.shape for a in given]))

    return _called(start, list(tensors), [tf.int64], "hdp_start")[0]


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

    return _called(wait, [ticket], list(dtypes), "hdp_finish")


def exchange(
    tensor: Any,
    shape: Any,
    kind: Kind,
    op: ReduceOp,
    root: int,
    send_counts: Any,
    recv_counts: Any,
    wire: int,
    tag: str,
) -> Any:
    """Every other kind, see `ops.exchange`."""

    def run(
        array: np.ndarray[Any, Any],
        dims: np.ndarray[Any, Any],
        send: np.ndarray[Any, Any],
        receive: np.ndarray[Any, Any],
    ) -> np.ndarray[Any, Any]:
        sends, receives = send.tolist() or None, receive.tolist() or None
        if dims.min(initial=0) < 0 or min(sends or [0]) < 0 or min(receives or [0]) < 0:
            raise InvalidCollective(f"{tag}: a number below 0 among the rows for each rank")
        out = np.empty(dims, array.dtype)
        _check_sums(kind, array, out, sends, receives)
        compared = array.shape if sends is None and receives is None else array.shape[1:]
        count = out.size if kind in (Kind.BROADCAST, Kind.REDUCE_SCATTER) else array.size
        more = {"send_counts": sends, "recv_counts": receives, "wire": _chosen(wire, array)}
        result = _start(kind, array, out, count, compared, op=op, root=root, tag=tag, **more).wait()
        assert result is not None
        return result

    return _called(run, [tensor, shape, send_counts, recv_counts], [tensor.dtype], "hdp_exchange")[0]


def _called(function: Callable[..., Any], inputs: Sequence[Any], dtypes: Sequence[Any], name: str) -> list[Any]:
    """What `function` of arrays gives, as tensors: now, or when the graph runs."""
    if not tf.executing_eagerly():
        with tf.device("CPU:0"):
            found = tf.numpy_function(function, list(inputs), list(dtypes), name=name)
        return list(tf.nest.flatten(found))
    # TensorFlow's own eager call makes no array of a scalar in bfloat16.
    found = function(*(np.asarray(tensor.numpy()) for tensor in inputs))
    found = found if isinstance(found, list) else [found]
    return [tf.constant(value, dtype) for value, dtype in zip_strict(found, dtypes)]


def _start(
    kind: Kind,
    array: np.ndarray[Any, Any],
    out: np.ndarray[Any, Any],
    count: int,
    compared: Sequence[int],
    **how: Any,
) -> Work:
    group, source = process.communicator().world, arrays.source(array)
    work = Work(group, (source, out), out)
    try:
        ticket = group.start(
            kind, arrays.dtype_of(out), arrays.address(source), arrays.address(out), count, shape=compared, **how
        )
    except HdpError:
        work.refused()
        raise
    work.started(ticket)
    return work


def _compared(given: Sequence[np.ndarray[Any, Any]]) -> list[int]:
    """What ranks compare of several arrays: their shapes, one after the other. The core takes 32 numbers."""
    if len(given) == 1:
        return list(given[0].shape)
    dims = [n for array in given for n in array.shape]
    digest = hashlib.blake2s(repr([a.shape for a in given]).encode(), digest_size=4).digest()
    return [*dims[:31], int.from_bytes(digest, "little")]


def _check_sums(
    kind: Kind,
    array: np.ndarray[Any, Any],
    out: np.ndarray[Any, Any],
    sends: list[int] | None,
    receives: list[int] | None,
) -> None:
    incoming = array if kind == Kind.REDUCE_SCATTER else out
    for counts, of, what in ((sends, array, "for"), (receives, incoming, "from")):
        if counts is not None and sum(counts) != of.size:
            raise InvalidCollective(
                f"{kind.name.lower()}: the rows {what} all ranks have {sum(counts)} elements, the tensor has {of.size}"
            )


def _chosen(wire: int, array: np.ndarray[Any, Any]) -> str:
    """See `ops._wire`."""
    return _WIRES[abs(wire) if wire > 0 or array.nbytes >= wires.LEAST_BYTES else 0]


def _keep(work: Work, shapes: list[tuple[int, ...]]) -> int:
    ticket = next(_tickets)
    with _lock:
        _flying[ticket] = (work, shapes)
    return ticket
