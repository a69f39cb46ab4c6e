"""Collectives, compared with NumPy, which has all ranks' tensors at hand."""

import numpy as np
import tensorflow as tf
from function_support import FLOATS, INTEGERS, OPS, SHAPES, both, everybody, raises, rank, same, tensor, values, whole

import hdp.tensorflow as dist
from hdp.contract.errors import InvalidCollective


def allowed(dtype, op):
    if op == dist.Average:
        return dtype.is_floating or dtype.is_complex
    if dtype.is_complex:
        return op == dist.Sum
    return dtype != tf.uint64 or op in (dist.Sum, dist.Product)


def check_allreduce_of_every_dtype():
    """5 operations, 15 dtypes, scalars and empty tensors; what can't be done is refused before anything is sent."""
    for dtype in (*FLOATS, *INTEGERS, tf.bool, tf.complex64, tf.complex128):
        cases = [(op, shape) for op in OPS if allowed(dtype, op) for shape in SHAPES]

        def reduce_all(*given, cases=cases):
            return [dist.allreduce(given[i], op=op) for i, (op, _) in enumerate(cases)]

        given = [tensor(shape, dtype) for _, shape in cases]
        for results in (reduce_all(*given), tf.function(reduce_all)(*given)):
            for result, (op, shape) in zip(results, cases, strict=True):
                try:
                    same(result, whole(shape, dtype, op), dtype)
                except AssertionError as exc:
                    raise AssertionError(f"{dtype.name} {op!r} {shape}: {exc}") from exc
        for op in OPS:
            if not allowed(dtype, op):
                raises(
                    InvalidCollective, lambda op=op, dtype=dtype: dist.allreduce(tensor([3], dtype), op=op), dtype.name
                )
    raises(InvalidCollective, lambda: dist.allreduce(tf.constant("text"), op=dist.Sum), "string can't travel")


def check_allreduce_with_shapes_unknown():
    for shape in ((), (5,), (4, 3), (0, 3)):
        for result in both(lambda t: dist.allreduce(t, op=dist.Sum), tensor(shape, tf.float32)):
            same(result, whole(shape, tf.float32), tf.float32)
    unknown = tf.function(lambda t: dist.allreduce(t), input_signature=[tf.TensorSpec(None, tf.float32)])
    for shape in ((), (5,), (4, 3)):
        same(unknown(tensor(shape, tf.float32)), whole(shape, tf.float32, dist.Average))


def check_scales():
    for dtype in (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.uint8, tf.int16):
        f = lambda t: dist.allreduce(t, op=dist.Sum, prescale_factor=2.0, postscale_factor=3.0)  # noqa: E731
        for result in both(f, tensor([4, 3], dtype)):
            same(result, (whole([4, 3], dtype).astype(np.float64) * 6).astype(np.int64), dtype)
    half = dist.allreduce(tensor([6], tf.int32), op=dist.Sum, postscale_factor=0.5)
    same(half, np.trunc(whole([6], tf.int32) / 2), tf.int32)
    found = dist.allreduce(tensor([6], tf.complex64), prescale_factor=0.25)
    same(found, whole([6], tf.complex64, dist.Average) * np.float32(0.25))
    raises(InvalidCollective, lambda: dist.allreduce(tensor([3], tf.bool), op=dist.Sum, prescale_factor=0.5), "bool")
    same(dist.allreduce(tensor([6], tf.float32), average=False), whole([6], tf.float32))
    same(dist.allreduce(tensor([6], tf.float32), average=True), whole([6], tf.float32, dist.Average))
    raises(InvalidCollective, lambda: dist.allreduce(tensor([6], tf.float32), average=True, op=dist.Sum), "not both")


