"""The collectives that scripts call: on tensors, eagerly and in functions, with gradients.

Every rank calls them in the same order, or with the same `name`; tensors with a name meet by it. Results are new
tensors. An operation that fails raises tf.errors.InvalidArgumentError (ranks called different things),
DeadlineExceededError (ranks are missing), AbortedError (a rank or host is gone) or InternalError; the text says
who and what, and nothing more can be sent. Where Python runs the operations, the errors are hdp's own, and within
functions tf.errors.UnknownError with the same text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hdp.collectives import Kind, ReduceOp, operations
from hdp.collectives.communicator import check_rank
from hdp.contract.errors import InvalidCollective
from hdp.contract.zipping import zip_strict
from hdp.tensorflow import ops, process
from hdp.tensorflow.compression import Compression
from hdp.tensorflow.refusals import refuse
from hdp.tensorflow.sequence import tag_of

#: Tracing is faster where AutoGraph doesn't rewrite what has no Python `if` over tensors.
_as_it_is = tf.autograph.experimental.do_not_convert

Average = ReduceOp.AVG
Sum = ReduceOp.SUM
Min = ReduceOp.MIN
Max = ReduceOp.MAX
Product = ReduceOp.PRODUCT


@_as_it_is  # type: ignore[untyped-decorator]
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: Any = None,
) -> Any:
    """Combine `tensor` over all ranks; the same shape on each. Result: that shape and dtype.

    op: Average (the default), Sum, Min, Max or Product. average: the old way to say it. tf.IndexedSlices: every
    rank's rows are gathered (Average and Sum only). prescale_factor, postscale_factor: multiply before and after.
    Gradient: the gradients, combined in the same way (Average and Sum only).
    """
    refuse(
        "allreduce",
        {"device_dense": (device_dense, ""), "device_sparse": (device_sparse, ""), "process_set": (process_set, None)},
    )
    op = _op(op, average)
    if isinstance(tensor, tf.IndexedSlices):
        return _sparse(tensor, op, prescale_factor, postscale_factor, name)
    tag = tag_of(f"allreduce {name or ''}")
    [result] = _allreduce([tf.convert_to_tensor(tensor)], op, compression, prescale_factor, postscale_factor, tag)
    return result


@_as_it_is  # type: ignore[untyped-decorator]
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: Any = None,
) -> list[Any]:
    """`allreduce` of several tensors at once: one transfer for each dtype among them."""
    refuse(
        "grouped_allreduce",
        {"device_dense": (device_dense, ""), "device_sparse": (device_sparse, ""), "process_set": (process_set, None)},
    )
    dense = [tf.convert_to_tensor(t) for t in tensors]
    op = _op(op, average)
    results: list[Any] = [None] * len(dense)
    for dtype in dict.fromkeys(t.dtype for t in dense):
        places = [i for i, t in enumerate(dense) if t.dtype == dtype]
        group = [dense[i] for i in places]
        tag = tag_of(f"grouped {dtype.name} {name or ''}")
        whole = _allreduce(group, op, compression, prescale_factor, postscale_factor, tag)
        for place, result in zip_strict(places, whole):
            results[place] = result
    return results


def oob_allreduce(tensor: Any, compression: Any = Compression.none, op: ReduceOp | None = None) -> Any:
    """SMDDP's `allreduce` for what is no gradient (losses, metrics): here every `allreduce` may be."""
    return allreduce(tensor, compression=compression, op=op, name="oob")


def overlap(tensor: Any) -> Any:
    """The tensor itself. SMDDP's hint to XLA; gradients leave during the backward pass without it."""
    return tf.identity(tensor)


@_as_it_is  # type: ignore[untyped-decorator]
def allgather(tensor: Any, name: str | None = None, process_set: Any = None) -> Any:
    """Every rank's `tensor`, one after the other by rank, along the first axis, which may differ in length.

    Gradient: the sum over ranks of what belongs to this rank's rows.
    """
    refuse("allgather", {"process_set": (process_set, None)})
    tag = tag_of(f"allgather {name or ''}")

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def gather(value: Any) -> Any:
        rows = _gathered_rows(value, tag)
        result = _gather_rows(value, rows, tag)

        def gradient(upstream: Any) -> Any:
            whole = allreduce(upstream, op=Sum, name=f"gradient of {tag}")
            me = process.rank()
            with ops.on_host():
                begin, end = tf.reduce_sum(rows[:me]), tf.reduce_sum(rows[: me + 1])
            return whole[begin:end]

        return result, gradient

    return gather(_with_rows(tensor, "allgather"))


