"""What a rank runs for test_functions.py: collectives, compared with NumPy, which has all ranks' tensors at hand.

function_ranks.py NAME...     the checks of these names, one after the other
"""

import faulthandler
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

import numpy as np
import tensorflow as tf

import hdp.tensorflow as dist
from hdp.contract.errors import CollectiveError, InvalidCollective

OPS = {
    dist.Sum: lambda parts, dtype: np.add.reduce(parts, dtype=dtype),
    dist.Average: lambda parts, dtype: np.add.reduce(parts, dtype=dtype) / dtype.type(len(parts)),
    dist.Min: lambda parts, _: np.minimum.reduce(parts),
    dist.Max: lambda parts, _: np.maximum.reduce(parts),
    dist.Product: lambda parts, dtype: np.multiply.reduce(parts, dtype=dtype),
}
FLOATS = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
INTEGERS = (tf.int8, tf.uint8, tf.int16, tf.uint16, tf.int32, tf.uint32, tf.int64, tf.uint64)
SHAPES = ((), (0, 3), (4, 3))


def rank():
    return dist.rank()


def everybody():
    return range(dist.size())


def values(shape, dtype, of, salt=0):
    """Rank `of`'s array: small integers that differ by rank and place, so that sums of them are exact."""
    count = int(np.prod(shape))
    numbers = (np.arange(count) * 7 + of * 3 + salt) % 11 - (0 if dtype.is_unsigned else 4)
    if dtype == tf.bool:
        return (numbers % 3 == of % 2).reshape(shape)
    if dtype.is_complex:
        numbers = numbers + 1j * (numbers[::-1] + of)
    return numbers.astype(dtype.as_numpy_dtype).reshape(shape)


def tensor(shape, dtype, salt=0):
    return tf.constant(values(shape, dtype, rank(), salt), dtype)


def whole(shape, dtype, op=dist.Sum, salt=0):
    """What all ranks' `values` give. In a wider type where NumPy's own has 16 bits or no sums."""
    parts = np.stack([values(shape, dtype, r, salt) for r in everybody()])
    if dtype == tf.bool:
        how = np.logical_or if op in (dist.Sum, dist.Max) else np.logical_and
        return how.reduce(parts)
    if dtype.size == 2 and dtype.is_floating:
        parts = parts.astype(np.float32)
    return np.asarray(OPS[op](parts, parts.dtype))


def same(found, expected, dtype=None, bits=False):
    found, expected = (np.asarray(v.numpy() if hasattr(v, "numpy") else v) for v in (found, expected))
    assert found.shape == expected.shape, f"shape {found.shape}, expected {expected.shape}"
    assert dtype is None or found.dtype == dtype.as_numpy_dtype, f"dtype {found.dtype}, expected {dtype}"
    if found.dtype.kind in "biu" or bits:
        assert np.array_equal(found, expected.astype(found.dtype)), f"{found}, expected {expected}"
        return
    wide = np.complex128 if found.dtype.kind == "c" else np.float64
    step = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float64": 1e-14, "complex128": 1e-14}.get(found.dtype.name, 1e-6)
    found, expected = found.astype(wide), expected.astype(wide)
    np.testing.assert_allclose(found, expected, rtol=step, atol=2 * step * np.abs(expected).max(initial=0))


def raises(kind, function, *texts):
    try:
        function()
    except kind as exc:
        missing = [t for t in texts if t not in str(exc)]
        assert not missing, f"{missing} not in the message: {exc}"
        return str(exc)
    raise AssertionError(f"nothing was raised; expected {kind}")


def both(function, *arguments, signature=None):
    """What `function` gives eagerly, in a tf.function, and in one that doesn't know shapes."""
    yield function(*arguments)
    yield tf.function(function)(*arguments)
    shapes = signature or [tf.TensorSpec([None] * a.shape.rank, a.dtype) for a in arguments]
    yield tf.function(function, input_signature=shapes)(*arguments)


# ---- collectives -----------------------------------------------------------------------------------------------------


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


# ---- gradients of collectives ----------------------------------------------------------------------------------------


