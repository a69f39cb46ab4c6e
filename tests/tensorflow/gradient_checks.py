"""Gradients of the collectives, and what a tape gives."""

import numpy as np
import tensorflow as tf
from function_support import everybody, raises, rank, tensor
from value_checks import rows_of, splits_of

import hdp.tensorflow as dist
from hdp.contract.errors import InvalidCollective


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