def check_compression():
    """float32 rounded between hosts; a large tensor, so that it is more than a message. Same bits on all ranks."""
    count = 50_000
    parts = [np.sin(np.arange(count) + r).astype(np.float32) for r in everybody()]
    exact = np.add.reduce(parts, dtype=np.float64)
    for compression, step in ((dist.Compression.fp16, 2.0**-11), (dist.Compression.bf16, 2.0**-8)):
        f = lambda t, how=compression: dist.allreduce(t, op=dist.Sum, compression=how)  # noqa: E731
        for result in both(f, tf.constant(parts[rank()])):
            error = np.abs(result.numpy() - exact).max()
            assert error <= 2 * step * sum(np.abs(p) for p in parts).max(), error
            assert error > 1e-5, "nothing was rounded"
            all_bits = dist.allgather(tf.bitcast(result, tf.int32)[None]).numpy()
            assert (all_bits == all_bits[0]).all(), "ranks have different bits"
    same(
        dist.allreduce(tensor([6], tf.float64), compression=dist.Compression.fp16, op=dist.Sum), whole([6], tf.float64)
    )
    f = lambda: dist.allreduce(tf.ones([3]), compression="zip")  # noqa: E731
    raises(InvalidCollective, f, "compression is 'zip'")


def check_grouped_allreduce():
    dtypes = [tf.float32, tf.int64, tf.float32, tf.float16, tf.complex64, tf.int64, tf.float32]
    shapes = [(4, 3), (5,), (), (2, 1, 3), (4,), (0,), (0, 2)]
    given = [tensor(s, d, i) for i, (s, d) in enumerate(zip(shapes, dtypes, strict=True))]
    for results in both(lambda *ts: dist.grouped_allreduce(ts, op=dist.Sum), *given):
        assert len(results) == len(given)
        for i, (result, shape, dtype) in enumerate(zip(results, shapes, dtypes, strict=True)):
            same(result, whole(shape, dtype, dist.Sum, i), dtype)
    many = [tensor((i % 5, 2), tf.float32, i) for i in range(70)]  # more than what ranks compare one by one
    for i, result in enumerate(dist.grouped_allreduce(many)):
        same(result, whole((i % 5, 2), tf.float32, dist.Average, i))
    assert dist.grouped_allreduce([]) == []


def rows_of(r):
    """0 for the first rank."""
    return r * 2 % 5


def check_allgather():
    for dtype in (*FLOATS, *INTEGERS, tf.bool, tf.complex64):
        for row in ((), (3,), (2, 2), (0,)):
            mine = tensor((rows_of(rank()), *row), dtype)
            expected = np.concatenate([values((rows_of(r), *row), dtype, r) for r in everybody()])
            for result in both(dist.allgather, mine) if dtype == tf.float32 else [dist.allgather(mine)]:
                same(result, expected, dtype, bits=True)
    nothing = dist.allgather(tf.zeros([0, 4]))
    assert nothing.shape == (0, 4)
    raises(InvalidCollective, lambda: dist.allgather(tf.constant(1.0)), "scalar")


def check_broadcast():
    for root in everybody():
        for dtype in (*FLOATS, *INTEGERS, tf.bool, tf.complex64):
            same(dist.broadcast(tensor((4, 3), dtype), root), values((4, 3), dtype, root), dtype, bits=True)
        for shape in ((), (0,), (2, 1, 3)):
            for result in both(lambda t, root=root: dist.broadcast(t, root), tensor(shape, tf.float32)):
                same(result, values(shape, tf.float32, root), bits=True)
    raises(InvalidCollective, lambda: dist.broadcast(tf.ones(1), dist.size()), "root_rank")