def gradient_of(function, value, weights):
    """By `value` on this rank, of the sum over all ranks of weights . function(value)."""

    def run(v, w):
        with tf.GradientTape() as tape:
            tape.watch(v)
            loss = tf.reduce_sum(function(v) * w)
        return tape.gradient(loss, v)

    yield run(value, weights)
    yield tf.function(run)(value, weights)


def weights_of(shape, r):
    return np.cos(np.arange(int(np.prod(shape)))[::-1] + 10 * r).astype(np.float32).reshape(shape)


def close(found, expected):
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-5, atol=1e-6)


def check_gradients_of_allreduce():
    shape, me = (4, 3), rank()
    total = sum(weights_of(shape, r) for r in everybody())
    for op, factor in ((dist.Sum, 6.0), (dist.Average, 6.0 / dist.size())):
        f = lambda v, op=op: dist.allreduce(v, op=op, prescale_factor=2.0, postscale_factor=3.0)  # noqa: E731
        for found in gradient_of(f, tensor(shape, tf.float32), weights_of(shape, me)):
            close(found, total * factor)
    f = lambda v: dist.grouped_allreduce([v[:2], v[2:]], op=dist.Sum)  # noqa: E731
    for found in gradient_of(lambda v: tf.concat(f(v), 0), tensor(shape, tf.float32), weights_of(shape, me)):
        close(found, total)
    f = lambda v: dist.allreduce(v, op=dist.Max)  # noqa: E731
    raises(InvalidCollective, lambda: list(gradient_of(f, tf.ones([3]), tf.ones([3]))), "no gradient")


def check_gradients_of_others():
    me, ranks = rank(), dist.size()
    lengths = [rows_of(r) for r in everybody()]
    all_rows = [weights_of((sum(lengths), 2), r) for r in everybody()]
    first = sum(lengths[:me])
    for found in gradient_of(dist.allgather, tensor((lengths[me], 2), tf.float32), all_rows[me]):
        close(found, sum(all_rows)[first : first + lengths[me]])

    total = sum(weights_of((3, 2), r) for r in everybody())
    for root in everybody():
        f = lambda v, root=root: dist.broadcast(v, root)  # noqa: E731
        for found in gradient_of(f, tensor((3, 2), tf.float32), weights_of((3, 2), me)):
            close(found, total if me == root else np.zeros((3, 2)))

    rows = 2 * ranks + 1
    sizes = [len(part) for part in np.array_split(np.arange(rows), ranks)]
    parts = [weights_of((n, 2), r) for r, n in enumerate(sizes)]
    for op, factor in ((dist.Sum, 1.5), (dist.Average, 1.5 / ranks)):
        f = lambda v, op=op: dist.reducescatter(v, op=op, prescale_factor=0.5, postscale_factor=3.0)  # noqa: E731
        for found in gradient_of(f, tensor((rows, 2), tf.float32), parts[me]):
            close(found, np.concatenate(parts) * factor)

    received = [sum(splits_of(r)[to] for r in everybody()) for to in everybody()]
    weights = [weights_of((received[r], 2), r) for r in everybody()]
    ends = [np.cumsum([0, *[splits_of(r)[to] for r in everybody()]]) for to in everybody()]
    expected = np.concatenate([weights[to][ends[to][me] : ends[to][me + 1]] for to in everybody()])
    f = lambda v: dist.alltoall(v, splits=splits_of(me))[0]  # noqa: E731
    for found in gradient_of(f, tensor((sum(splits_of(me)), 2), tf.float32), weights[me]):
        close(found, expected)
    for found in gradient_of(dist.alltoall, tensor((ranks, 2), tf.float32), weights_of((ranks, 2), me)):
        close(found, np.stack([weights_of((ranks, 2), to)[me] for to in everybody()]))


