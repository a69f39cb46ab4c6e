"""What optimizers can be told, and how models are compiled."""

import numpy as np
import tensorflow as tf
from training_support import (
    KERAS_3,
    PER_RANK,
    STEPS,
    Logged,
    compare,
    data,
    fit,
    keras,
    make_model,
    mine,
    reductions,
    reference,
    refused,
    started,
)

import hdp.tensorflow as dist


def case_accumulation():
    """Two passes a step: one reduction, and the result of the batch that is twice as large."""
    x, y = data()
    halves = [np.reshape(mine(b), (STEPS * 2, PER_RANK // 2, -1)) for b in (x, y)]
    expected = reference(keras.optimizers.Adam(0.01, clipnorm=0.1))
    for said in ("argument", "keyword"):
        if said == "argument":
            optimizer = dist.DistributedOptimizer(keras.optimizers.Adam(0.01, clipnorm=0.1), backward_passes_per_step=2)
        else:
            optimizer = keras.optimizers.Adam(0.01, clipnorm=0.1, gradient_accumulation_steps=2)
            optimizer = dist.DistributedOptimizer(optimizer)
        model = started()
        before = reductions()
        fit(model, optimizer, *halves, batch=PER_RANK // 2)
        compare(model, expected, f"accumulation, {said}")
        assert reductions() - before == STEPS, reductions() - before
    refused(
        "gradient_accumulation_steps 2; say one",
        lambda: dist.DistributedOptimizer(
            keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), backward_passes_per_step=3
        ),
    )
    used = keras.optimizers.SGD(0.1)
    used.build(make_model().trainable_variables)
    refused("the optimizer is in use", lambda: dist.DistributedOptimizer(used, backward_passes_per_step=3))
    used = keras.optimizers.SGD(0.1)
    refused("expected 1 or more", lambda: dist.DistributedOptimizer(used, backward_passes_per_step=0))


def case_options():
    """What an optimizer does besides: it sees the gradients of all ranks."""
    x, y = (mine(batches) for batches in data())
    rate = keras.optimizers.schedules.ExponentialDecay
    made = {
        "clipnorm": lambda: keras.optimizers.SGD(0.5, clipnorm=0.05),
        "global_clipnorm": lambda: keras.optimizers.SGD(0.5, global_clipnorm=0.05),
        "clipvalue": lambda: keras.optimizers.SGD(0.5, clipvalue=0.01),
        "AdamW, EMA, schedule": lambda: keras.optimizers.AdamW(
            rate(0.02, 3, 0.5), weight_decay=0.1, use_ema=True, ema_momentum=0.5
        ),
        "EMA that overwrites": lambda: keras.optimizers.SGD(
            0.1, momentum=0.9, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3
        ),
        "weights without decay": lambda: without_decay(keras.optimizers.AdamW(0.02, weight_decay=0.5)),
        "a rate that is a function": lambda: keras.optimizers.SGD(lambda: 0.05),
    }
    for name, make in made.items():
        expected = reference(make(), train=lambda m, o, x, y: fit(m, o, x, y, batch=x.shape[1]))
        model = started()
        fit(model, dist.DistributedOptimizer(make()), x, y)
        compare(model, expected, name)


def without_decay(optimizer):
    optimizer.exclude_from_weight_decay(var_names=["bias", "kernel"])
    return optimizer


def case_compiling():
    """Ways to run fit's step."""
    x, y = (mine(batches) for batches in data())
    expected = reference(keras.optimizers.Adam(0.01))
    ways = [{"steps_per_execution": 4}, {"run_eagerly": True}, {"jit_compile": True}]
    if KERAS_3:
        ways.append({"jit_compile": "auto"})
    for compiling in ways:
        model = started()
        with Logged() as lines:
            fit(model, dist.DistributedOptimizer(keras.optimizers.Adam(0.01)), x, y, **compiling)
        compare(model, expected, str(compiling))
        told = [line for line in lines if "is trained with jit_compile=False" in line]
        assert len(told) == (compiling.get("jit_compile") is True), lines

    @tf.function(jit_compile=True)
    def compiled(a):
        with tf.GradientTape() as tape:
            tape.watch(a)
            loss = a * a
        return dist.DistributedGradientTape(tape).gradient(loss, a)

    operation = "HdpAllreduce" if dist.operations_name() == "native" else "PyFunc"
    refused(operation, lambda: compiled(tf.constant(1.0)))
    model = started()
    with Logged() as lines:
        fit(model, keras.optimizers.SGD(0.1), x[:1], y[:1])
    assert "trains on this rank alone: its SGD isn't distributed" in lines[0], lines
