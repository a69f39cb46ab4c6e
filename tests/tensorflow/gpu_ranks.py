"""What a rank runs for test_gpu.py: variables and tensors on a GPU, here the fake one.

gpu_ranks.py NAME...     the checks of these names, one after the other
gpu_ranks.py touch       read device memory as code would that takes it for the host's: a crash
"""

import sys

import fake_gpu
import numpy as np
import tensorflow as tf

import hdp.tensorflow as dist

SHAPE = (300, 7)


def on_gpu(array):
    with tf.device("/GPU:0"):
        found = tf.identity(array)
    assert found.device.endswith("GPU:0"), found.device
    return found


def values(rank, salt=0):
    return (np.arange(np.prod(SHAPE)).reshape(SHAPE) % 13 + rank * 5 + salt).astype(np.float32)


def total(salt=0):
    return sum(values(r, salt) for r in range(dist.size()))


def check_placed_on_the_gpu(_):
    """Both operations have kernels there: with soft placement off, TensorFlow would refuse what hasn't."""
    tensor = on_gpu(values(dist.rank()))
    tf.config.set_soft_device_placement(False)
    try:
        with tf.device("/GPU:0"):
            found = dist.allreduce(tensor, op=dist.Sum), dist.broadcast(tensor, 1)
    finally:
        tf.config.set_soft_device_placement(True)
    assert np.array_equal(found[0], total())
    assert np.array_equal(found[1], values(1))


def check_copies(library):
    """A step copies each tensor once in each direction, and nothing between."""
    step = tf.function(lambda *given: [tf.identity(r) for r in dist.grouped_allreduce(given, op=dist.Sum)])
    given = [on_gpu(values(dist.rank(), salt)) for salt in range(3)]
    step(*given)
    before = library.fake_gpu_copies_to_host(), library.fake_gpu_copies_to_device()
    found = step(*given)
    assert all(f.device.endswith("GPU:0") for f in found)
    copies = library.fake_gpu_copies_to_host() - before[0], library.fake_gpu_copies_to_device() - before[1]
    for salt, result in enumerate(found):
        assert np.array_equal(result, total(salt))
    assert copies == (3, 3) if dist.operations_name() == "native" else copies >= (3, 3), copies


def check_variables(_):
    """They are given one rank's values, eagerly and in a function, and compared, where they are."""
    variables = [tf.Variable(values(dist.rank())), tf.Variable(float(dist.rank()))]
    assert all(v.device.endswith("GPU:0") for v in variables)
    dist.broadcast_variables(variables, 1)
    dist.check_in_sync(variables)
    assert np.array_equal(variables[0], values(1))
    variables[0].assign(values(dist.rank(), 1))
    tf.function(lambda: dist.broadcast_variables(variables, 0))()
    assert np.array_equal(variables[0], values(0, 1))
    assert float(variables[1]) == 1.0


def check_tape(_):
    """Dense and sparse gradients of variables on the GPU; in a function, and eagerly."""
    rows = tf.Variable(tf.ones([6, 2]))
    weight = tf.Variable(tf.ones(SHAPE))

    def gradients(given):
        with dist.DistributedGradientTape(tf.GradientTape()) as tape:
            table = tf.convert_to_tensor(rows)  # a gather from the variable itself has no kernel for the fake GPU
            tape.watch(table)
            loss = tf.reduce_sum(weight * given) + tf.reduce_sum(tf.gather(table, [dist.rank(), 0]))
        return tape.gradient(loss, [weight, table])

    for run in (gradients, tf.function(gradients)):
        for salt in range(2):
            dense, sparse = run(on_gpu(values(dist.rank(), salt)))
            np.testing.assert_allclose(dense, total(salt) / dist.size(), rtol=1e-6)
            expected = np.zeros([6, 2], np.float32)
            for rank in range(dist.size()):
                expected[rank] += 1 / dist.size()
                expected[0] += 1 / dist.size()
            np.testing.assert_allclose(tf.convert_to_tensor(sparse), expected, rtol=1e-6)


def main():
    library = fake_gpu.use()
    if "touch" in sys.argv:
        library.fake_gpu_touch()
    dist.init()
    for name in sys.argv[1:]:
        globals()[f"check_{name}"](library)
        print(f"ok {name}", flush=True)
    print("operations", dist.operations_name(), flush=True)
    dist.barrier()


if __name__ == "__main__":
    main()