def check_tape():
    """None stays None, sparse ones are gathered or made dense, and predivision changes nothing but the rounding."""
    me, ranks = rank(), dist.size()
    table, weight, unused = tf.Variable(tf.ones([6, 2])), tf.Variable([[1.0], [2.0]]), tf.Variable(3.0)
    dense = np.zeros((6, 2), np.float32)
    for r in everybody():
        dense[[r % 6, (r + 1) % 6]] += [1.0 + r, 2.0 * (1 + r)]

    def run(**options):
        with dist.DistributedGradientTape(tf.GradientTape(), **options) as tape:
            loss = tf.reduce_sum(tf.gather(table, [me % 6, (me + 1) % 6]) @ weight) * (1.0 + me)
        return tape.gradient(loss, {"t": table, "w": weight, "u": unused})

    for options, factor in (
        ({"op": dist.Sum}, 1.0),
        ({}, 1 / ranks),
        ({"sparse_as_dense": True}, 1 / ranks),
        ({"gradient_predivide_factor": 2.0}, 1 / ranks),
        ({"bucket_cap_mb": 1e-6}, 1 / ranks),
        ({"compression": dist.Compression.bf16, "op": dist.Sum}, 1.0),
    ):
        for found in (run(**options), tf.function(lambda o=options: run(**o))()):
            assert found["u"] is None
            assert isinstance(found["t"], tf.IndexedSlices) != bool(options.get("sparse_as_dense"))
            close(tf.convert_to_tensor(found["t"]), dense * factor)
            close(found["w"], np.full((2, 1), 2.0 * sum(1 + r for r in everybody()) * factor))
    single = tf.Variable(2.0)
    with dist.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = single * (1.0 + me)
    close(tape.gradient(loss, single), (1 + ranks) / 2)


# ---- variables -------------------------------------------------------------------------------------------------------


def variables(salt=0):
    dtypes = (tf.float32, tf.int64, tf.float16, tf.bool, tf.float64)
    shapes = ((4, 3), (), (5,), (2,), (0, 2))
    return [tf.Variable(tensor(s, d, i + salt)) for i, (s, d) in enumerate(zip(shapes, dtypes, strict=True))]


def check_broadcast_variables():
    for root in (0, dist.size() - 1):
        expected = [values(v.shape, v.dtype, root, i) for i, v in enumerate(variables())]
        eager, graph = variables(), variables()
        assert dist.broadcast_variables(eager, root_rank=root) is None
        tf.function(lambda graph=graph, root=root: dist.broadcast_variables(graph, root))()
        for one, two, array in zip(eager, graph, expected, strict=True):
            same(one, array, one.dtype, bits=True)
            same(two, array, two.dtype, bits=True)
    dist.broadcast_variables([])


def check_in_sync():
    mine = variables()
    message = raises(dist.OutOfSync, lambda: dist.check_in_sync(mine), "differs from rank 0's on rank")
    everywhere = dist.allgather(tf.constant([message.count("rank")]))
    assert len(set(everywhere.numpy().tolist())) == 1
    dist.broadcast_variables(mine)
    dist.check_in_sync(mine)
    named = tf.Variable([1.0, 2.0], name="the_odd_one")
    if rank() == dist.size() - 1:
        named.assign([1.0, np.nextafter(np.float32(2), np.float32(3))])
    raises(dist.OutOfSync, lambda: dist.check_in_sync([*mine, named]), "the_odd_one", f"rank {dist.size() - 1}")
    raises(dist.OutOfSync, lambda: dist.check_in_sync(mine[: 2 + (rank() == 0)]), "3, 2")


