"""Calls that run in another order on each rank, or look the same to TensorFlow."""

import time

import numpy as np
import tensorflow as tf
from function_support import everybody, rank, same, tensor, values, whole

import hdp.tensorflow as dist


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