@_as_it_is  # type: ignore[untyped-decorator]
def broadcast(tensor: Any, root_rank: int = 0, name: str | None = None, process_set: Any = None) -> Any:
    """The `tensor` of rank `root_rank`, on every rank; the same shape on each.

    Gradient: the sum of all ranks' on `root_rank`, zero elsewhere.
    """
    refuse("broadcast", {"process_set": (process_set, None)})
    check_rank(root_rank, process.size(), "root_rank")
    tag = tag_of(f"broadcast {name or ''}")

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def send(value: Any) -> Any:
        travels, back = ops.carried(value, None)
        result = back(ops.exchange(travels, tf.shape(travels), Kind.BROADCAST, tag=tag, root=root_rank))
        result.set_shape(value.shape)

        def gradient(upstream: Any) -> Any:
            whole = allreduce(upstream, op=Sum, name=f"gradient of {tag}")
            return whole if process.rank() == root_rank else tf.zeros_like(whole)

        return result, gradient

    return send(tf.convert_to_tensor(tensor))


@_as_it_is  # type: ignore[untyped-decorator]
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: ReduceOp = Average,
    name: str | None = None,
    process_set: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Combine `tensor` over all ranks; each gets its part of the rows.

    The first ranks get one more where the rows don't divide. op: Average or Sum. Gradient: every rank's, gathered, and
    divided by the number of ranks for Average.
    """
    refuse("reducescatter", {"device_dense": (device_dense, ""), "process_set": (process_set, None)})
    if compression != Compression.none:
        raise InvalidCollective("reducescatter(compression=...) isn't supported: set distribution's wire_dtype")
    if op not in (Average, Sum):
        raise InvalidCollective(f"reducescatter combines by Average or Sum, not {op!r}")
    tag = tag_of(f"reducescatter {name or ''}")

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def scatter(value: Any) -> Any:
        travels, back = ops.carried(_scaled(value, prescale_factor), op)
        ranks, dims = process.size(), tf.shape(travels, tf.int64)
        with ops.on_host():
            rows, row = dims[0], dims[1:]
            counts = rows // ranks + tf.cast(tf.range(ranks, dtype=tf.int64) < rows % ranks, tf.int64)
            elements = counts * tf.reduce_prod(row)
            shape = tf.concat([[counts[process.rank()]], row], 0)
        result = ops.exchange(travels, shape, Kind.REDUCE_SCATTER, tag=tag, op=op, recv_counts=elements)
        result = _scaled(back(result), postscale_factor)
        result.set_shape([None, *value.shape[1:]])

        def gradient(upstream: Any) -> Any:
            scale = prescale_factor * postscale_factor / (ranks if op == Average else 1)
            return allgather(_scaled(upstream, scale), name=f"gradient of {tag}")

        return result, gradient

    return scatter(_with_rows(tensor, "reducescatter"))


@_as_it_is  # type: ignore[untyped-decorator]
def alltoall(tensor: Any, splits: Any = None, name: str | None = None, process_set: Any = None) -> Any:
    """Rows of `tensor` for each rank, in order of ranks; what the other ranks have for this one comes back.

    splits: rows for each rank; then the result is the pair (rows, how many came from each rank). None: the rows divide
    evenly, and the result is the rows alone. Gradient: the way back.
    """
    refuse("alltoall", {"process_set": (process_set, None)})
    tag, ranks = tag_of(f"alltoall {name or ''}"), process.size()
    tensor = _with_rows(tensor, "alltoall")
    if splits is None:
        rows = tensor.shape[0]
        if rows is not None and rows % ranks:
            raise InvalidCollective(f"alltoall of {rows} rows over {ranks} ranks; say splits=, rows for each rank")
        given = tf.fill([ranks], tf.shape(tensor, tf.int64)[0] // ranks)
    else:
        given = tf.cast(splits, tf.int64)
        if not given.shape.is_compatible_with([ranks]):
            raise InvalidCollective(
                f"alltoall's splits have shape {given.shape}; expected [{ranks}], rows for each rank"
            )
        given = tf.ensure_shape(given, [ranks])

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def swap(value: Any) -> Any:
        travels, back = ops.carried(value, None)
        one = np.ones(ranks, np.int64)
        received = ops.exchange(given, [ranks], Kind.ALLTOALL, tag=f"n {tag}", send_counts=one, recv_counts=one)
        received.set_shape([ranks])
        dims = tf.shape(travels, tf.int64)
        with ops.on_host():
            width = tf.reduce_prod(dims[1:])
            shape = tf.concat([[tf.reduce_sum(received)], dims[1:]], 0)
            sends, receives = given * width, received * width
        result = ops.exchange(travels, shape, Kind.ALLTOALL, tag=tag, send_counts=sends, recv_counts=receives)
        result = back(result)
        result.set_shape([None, *value.shape[1:]])

        def gradient(upstream: Any, _: Any = None) -> Any:
            whole, _ = alltoall(upstream, splits=received, name=f"gradient of {tag}")
            return whole

        return (result, tf.stop_gradient(received)), gradient

    result, received = swap(tensor)
    return result if splits is None else (result, tf.cast(received, tf.convert_to_tensor(splits).dtype))


@_as_it_is  # type: ignore[untyped-decorator]
def barrier(process_set: Any = None) -> None:
    """Return once every rank is here. Outside of functions only: what a graph does is ordered by its data."""
    refuse("barrier", {"process_set": (process_set, None)})
    if not tf.executing_eagerly():
        raise InvalidCollective("barrier() within a tf.function has no place in its order; call it outside")
    operations.barrier(process.communicator().world, tag="hdp.tensorflow barrier").wait()


@_as_it_is  # type: ignore[untyped-decorator]
def sparse_allreduce(slices: Any, op: ReduceOp, name: str) -> Any:
    """Sum or average of tf.IndexedSlices: all ranks' rows, one after the other."""
    if op not in (Average, Sum):
        raise InvalidCollective(
            f"tf.IndexedSlices are combined by Average or Sum, not {op.name}; use tf.convert_to_tensor"
        )
    tag = tag_of(f"sparse {name}")
    ops.carried(slices.values, op)
    rows = _gathered_rows(slices.values, tag)
    values = _gather_rows(slices.values, rows, f"v {tag}")
    indices = _gather_rows(slices.indices, rows, f"i {tag}")
    if op == Average:
        values = values / tf.cast(process.size(), values.dtype)
    return tf.IndexedSlices(values, indices, slices.dense_shape)