def check_tensorflow_1():
    """A graph and a session: the hook, several collectives of the same kind, and constants, which mustn't be folded."""
    me, v1 = rank(), tf.compat.v1

    def slow(x):
        time.sleep(0.02)
        return x

    with tf.Graph().as_default():
        first = v1.get_variable("first", initializer=tf.constant([1.0 + me, 2.0]))
        second = v1.get_variable("second", initializer=tf.constant(10 * me, tf.int64))
        inputs = [v1.placeholder(tf.float32, [3], name=f"in{i}") for i in range(6)]
        order = range(6) if me % 2 else range(5, -1, -1)
        delayed, last = {}, None
        for i in order:  # the first rank runs them in another order
            with tf.control_dependencies([] if last is None else [last]):
                delayed[i] = tf.ensure_shape(tf.numpy_function(slow, [inputs[i]], tf.float32), [3])
            last = delayed[i]
        sums = [dist.allreduce(delayed[i], op=dist.Sum) for i in range(6)]
        constants = [dist.allreduce(tf.constant([1.0, 2.0]), op=dist.Sum) for _ in range(3)]
        gathered = [dist.allgather(tf.fill([me + 1], float(i))) for i in range(2)]
        hook = dist.BroadcastGlobalVariablesHook(dist.size() - 1)
        with v1.train.MonitoredSession(hooks=[hook]) as session:
            one, two = session.run([first, second])
            same(one, [float(dist.size()), 2.0])
            same(two, 10 * (dist.size() - 1))
            for step in range(4):
                feed = {place: values([3], tf.float32, me, 7 * i + step) for i, place in enumerate(inputs)}
                wanted = [sums, constants, gathered]
                if dist.operations_name() == "native":
                    found, folded, pieces = session.run(wanted, feed)
                else:  # in Python several at once wait for each other
                    found, folded, pieces = ([session.run(one, feed) for one in part] for part in wanted)
                for i, result in enumerate(found):
                    same(result, whole([3], tf.float32, dist.Sum, 7 * i + step))
                for result in folded:
                    same(result, [dist.size(), 2.0 * dist.size()])
                for i, result in enumerate(pieces):
                    same(result, np.full(sum(r + 1 for r in everybody()), float(i)))
            everything = v1.global_variables()
        assert [v.op.name for v in everything] == ["first", "second"], "variables of our own in the user's graph"
    raises(InvalidCollective, lambda: dist.BroadcastGlobalVariablesHook(0, device="/cpu:0"), "(device='/cpu:0')")
    raises(InvalidCollective, dist.broadcast_global_variables, "broadcast_variables")


def check_barrier():
    folder = Path(os.environ["CHECK_FOLDER"])
    if rank() == 0:
        time.sleep(0.3)
    (folder / f"here-{rank()}").touch()
    dist.barrier()
    assert len(list(folder.glob("here-*"))) == dist.size()
    raises(InvalidCollective, tf.function(dist.barrier), "outside")


# ---- order -----------------------------------------------------------------------------------------------------------


def delay(x, seconds, ranks):
    """`x`, but late on some ranks."""

    def wait(v):
        if rank() in ranks:
            time.sleep(seconds)
        return v

    found = tf.numpy_function(wait, [x], x.dtype)
    found.set_shape(x.shape)
    return found


def check_loops():
    ranks = dist.size()
    offset = sum(everybody())

    @tf.function
    def independent(parallel):
        """Nothing ties one turn's operation to the next one's; a part is slow on a rank."""

        def body(i, out):
            v = tf.cast(i, tf.float32) * 10 + float(rank())
            late = delay(v, 0.005, [0])
            found = dist.allreduce(late, op=dist.Sum) + 2 * dist.allreduce(v, op=dist.Sum)
            return i + 1, out.write(i, found)

        out = tf.TensorArray(tf.float32, 12)
        return tf.while_loop(lambda i, _: i < 12, body, [0, out], parallel_iterations=parallel)[1].stack()

    for parallel in (1, 10):
        same(independent(parallel), [3 * (10 * i * ranks + offset) for i in range(12)])

    @tf.function
    def conditional(n):
        """Which branch is taken, and how often, is known when it runs."""
        x = tf.constant([1.0, float(rank())])
        for i in tf.range(n):
            if i % 2 == 0:
                x = dist.allreduce(x, op=dist.Average) + 1
            else:
                x = dist.broadcast(x, 1) * dist.allreduce(tf.constant(2.0))
        return x

    for n in (0, 1, 5):
        x = np.array([[1.0, r] for r in everybody()])
        for i in range(n):
            x = np.broadcast_to(x.mean(0) + 1 if i % 2 == 0 else x[1] * 2, x.shape)
        same(conditional(n), x[rank()].astype(np.float32))

    @tf.function
    def inner(x):
        return dist.allreduce(x, op=dist.Sum)

    @tf.function
    def outer(x):
        return inner(x), inner(2 * x), tf.cond(x[0] > 0, lambda: inner(x + 1), lambda: dist.allreduce(x))

    one, two, three = outer(tf.constant([1.0 + rank()]))
    total = sum(1.0 + r for r in everybody())
    same(one, [total])
    same(two, [2 * total])
    same(three, [total + ranks])

    @tf.function
    def mapped(x):
        return tf.map_fn(lambda v: dist.allreduce(v, op=dist.Sum), x)

    same(mapped(tensor((6, 2), tf.float32)), whole((6, 2), tf.float32))