def check_reducescatter():
    ranks = dist.size()
    for dtype in (*FLOATS, tf.int32, tf.uint64, tf.int16, tf.complex64):
        for rows in (ranks, 2 * ranks + 1, ranks - 1, 0):
            for op in (dist.Sum, dist.Average) if dtype.is_floating or dtype.is_complex else (dist.Sum,):
                expected = np.array_split(whole((rows, 3), dtype, op), ranks)[rank()]
                f = lambda t, op=op: dist.reducescatter(t, op=op)  # noqa: E731
                results = both(f, tensor((rows, 3), dtype)) if dtype == tf.float32 else [f(tensor((rows, 3), dtype))]
                for result in results:
                    same(result, expected, dtype)
    scaled = dist.reducescatter(tensor((ranks,), tf.float32), op=dist.Sum, prescale_factor=2.0, postscale_factor=0.25)
    same(scaled, whole((ranks,), tf.float32)[rank() : rank() + 1] / 2)
    raises(InvalidCollective, lambda: dist.reducescatter(tf.ones([4]), op=dist.Max), "Average or Sum")
    raises(InvalidCollective, lambda: dist.reducescatter(tf.ones([4]), compression=dist.Compression.fp16), "wire_dtype")


def splits_of(r):
    """Rows from `r` to each rank; rank 1 sends nothing."""
    return [0 if r == 1 else (r + to) % 3 for to in everybody()]


def check_alltoall():
    me, ranks = rank(), dist.size()
    parts = [np.split(np.arange(ranks * 2 * 3).reshape(-1, 3) + 100 * r, ranks) for r in everybody()]
    expected = np.concatenate([parts[r][me] for r in everybody()])
    for dtype in (tf.float32, tf.int32, tf.uint16, tf.bfloat16, tf.complex64):
        mine = tf.cast(np.concatenate(parts[me]), dtype)
        for result in both(dist.alltoall, mine) if dtype == tf.float32 else [dist.alltoall(mine)]:
            same(result, tf.cast(expected, dtype))
    mine = [np.arange(sum(splits_of(r)) * 2, dtype=np.float32).reshape(-1, 2) + 1000 * r for r in everybody()]
    ends = [np.cumsum([0, *splits_of(r)]) for r in everybody()]
    expected = np.concatenate([mine[r][ends[r][me] : ends[r][me + 1]] for r in everybody()])
    for splits in (tf.constant(splits_of(me)), tf.constant(splits_of(me), tf.int64)):
        for result, received in both(dist.alltoall, tf.constant(mine[me]), splits):
            same(result, expected)
            same(received, [splits_of(r)[me] for r in everybody()], splits.dtype)
    raises(
        InvalidCollective, lambda: dist.alltoall(tf.ones([2 * ranks + 1])), f"{2 * ranks + 1} rows over {ranks} ranks"
    )
    raises(InvalidCollective, lambda: dist.alltoall(tf.ones([4]), splits=[1] * (ranks + 1)), "splits")


def check_indexed_slices():
    """A sum of rows equals the sum of what they stand for."""
    dense = [np.zeros((7, 2), np.float32) for _ in everybody()]
    for r in everybody():
        for i in range(r + 1):
            dense[r][(3 * r + i) % 7] += 10 * r + i
    me = rank()
    rows = [[10.0 * me + i] * 2 for i in range(me + 1)]

    def f(op, value, index):
        found = dist.allreduce(
            tf.IndexedSlices(value, index, tf.constant([7, 2], tf.int64)), op=op, prescale_factor=2.0
        )
        assert isinstance(found, tf.IndexedSlices)
        return tf.convert_to_tensor(found)

    for op in (dist.Sum, dist.Average):
        expected = 2 * sum(dense) / (dist.size() if op == dist.Average else 1)
        for index in (tf.int32, tf.int64):
            places = tf.constant([(3 * me + i) % 7 for i in range(me + 1)], index)
            for result in both(lambda v, i, op=op: f(op, v, i), tf.constant(rows), places):
                same(result, expected)
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([7, 2]))
    raises(InvalidCollective, lambda: dist.allreduce(slices, op=dist.Max), "not MAX")


def check_oob_allreduce_and_overlap():
    same(dist.oob_allreduce(tensor((), tf.float32)), whole((), tf.float32, dist.Average))
    same(dist.oob_allreduce(tensor([3], tf.float32), op=dist.Max), whole([3], tf.float32, dist.Max))
    same(dist.overlap(tensor([3], tf.float32)), values([3], tf.float32, rank()))
