"""Half types, loss scales, and infinities on one rank."""

import numpy as np
import tensorflow as tf
from training_support import (
    KERAS_3,
    PER_RANK,
    STEPS,
    compare,
    data,
    fit,
    keras,
    mean_squared,
    mine,
    pairs,
    reductions,
    reference,
    started,
    variables_of,
)

import hdp.tensorflow as dist


def case_infinity():
    """A rank's infinity: every rank skips that step, halves the scale, and stays in step."""
    x, y = data()
    scaler = keras.optimizers.LossScaleOptimizer if KERAS_3 else keras.mixed_precision.LossScaleOptimizer
    inner = {"new": lambda: keras.optimizers.Adam(0.01)}
    if KERAS_3:
        inner["accumulates"] = lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2)
    else:
        inner["legacy"] = lambda: keras.optimizers.legacy.Adam(0.01)
    bad = x.copy()
    bad[3, PER_RANK + 1] = np.inf  # rank 1's slice of step 3
    for name, make in inner.items():
        expected = reference(scaler(make(), initial_scale=64.0), train=scaled, x=bad, y=y)
        for way in ("within", "around"):
            if way == "within":
                optimizer = dist.DistributedOptimizer(scaler(make(), initial_scale=64.0))
            else:
                optimizer = scaler(dist.DistributedOptimizer(make()), initial_scale=64.0)
            model = started()
            before = reductions()
            scaled(model, optimizer, mine(bad), mine(y))
            compare(model, expected, f"infinity, {way}, {name}")
            scale = optimizer.dynamic_scale if KERAS_3 else optimizer.loss_scale
            assert float(np.asarray(scale)) == 32.0, scale
            if name == "accumulates":
                assert reductions() - before == (STEPS - 1) // 2


def scaled(model, optimizer, x, y):
    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = mean_squared(y, model(x, training=True))
            loss = optimizer.scale_loss(loss) if KERAS_3 else optimizer.get_scaled_loss(loss)
        grads = tape.gradient(loss, model.trainable_variables)
        grads = grads if KERAS_3 else optimizer.get_unscaled_gradients(grads)
        optimizer.apply_gradients(pairs(grads, model.trainable_variables))

    if KERAS_3:
        optimizer.build(model.trainable_variables)
    for i in range(len(x)):
        step(tf.constant(x[i]), tf.constant(y[i]))


def case_mixed():
    """Mixed precision by policy; compile adds the scale, and rank 1 meets an infinity."""
    x, y = data()
    x[3, PER_RANK + 1] = np.inf
    for policy in ("mixed_float16", "mixed_bfloat16"):
        keras.mixed_precision.set_global_policy(policy)
        try:
            model = started()
            before = [w.copy() for w in model.get_weights()]
            batches = (mine(x), mine(y)) if policy == "mixed_float16" else (mine(x[4:]), mine(y[4:]))
            fit(model, dist.DistributedOptimizer(keras.optimizers.Adam(0.01)), *batches)
            dist.check_in_sync(model)
            assert all(np.isfinite(w).all() for w in model.get_weights())
            assert not any((a == b).all() for a, b in zip(before, model.get_weights(), strict=True))
            if policy == "mixed_float16":
                assert "LossScale" in type(model.optimizer).__name__
            dist.check_in_sync([tf.Variable(np.asarray(v)) for v in variables_of(model.optimizer)])
        finally:
            keras.mixed_precision.set_global_policy("float32")
