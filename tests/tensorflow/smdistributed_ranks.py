"""SMDDP's TensorFlow API, by its names alone; each rank checks what it gets."""

import sys

import numpy as np
import tensorflow as tf

import smdistributed.dataparallel.tensorflow as sdp
from smdistributed.dataparallel.tensorflow import keras as sdp_keras

sdp.init()
rank, ranks = sdp.rank(), sdp.size()
assert (ranks, sdp.local_size(), sdp.local_rank()) == (2, 1, 0)
mine = tf.constant([1.0, 2.0]) * (rank + 1)


@tf.function
def by_number(order):
    """Ranks call them in different orders; those with the same param_index meet."""
    found = {i: sdp.allreduce(mine * 10**i, i, len(order), op=sdp.ReduceOp.SUM) for i in order}
    return [found[i] for i in sorted(found)]


whole = by_number([0, 1, 2] if rank == 0 else [2, 1, 0])
np.testing.assert_array_equal(whole, [[3, 6], [30, 60], [300, 600]])

for op, expected in {"AVERAGE": [1.5, 3], "SUM": [3, 6], "MIN": [1, 2], "MAX": [2, 4]}.items():
    np.testing.assert_array_equal(sdp.allreduce(mine, 0, 1, sdp.Compression.none, getattr(sdp.ReduceOp, op)), expected)
np.testing.assert_array_equal(
    sdp.allreduce(mine, param_index=0, num_params=1, compression=sdp.Compression.fp16), [1.5, 3]
)
np.testing.assert_array_equal(sdp.oob_allreduce(mine), [1.5, 3])
np.testing.assert_array_equal(sdp.broadcast(mine, 1), [2, 4])
np.testing.assert_array_equal(sdp.overlap(mine), mine)

variable = tf.Variable([float(rank), 7.0])
sdp.broadcast_variables([variable], root_rank=1)
np.testing.assert_array_equal(variable, [1, 7])
with tf.GradientTape() as tape:
    loss = tf.reduce_sum(variable * mine)
tape = sdp.DistributedGradientTape(tape, sparse_as_dense=True, op=None)
np.testing.assert_array_equal(tape.gradient(loss, variable), [1.5, 3])

layer = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
model = tf.keras.Sequential([tf.keras.Input((2,)), layer])
plain = tf.keras.optimizers.SGD(0.1)
model.compile(sdp.DistributedOptimizer(plain, op=sdp.ReduceOp.AVERAGE, bucket_cap_mb=1), loss="mse")
callback = sdp_keras.callbacks.BroadcastGlobalVariablesCallback(0)
model.fit(mine[None], tf.zeros((1, 1)), epochs=1, verbose=0, callbacks=[callback])
# d (x.w)^2 / dw = 2 (x.w) x: [6, 12] on rank 0, [24, 48] on rank 1
np.testing.assert_allclose(layer.kernel[:, 0], [1 - 0.1 * 15, 1 - 0.1 * 30], rtol=1e-6)

for call in (
    lambda: sdp.DistributedGradientTape(tf.GradientTape(), device_dense="GPU:0"),
    lambda: sdp.DistributedOptimizer(tf.keras.optimizers.SGD(), device_sparse="GPU:0"),
):
    try:
        call()
    except ValueError as exc:
        assert "device_" in str(exc)
    else:
        sys.exit("a keyword was ignored")
sdp.shutdown()
print("all right")
