"""The two operations under all others, native or in Python: sums of many tensors at once, and everything else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from hdp.collectives import DType, Kind, ReduceOp, wires
from hdp.contract.errors import InvalidCollective
from hdp.tensorflow import fallback, native, process
from hdp.tensorflow.sequence import next_number

#: What the core reduces and moves as it is.
DTYPES = {
    tf.float16: DType.FLOAT16,
    tf.bfloat16: DType.BFLOAT16,
    tf.float32: DType.FLOAT32,
    tf.float64: DType.FLOAT64,
    tf.int8: DType.INT8,
    tf.uint8: DType.UINT8,
    tf.int32: DType.INT32,
    tf.int64: DType.INT64,
    tf.bool: DType.BOOL,
}

#: Gives the results of an operation that was started.
Finish = Callable[[], list[Any]]


def start_allreduce(
    tensors: Sequence[Any], op: ReduceOp, *, tag: str, number: Any = None, wire: str | None = None
) -> Finish:
    """Start the sum (or `op`) of `tensors`, one dtype, over all ranks, in one transfer. What it returns gives results.

    tag, number: every rank's calls meet by both; number: see `sequence`, None: drawn here.
    """
    dtype = tensors[0].dtype
    elements = sum(t.shape.num_elements() or 0 for t in tensors)
    chosen = wires.choose(
        None if wire == "float32" or dtype != tf.float32 else wire,
        process.communicator().defaults.wire,
        Kind.ALLREDUCE,
        DTYPES[dtype],
        op,
        elements,
    )
    library = native.operations()
    if library is None:
        ticket = fallback.start_allreduce(tensors, op, ("float32", "float16", "bfloat16")[chosen], tag)
        shapes = [t.shape for t in tensors]
        return lambda: _shaped(fallback.finish(ticket, [dtype] * len(tensors)), shapes)
    number = next_number(tag) if number is None else number
    with tf.device("CPU:0"):
        results = library.hdp_allreduce(sequence=number, tensors=tensors, tag=tag, op=int(op), wire=chosen)
    return lambda: list(results)


def exchange(
    tensor: Any,
    shape: Any,
    kind: Kind,
    *,
    tag: str,
    number: Any = None,
    op: ReduceOp = ReduceOp.SUM,
    root: int = 0,
    send_counts: Any = (),
    recv_counts: Any = (),
) -> Any:
    """Any other kind: `tensor` in, a tensor of `shape` (int64) out. Counts: elements for and from each rank."""
    shape, send_counts, recv_counts = (tf.cast(v, tf.int64) for v in (shape, send_counts, recv_counts))
    library = native.operations()
    if library is None:
        return fallback.exchange(tensor, shape, kind, op, root, send_counts, recv_counts, tag)
    number = next_number(tag) if number is None else number
    with tf.device("CPU:0"):
        return library.hdp_exchange(
            sequence=number,
            tensor=tensor,
            shape=shape,
            send_counts=send_counts,
            recv_counts=recv_counts,
            tag=tag,
            kind=int(kind),
            op=int(op),
            root=root,
            wire=0,
        )


def carried(tensor: Any, op: ReduceOp | None) -> tuple[Any, Callable[[Any], Any]]:
    """`tensor` as something that the core has, and the way back. op: how it will be combined; None: not at all.

    Raises InvalidCollective where there is no way.
    """
    dtype = tensor.dtype
    if dtype in DTYPES:
        return tensor, lambda result: result
    adds = op in (ReduceOp.SUM, ReduceOp.AVG)
    if dtype.is_complex and (op is None or adds):
        real = tf.float32 if dtype == tf.complex64 else tf.float64
        return tf.bitcast(tensor, real), lambda result: tf.bitcast(result, dtype)
    if dtype in (tf.int16, tf.uint16):
        return tf.cast(tensor, tf.int32), lambda result: tf.cast(result, dtype)
    if dtype in (tf.uint32, tf.uint64) and (op is None or op == ReduceOp.SUM):  # their sums have the same bits
        signed = tf.int32 if dtype == tf.uint32 else tf.int64
        return tf.bitcast(tensor, signed), lambda result: tf.bitcast(result, dtype)
    how = "" if op is None else f" by {op.name.lower()}"
    raise InvalidCollective(f"a tensor of {dtype.name} can't travel{how}; cast it first")


def _shaped(tensors: list[Any], shapes: Sequence[Any]) -> list[Any]:
    for tensor, shape in zip(tensors, shapes, strict=True):
        tensor.set_shape(shape)
    return tensors