def check_order_differs():
    """Calls of one shape, none depends on another; each rank has its data ready in another order."""
    me, ranks = rank(), dist.size()

    @tf.function
    def run(x):
        ready, last = {}, None
        for i in np.random.RandomState(me).permutation(8):
            with tf.control_dependencies([] if last is None else [last]):
                ready[i] = delay(x + 100.0 * float(i), 0.01, [me])
            last = ready[i]
        return [dist.allreduce(ready[i], op=dist.Sum) for i in range(8)], [dist.allgather(ready[i]) for i in range(8)]

    for _ in range(3):
        sums, pieces = run(tf.constant([float(me)]))
        for i in range(8):
            same(sums[i], [100.0 * i * ranks + sum(everybody())])
            same(pieces[i], [100.0 * i + r for r in everybody()])


def check_constants_and_twins():
    """TensorFlow may fold what is constant and merge what is alike; here ranks differ in what is."""
    me, ranks = rank(), dist.size()

    @tf.function
    def run(x):
        alike = [tf.constant([5.0])] * 4  # on this rank alone
        given = alike if me == 0 else [x, tf.constant([1.0]), x * 2, tf.constant([float(me)])]
        return [dist.allreduce(v, op=dist.Sum) for v in given], dist.broadcast(tf.constant([7.0]), 0)

    for x in (1.0, 2.0, 3.0):
        found, sent = run(tf.constant([x]))
        others = range(1, ranks)
        expected = [x * len(others), len(others), 2 * x * len(others), sum(others)]
        for result, value in zip(found, expected, strict=True):
            same(result, [5.0 + value])
        same(sent, [7.0])


def check_results_that_one_rank_uses():
    """The others would leave the operation out, and rank 0 would wait for them."""

    @tf.function
    def run(x):
        found = dist.allreduce(x, op=dist.Sum), dist.allgather(x), dist.broadcast(x, 1)
        return found if rank() == 0 else x

    for _ in range(2):
        found = run(tensor([4], tf.float32))
    if rank() == 0:
        same(found[0], whole([4], tf.float32))
        same(found[2], values([4], tf.float32, 1))


def check_retracing_on_one_rank():
    calls = []

    @tf.function
    def run(x, mark):
        calls.append(mark)
        return dist.allreduce(x, op=dist.Sum) - dist.allreduce(2 * x, op=dist.Sum)

    for step in range(6):
        mark = step if rank() == 0 else 0  # a Python number: every one has a trace of its own
        same(run(tensor([4], tf.float32, step), mark), -whole([4], tf.float32, dist.Sum, step))
        same(dist.allreduce(tensor([2], tf.float32, step), op=dist.Sum), whole([2], tf.float32, dist.Sum, step))
    assert len(calls) == (6 if rank() == 0 else 1)
    relaxed = tf.function(lambda x: dist.allreduce(x, op=dist.Sum), reduce_retracing=True)
    large = 40_000
    for n in (3, 5, large) if rank() == 0 else (large,):  # rank 0 has made the size unknown by then
        if n != large:
            relaxed.get_concrete_function(tensor([n], tf.float32))
        else:
            same(relaxed(tensor([n], tf.float32)), whole([n], tf.float32))


