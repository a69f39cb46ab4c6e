"""Tapes, and the optimizers of TensorFlow 1."""

import numpy as np
import tensorflow as tf
from training_support import WIDTH, assert_same, data, mean_squared, mine, refused

import hdp.tensorflow as dist


def case_tapes():
    """What is asked of a tape."""
    ranks, me = dist.size(), dist.rank()
    mean = (ranks - 1) / 2
    a, b = tf.Variable([1.0, 2.0]), tf.Variable(3.0)
    unused = tf.Variable(1.0)
    with tf.GradientTape(persistent=True) as tape:
        loss = (1 + me) * (tf.reduce_sum(a * a) + b)
        other = me * b * b
    tape = dist.DistributedGradientTape(tape)
    assert_close(tape.gradient(loss, a), (1 + mean) * np.array([2.0, 4.0]))
    assert_close(tape.gradient(other, b), mean * 6)
    found = tape.gradient(loss, {"x": [a, (b,)], "y": unused})
    assert found["y"] is None
    assert_close(found["x"][1][0], 1 + mean)
    found = tape.gradient(loss, [unused, a], unconnected_gradients=tf.UnconnectedGradients.ZERO)
    assert_close(found[0], 0.0)
    assert_close(found[1], (1 + mean) * np.array([2.0, 4.0]))
    assert tape.gradient(loss, []) == []
    assert_close(tape.gradient(loss, b, output_gradients=tf.constant(2.0)), 2 * (1 + mean))

    with dist.DistributedGradientTape(tf.GradientTape(watch_accessed_variables=False), op=dist.Sum) as tape:
        c = tf.constant([[1.0, 2.0]]) * (1 + me)
        tape.watch(c)
        tape.watch(a)
        loss = tf.reduce_sum(c * c) + tf.reduce_sum(a)
        with tape.stop_recording():
            loss2 = loss + tf.reduce_sum(c)
    assert len(tape.watched_variables()) == 1
    assert_close(tape.gradient(loss, c), 2 * np.array([[1.0, 2.0]]) * sum(range(1, ranks + 1)))
    del loss2

    @tf.function
    def second_order(v):
        with tf.GradientTape() as outer:
            outer.watch(v)
            with tf.GradientTape() as inner:
                inner.watch(v)
                cube = v * v * v
            slope = inner.gradient(cube, v)
        return dist.DistributedGradientTape(outer, gradient_predivide_factor=2.0).gradient(slope, v)

    assert_close(second_order(tf.constant(1.0 + me)), 6 * (1 + mean))
    embedding = tf.Variable(tf.reshape(tf.range(12.0), [4, 3]))
    with tf.GradientTape(persistent=True) as tape:
        loss = tf.reduce_sum(tf.gather(embedding, [me % 4, 0])) + b
    found = dist.DistributedGradientTape(tape).gradient(loss, [embedding, b])
    assert isinstance(found[0], tf.IndexedSlices)
    expected = np.zeros([4, 3], "float32")
    for rank in range(ranks):
        expected[rank % 4] += 1 / ranks
    expected[0] += 1
    assert_close(tf.convert_to_tensor(found[0]), expected)
    dense = dist.DistributedGradientTape(tape, sparse_as_dense=True).gradient(loss, embedding)
    assert_close(dense, expected)
    for keyword, value in {"op": dist.Max, "bucket_cap_mb": 0, "num_groups": 2, "compression": "x"}.items():
        refused(keyword, lambda k=keyword, v=value: dist.DistributedGradientTape(tape, **{k: v}), dist_error())


def dist_error():
    from hdp.contract.errors import InvalidCollective

    return InvalidCollective


def assert_close(found, expected):
    np.testing.assert_allclose(np.asarray(found), expected, atol=1e-6)


def case_tensorflow_1():
    """Its optimizers: eagerly, and in a session."""
    v1 = tf.compat.v1
    x, y = data()
    makes = {
        "momentum": lambda: v1.train.MomentumOptimizer(0.05, 0.9),
        "adam": lambda: v1.train.AdamOptimizer(0.01),
    }
    for name, make in makes.items():

        def eager(optimizer, x, y):
            w = tf.Variable(np.full([WIDTH, 3], 0.1, "float32"))
            for i in range(len(x)):
                optimizer.minimize(lambda i=i: mean_squared(y[i], x[i] @ w), var_list=[w])
            return w.numpy()

        def session(optimizer, x, y):
            with tf.Graph().as_default(), v1.Session() as running:
                xs, ys = v1.placeholder(tf.float32, [None, WIDTH]), v1.placeholder(tf.float32, [None, 3])
                w = v1.get_variable("w", initializer=np.full([WIDTH, 3], 0.1, "float32"), use_resource=True)
                train = optimizer.minimize(mean_squared(ys, xs @ w))
                running.run(v1.global_variables_initializer())
                for i in range(len(x)):
                    running.run(train, {xs: x[i], ys: y[i]})
                return running.run(w)

        expected = eager(make(), x, y)
        assert_same(eager(dist.DistributedOptimizer(make()), mine(x), mine(y)), expected, f"v1 {name}, eager")
        assert_same(session(dist.DistributedOptimizer(make()), mine(x), mine(y)), expected, f"v1 {name}, session")
    twice = dist.DistributedOptimizer(v1.train.GradientDescentOptimizer(0.1))
    refused("distributed already", lambda: dist.DistributedOptimizer(twice))