# ---- what they share -------------------------------------------------------------------------------------------------


def _op(op: ReduceOp | None, average: bool | None) -> ReduceOp:
    if op is not None and average is not None:
        raise InvalidCollective("say op= or average=, not both")
    if op is not None:
        return ReduceOp(op)
    return Sum if average is False else Average


def _allreduce(tensors: list[Any], op: ReduceOp, wire: str, prescale: float, postscale: float, tag: str) -> list[Any]:
    """Of tensors of one dtype."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def reduce(*values: Any) -> Any:
        pairs = [ops.carried(_scaled(v, prescale), op) for v in values]
        finish = ops.start_allreduce([travels for travels, _ in pairs], op, tag=tag, wire=wire)
        results = [_scaled(back(r), postscale) for (_, back), r in zip_strict(pairs, finish())]

        def gradient(*upstream: Any) -> Any:
            if op not in (Average, Sum):
                raise InvalidCollective(f"allreduce by {op.name} has no gradient; use Average or Sum")
            return _allreduce(list(upstream), op, wire, prescale, postscale, tag_of(f"gradient of {tag}"))

        return results, gradient

    return list(reduce(*tensors))


def _sparse(slices: Any, op: ReduceOp, prescale: float, postscale: float, name: str | None) -> Any:
    scaled = tf.IndexedSlices(_scaled(slices.values, prescale), slices.indices, slices.dense_shape)
    found = sparse_allreduce(scaled, op, name or "")
    return tf.IndexedSlices(_scaled(found.values, postscale), found.indices, found.dense_shape)


def _scaled(tensor: Any, factor: float) -> Any:
    """In float64 where `tensor` has integers, of which the fraction goes, and in float32 where it has 16-bit floats."""
    dtype = tensor.dtype
    if factor == 1.0:
        return tensor
    if dtype == tf.bool:
        raise InvalidCollective(f"a tensor of bool can't be scaled by {factor}; cast it first")
    if dtype.is_integer and factor == int(factor):
        return tensor * tf.cast(int(factor), dtype)
    wide = tf.float64 if dtype.is_integer else tf.float32 if dtype.size == 2 else dtype
    return tf.cast(tf.cast(tensor, wide) * tf.cast(factor, wide), dtype)


def _with_rows(tensor: Any, what: str) -> Any:
    tensor = tf.convert_to_tensor(tensor)
    if tensor.shape.rank == 0:
        raise InvalidCollective(f"{what} works along the first axis, and a scalar has none; give it shape [1]")
    return tensor


def _gathered_rows(value: Any, tag: str) -> Any:
    """How many rows each rank has: int64, by rank."""
    ranks = process.size()
    dims = tf.shape(value, tf.int64)
    with ops.on_host():
        rows = dims[:1]
    all_rows = ops.exchange(rows, [ranks], Kind.ALLGATHER, tag=f"n {tag}", recv_counts=np.ones(ranks, np.int64))
    all_rows.set_shape([ranks])
    return all_rows


def _gather_rows(value: Any, rows: Any, tag: str) -> Any:
    travels, back = ops.carried(value, None)
    dims = tf.shape(travels, tf.int64)
    with ops.on_host():
        shape = tf.concat([[tf.reduce_sum(rows)], dims[1:]], 0)
        counts = rows * tf.reduce_prod(dims[1:])
    result = back(ops.exchange(travels, shape, Kind.ALLGATHER, tag=tag, recv_counts=counts))
    result.set_shape([None, *value.shape[1:]])
    return result