def check_named_in_any_order():
    """Tensors with a name meet by it. Native operations only: the others run one after the other."""
    order = range(6) if rank() % 2 else range(5, -1, -1)

    @tf.function
    def run(x):
        found = {i: dist.allreduce(x + float(i), op=dist.Sum, name=f"tensor {i}") for i in order}
        more = {i: dist.allgather(x + float(i), name="a" * i + "\u00fc" * 50) for i in order}
        return [found[i] for i in range(6)], [more[i] for i in range(6)]

    for _ in range(3):
        found, more = run(tf.constant([float(rank())]))
        for i in range(6):
            same(found[i], [sum(everybody()) + i * dist.size()])
            same(more[i], [float(r) + i for r in everybody()])


def check_many_in_flight():
    """200 operations in one function, in opposite orders on odd and even ranks; each has its name."""
    order = range(200) if rank() % 2 else range(199, -1, -1)

    @tf.function
    def run(x):
        last, found = None, {}
        for i in order:  # one starts after the other on each rank, though none waits for the other's result
            with tf.control_dependencies([] if last is None else [last]):
                last = tf.identity(x * float(i))
            found[i] = dist.allreduce(last, op=dist.Sum, name=f"n {i}")
        return tf.stack([found[i] for i in range(200)])

    expected = np.outer(np.arange(200), whole([300], tf.float32))
    for _ in range(2):
        same(run(tensor([300], tf.float32)), expected.astype(np.float32))


# ---- the process -----------------------------------------------------------------------------------------------------


def check_process():
    assert dist.is_initialized()
    before = dist.communicator()
    dist.init()
    assert dist.communicator() is before
    assert (dist.rank(), dist.size()) == (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    assert dist.local_rank() == int(os.environ["LOCAL_RANK"])
    assert dist.local_size() == int(os.environ["LOCAL_WORLD_SIZE"])
    sizes = dist.allgather(tf.constant([[dist.cross_rank(), dist.local_size()]])).numpy()
    assert dist.cross_size() == len(set(sizes[:, 0]))
    assert dist.is_homogeneous() == (len(set(sizes[:, 1])) == 1)
    if dist.operations_name() == "native":
        maps = Path("/proc/self/maps").read_text().splitlines()
        lines = [line.split() for line in maps if "libhdp_core" in line]
        assert len({line[-1] for line in lines}) == 1, lines
        assert len([line for line in lines if "x" in line[1]]) == 1, "mapped more than once"


def check_refusals():
    x = tf.ones([4])
    for call, text in (
        (lambda: dist.init(comm=[0]), "init(comm=[0])"),
        (lambda: dist.init(process_sets=[1]), "init(process_sets=[1])"),
        (lambda: dist.allreduce(x, device_dense="/gpu:0"), "allreduce(device_dense='/gpu:0')"),
        (lambda: dist.allreduce(x, device_sparse="/gpu:0"), "allreduce(device_sparse='/gpu:0')"),
        (lambda: dist.allreduce(x, process_set=1), "allreduce(process_set=1)"),
        (lambda: dist.grouped_allreduce([x], process_set=1), "grouped_allreduce(process_set=1)"),
        (lambda: dist.allgather(x, process_set=1), "allgather(process_set=1)"),
        (lambda: dist.broadcast(x, 0, process_set=1), "broadcast(process_set=1)"),
        (lambda: dist.reducescatter(x, process_set=1), "reducescatter(process_set=1)"),
        (lambda: dist.alltoall(x, process_set=1), "alltoall(process_set=1)"),
        (lambda: dist.barrier(process_set=1), "barrier(process_set=1)"),
        (lambda: dist.broadcast_variables([], 0, process_set=1), "broadcast_variables(process_set=1)"),
        (lambda: dist.DistributedGradientTape(None, num_groups=2), "DistributedGradientTape(num_groups=2)"),
        (lambda: dist.DistributedGradientTape(None, device_dense="/cpu:0"), "device_dense='/cpu:0'"),
        (lambda: dist.DistributedGradientTape(None, scale_local_gradients=False), "scale_local_gradients=False"),
        (lambda: dist.DistributedGradientTape(None, op=dist.Max), "Average or Sum"),
        (lambda: dist.DistributedGradientTape(None, op=dist.Sum, gradient_predivide_factor=2.0), "predivide"),
        (lambda: dist.DistributedGradientTape(None, bucket_cap_mb=0), "bucket_cap_mb is 0"),
        (lambda: dist.DistributedGradientTape(None, compression="zip"), "compression='zip'"),
    ):
        raises(InvalidCollective, call, text)


def check_forked_child():
    """A child that ends, as a data loader's does, ends at once and leaves its parent's world alone."""
    child = os.fork()
    if child == 0:
        sys.exit(0)  # and so Python's exit functions run
    deadline = time.monotonic() + 20
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, 9)
            os.waitpid(child, 0)
            raise AssertionError("the child hangs")
        time.sleep(0.05)
    assert ended[1] == 0, ended
    same(dist.allreduce(tensor([3], tf.float32), op=dist.Sum), whole([3], tf.float32))


