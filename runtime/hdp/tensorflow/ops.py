"""The two operations under all others, native or in Python: sums of many tensors at once, and everything else.

They run on the device where their tensors are. The core takes host memory: on a GPU TensorFlow copies what goes in
and what comes out, as it does for each operation of its own that works on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from hdp.collectives import DType, Kind, ReduceOp, wires
from hdp.contract.errors import InvalidCollective
from hdp.contract.zipping import zip_strict
from hdp.tensorflow import fallback, native, process
from hdp.tensorflow.sequence import ensure_run, next_call

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
    tensors: Sequence[Any], op: ReduceOp, *, tag: str, number: Any = None, wire: str = "float32"
) -> Finish:
    """Start the sum (or `op`) of `tensors`, one dtype, over all ranks, in one transfer. What it returns gives results.

    tag, number: every rank's calls meet by both, see `sequence`; no number: drawn here, and run whatever uses the
    results. wire: what float32 is rounded to between hosts; "float32": the job's choice.
    """
    dtype, made = tensors[0].dtype, number is None
    if number is None:
        tag, number = next_call(tag)
    chosen = _wire(wire, dtype, op)
    library = native.operations()
    if library is None:
        ticket = fallback.start_allreduce(tensors, op, chosen, tag)
        shapes = [t.shape for t in tensors]
        return lambda: _shaped(fallback.finish(ticket, [dtype] * len(tensors)), shapes)
    results = library.hdp_allreduce(sequence=number, tensors=tensors, tag=tag, op=int(op), wire=chosen)
    if made:
        ensure_run(results[0])
    return lambda: list(results)


def exchange(
    tensor: Any,
    shape: Any,
    kind: Kind,
    *,
    tag: str,
    op: ReduceOp = ReduceOp.SUM,
    root: int = 0,
    send_counts: Any = (),
    recv_counts: Any = (),
) -> Any:
    """Any other kind: `tensor` in, a tensor of `shape` (int64) out. Counts: elements for and from each rank."""
    with on_host():
        shape, send_counts, recv_counts = (tf.cast(v, tf.int64) for v in (shape, send_counts, recv_counts))
    tag, number = next_call(tag)
    wire = _wire("float32", tensor.dtype, op) if kind == Kind.REDUCE_SCATTER else 0
    library = native.operations()
    if library is None:
        return fallback.exchange(tensor, shape, kind, op, root, send_counts, recv_counts, wire, tag)
    result = library.hdp_exchange(
        sequence=number,
        tensor=tensor,
        shape=shape,
        send_counts=send_counts,
        recv_counts=recv_counts,
        tag=tag,
        kind=int(kind),
        op=int(op),
        root=root,
        wire=wire,
    )
    ensure_run(result)
    return result


def on_host() -> Any:
    """A scope for arithmetic with shapes and counts: on a GPU each step of it would be a kernel, and two copies."""
    return tf.device("CPU:0")


def carried(tensor: Any, op: ReduceOp | None) -> tuple[Any, Callable[[Any], Any]]:
    """`tensor` as something that the core has, and the way back. op: how it will be combined; None: not at all.

    Raises InvalidCollective where there is no way.
    """
    dtype = tensor.dtype
    if op == ReduceOp.AVG and not (dtype.is_floating or dtype.is_complex):
        raise InvalidCollective(f"a tensor of {dtype.name} can't be averaged; sum it and divide, or cast it first")
    adds = op in (ReduceOp.SUM, ReduceOp.AVG)
    if dtype in DTYPES:
        return tensor, lambda result: result
    if dtype.is_complex and (op is None or adds):
        real = tf.float32 if dtype == tf.complex64 else tf.float64
        return tf.bitcast(tensor, real), lambda result: tf.bitcast(result, dtype)
    if dtype in (tf.int16, tf.uint16):
        return tf.cast(tensor, tf.int32), lambda result: tf.cast(result, dtype)
    if dtype == tf.uint32 and op in (ReduceOp.MIN, ReduceOp.MAX):
        return tf.cast(tensor, tf.int64), lambda result: tf.cast(result, dtype)
    if dtype in (tf.uint32, tf.uint64) and op not in (ReduceOp.MIN, ReduceOp.MAX):  # the bits are those of signed ones
        signed = tf.int32 if dtype == tf.uint32 else tf.int64
        return tf.bitcast(tensor, signed), lambda result: tf.bitcast(result, dtype)
    how = "" if op is None else f" by {op.name.lower()}"
    raise InvalidCollective(f"a tensor of {dtype.name} can't travel{how}; cast it first")


def _wire(asked: str, dtype: Any, op: ReduceOp) -> int:
    """What the operations' attribute ``wire`` says: a format, or below 0 that of transfers that are large enough.

    How large one is may be known on one rank when it traces a function, and on another only when it runs.
    """
    if dtype != tf.float32:
        return 0
    if asked != "float32":
        return wires.format_of(asked, "compression")
    default = process.communicator().defaults.wire
    return -wires.format_of(default, "wire") if op in (ReduceOp.SUM, ReduceOp.AVG) else 0


def _shaped(tensors: list[Any], shapes: Sequence[Any]) -> list[Any]:
    for tensor, shape in zip_strict(tensors, shapes):
        tensor.set_shape(shape)
    return tensors