def check_memory():
    """2,000 steps of many sizes; neither memory nor descriptors grow."""

    @tf.function
    def step(x, n):
        parts = [dist.allreduce(x[: n * (i + 1)], op=dist.Sum) for i in range(3)]
        gathered = dist.allgather(x[:n])
        return tf.add_n([tf.reduce_sum(p) for p in parts]) + tf.reduce_sum(gathered)

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def descriptors():
        return len(list(Path("/proc/self/fd").iterdir()))

    x = tf.ones([30_000])
    rng = np.random.RandomState(0)

    def steps(count):
        for n in rng.randint(1, 10_000, count):
            found = step(x, tf.constant(int(n)))
        return float(found)

    steps(300)
    before, open_before = resident(), descriptors()
    steps(2000)
    grown = resident() - before
    assert grown < 24 << 20, f"{grown} bytes more after 2,000 steps, which made {2000 * 140_000} bytes of results"
    assert descriptors() == open_before
    kept = [
        dist.allreduce(tf.fill([1000], float(i)), op=dist.Sum) for i in range(50)
    ]  # memory in use isn't given twice
    for i, value in enumerate(kept):
        same(value, np.full(1000, float(i * dist.size())))


def main(names):
    faulthandler.enable()
    if "without_init" in names:
        return without_init()
    dist.init()
    print("operations", dist.operations_name(), tf.__version__)
    failed = 0
    for name in names or [n[len("check_") :] for n in globals() if n.startswith("check_")]:
        started = time.monotonic()
        try:
            globals()[f"check_{name}"]()
        except Exception:
            failed = 1
            print(f"FAILED {name} {time.monotonic() - started:.1f} s")
            traceback.print_exc()
            continue
        print(f"ok {name} {time.monotonic() - started:.1f} s", flush=True)
    return failed


def without_init():
    """A process that no launcher started: calls before `init`, then a world of one, twice."""
    for call in (
        dist.rank,
        dist.size,
        dist.local_rank,
        dist.barrier,
        lambda: dist.allreduce(tf.ones(2)),
        lambda: dist.allgather(tf.ones(2)),
        lambda: dist.broadcast(tf.ones(2)),
        lambda: dist.broadcast_variables([tf.Variable(1.0)]),
        lambda: dist.check_in_sync([tf.Variable(1.0)]),
    ):
        raises(CollectiveError, call, "call init() first")
    dist.shutdown()
    step = tf.function(lambda x: dist.allreduce(x, op=dist.Sum) + dist.allgather(x) * dist.broadcast(x, 0))
    for _ in range(2):
        dist.init()
        assert (dist.rank(), dist.size(), dist.local_rank(), dist.local_size()) == (0, 1, 0, 1)
        for _ in range(3):
            same(step(tf.constant([2.0, 3.0])), [6.0, 12.0])
        variable = tf.Variable([1.0])
        dist.broadcast_variables([variable])
        dist.check_in_sync([variable])
        dist.barrier()
        with dist.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = variable * 3
        same(tape.gradient(loss, variable), [3.0])
        dist.shutdown()
        dist.shutdown()
        raises(CollectiveError, dist.rank, "call init() first")
        raises((CollectiveError, tf.errors.OpError), lambda: step(tf.constant([2.0, 3.0])), "init()")
    print("ok without_init")
    return 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("CHECK_FOLDER", folder)
        code = main(sys.argv[1:])
    sys.exit(code)
