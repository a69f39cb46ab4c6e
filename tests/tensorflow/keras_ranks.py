"""A rank of the tests of Keras: ``keras_ranks.py callbacks FOLDER``, or ``keras_ranks.py WAY`` that fails under fit.

A rank that fails prints what it caught, and ends as a script does that doesn't catch it.
"""

import os
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

import hdp.keras
import hdp.keras as hvd
import hdp.tensorflow as dist
from hdp.contract.errors import CollectiveMismatch, InvalidCollective, is_collateral

keras = tf.keras
WIDTH, PER_RANK = 5, 4


def batches(count, rank=0):
    rng = np.random.default_rng(rank)
    x = rng.normal(size=(count * PER_RANK, WIDTH)).astype("float32")
    return x, rng.normal(size=(count * PER_RANK, 3)).astype("float32")


def make_model():
    inputs = keras.layers.Input([WIDTH])
    return keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Dense(8)(inputs)))


class Lazy(keras.Model):
    """Has no weights before it was called."""

    def __init__(self):
        super().__init__()
        self.first, self.second = keras.layers.Dense(8), keras.layers.Dense(3)

    def call(self, x):
        return self.second(self.first(x))


def expect(text, call, error=InvalidCollective):
    try:
        call()
    except error as exc:
        assert text in str(exc), str(exc)
    else:
        raise AssertionError(f"not refused: {text}")


class Rates(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(float(np.asarray(self.model.optimizer.learning_rate)))


def fit(model, steps, callbacks=(), optimizer=None, **keywords):
    if not getattr(model, "optimizer", None):
        model.compile(dist.DistributedOptimizer(optimizer or keras.optimizers.SGD(0.1, momentum=0.9)), "mse")
    x, y = batches(steps, dist.rank())
    said = {"batch_size": PER_RANK, "shuffle": False, "verbose": 0, **keywords}
    return model.fit(x, y, callbacks=list(callbacks), **said)


def broadcasts():
    me = dist.rank()
    for make in (make_model, Lazy):
        keras.utils.set_random_seed(me)
        model = make()
        fit(model, 3, [hvd.callbacks.BroadcastGlobalVariablesCallback(1), hdp.keras.CheckInSyncCallback()])
        dist.check_in_sync(model)
    # A rank that has gone on alone, optimizer and all, is what the others take over
    model = make_model()
    optimizer = keras.optimizers.Adam(0.1)
    if me == 0:
        model.compile(optimizer, "mse")
        model.fit(*batches(2), verbose=0)
        before = [np.asarray(v) for v in variables_of(optimizer)]
    model.compile(dist.DistributedOptimizer(optimizer), "mse")
    keep = Snapshot()
    fit(model, 1, [hdp.keras.BroadcastGlobalVariablesCallback(0), keep])
    if me == 0:
        for one, other in zip(before, keep.found, strict=True):
            np.testing.assert_array_equal(one, other)
    dist.check_in_sync([tf.Variable(v) for v in keep.found])
    dist.check_in_sync([tf.Variable(np.asarray(v)) for v in variables_of(model.optimizer)])
    callback = hdp.keras.BroadcastGlobalVariablesCallback()
    expect("4 on rank 1", lambda: fit(model, 3 + (me == 1), [callback]), CollectiveMismatch)


class Snapshot(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        self.found = [np.asarray(v) for v in variables_of(self.model.optimizer)]


def variables_of(optimizer):
    found = optimizer.variables
    return found() if callable(found) else found


def metrics():
    class Own(keras.callbacks.Callback):
        def __init__(self, names):
            super().__init__()
            self.names = names

        def on_epoch_end(self, epoch, logs=None):
            logs.update({name: float(dist.rank() + epoch) for name in self.names})

    mean = (dist.size() - 1) / 2
    seen = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: losses.append(logs["loss"]))
    losses = []
    history = fit(make_model(), 2, [Own(["other", "acc"]), hdp.keras.MetricAverageCallback(), seen], epochs=2).history
    assert history["acc"] == [mean, mean + 1], history
    assert history["loss"] == losses
    all_losses = dist.allgather(tf.constant([losses]), name="losses").numpy()
    assert (all_losses == all_losses[0]).all()
    more = ["acc"] + ["val"] * (dist.rank() == 1)
    expect(
        "rank 0 has 'acc loss', rank 1 has 'acc loss val'",
        lambda: fit(make_model(), 2, [Own(more), hdp.keras.MetricAverageCallback()]),
        CollectiveMismatch,
    )


def rates():
    seen = Rates()
    warm = hdp.keras.LearningRateWarmupCallback(0.8, warmup_epochs=2, verbose=dist.rank() == 0)
    history = fit(make_model(), 4, [warm, seen], epochs=3)
    n = dist.size()
    expected = [0.8 / n * ((i + 1) / 4 * (n - 1) / 2 + 1) for i in range(8)] + [0.8] * 4
    np.testing.assert_allclose(seen.seen, expected, rtol=1e-6)
    np.testing.assert_allclose(history.history["lr"], [expected[3], 0.8, 0.8], rtol=1e-6)

    seen = Rates()
    schedule = hdp.keras.LearningRateScheduleCallback
    stairs = [schedule(0.5, 0.1, start_epoch=1, end_epoch=2), schedule(0.5, lambda e: 0.1**e, start_epoch=2)]
    fit(make_model(), 2, [*stairs, seen], epochs=4, optimizer=keras.optimizers.SGD(0.5))
    np.testing.assert_allclose(seen.seen, [0.5, 0.5, 0.05, 0.05, 0.005, 0.005, 0.0005, 0.0005], rtol=1e-5)
    expect("momentum_correction", lambda: schedule(0.1, 1.0, momentum_correction=True))
    expect("initial_lr is None", lambda: hdp.keras.LearningRateWarmupCallback(None))
    data = tf.data.Dataset.from_generator(
        lambda: (batches(1) for _ in range(2)),
        output_signature=(tf.TensorSpec([PER_RANK, WIDTH]), tf.TensorSpec([PER_RANK, 3])),
    )
    model = make_model()
    model.compile(dist.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    warm = hdp.keras.LearningRateWarmupCallback(0.8)
    expect("can't know steps_per_epoch", lambda: model.fit(data, verbose=0, callbacks=[warm]))


def checkpoints(folder):
    me = dist.rank()
    path = folder / f"best-{me}.keras"
    model = make_model()
    best = hdp.keras.BestModelCheckpoint(str(path), monitor="loss")
    fit(model, 2, [hdp.keras.BroadcastGlobalVariablesCallback(), hdp.keras.MetricAverageCallback(), best], epochs=2)
    dist.barrier()
    assert sorted(p.name for p in folder.iterdir()) == ["best-0.keras"]
    expect("BestModelCheckpoint", lambda: hdp.keras.BestModelCheckpoint("x", save_best_only=False))

    loaded = hdp.keras.load_model(folder / "best-0.keras")
    assert dist.DistributedOptimizer.__module__ == "hdp.tensorflow.optimizers"
    expect("distributed already", lambda: dist.DistributedOptimizer(loaded.optimizer))
    fit(loaded, 2)
    dist.check_in_sync(loaded)
    dist.barrier()

    class Spoil(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1 and me == 1:
                bias = self.model.layers[-1].bias
                bias.assign(bias + 1.0)

    expect(
        "bias",
        lambda: fit(loaded, 2, [Spoil(), hdp.keras.CheckInSyncCallback()], epochs=3),
        dist.OutOfSync,
    )
    expect("every is 0", lambda: hdp.keras.CheckInSyncCallback(0))
    for name in ("elastic", "PartialDistributedOptimizer", "start_timeline"):
        expect(f"has no {name!r}: ", lambda name=name: getattr(hdp.keras, name), AttributeError)


def callbacks(folder):
    broadcasts()
    metrics()
    rates()
    checkpoints(Path(folder))
    dist.barrier()
    print("callbacks are fine")


class AtStep(keras.callbacks.Callback):
    """Rank 1 does something before its fourth step."""

    def __init__(self, do):
        super().__init__()
        self.do = do

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 3 and dist.rank() == 1:
            self.do()


def raise_mistake():
    raise ValueError("a mistake of the user's")


class WithTape(keras.Model):
    """Ranks that differ: in the shape of a variable, or in whether it has a gradient."""

    def __init__(self, way):
        super().__init__()
        self.way = way
        odd = way == "shape" and dist.rank() == 1
        self.first, self.second = keras.layers.Dense(9 if odd else 8, name="first"), keras.layers.Dense(3)

    def call(self, x):
        return self.second(self.first(x))

    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            hidden = self.first(x)
            if self.way == "none" and dist.rank() == 1:
                hidden = tf.stop_gradient(hidden)
            loss = tf.reduce_mean(tf.square(self.second(hidden) - y))
        variables = self.trainable_variables
        grads = dist.DistributedGradientTape(tape).gradient(loss, variables)
        self.optimizer.apply_gradients([(g, v) for g, v in zip(grads, variables, strict=True) if g is not None])
        return {"loss": loss}


def fails(way):
    """fit, in which rank 1 does otherwise than the rest."""
    if way in ("shape", "none"):
        model = WithTape(way)
        model.compile(keras.optimizers.SGD(0.1), run_eagerly=dist.size() == 2)
        return fit(model, 5)
    model = make_model()
    if way == "late none":
        return late_none()
    do = {
        "exit": lambda: sys.exit(3),
        "exit at once": lambda: os._exit(3),
        "exception": raise_mistake,
        "fewer steps": lambda: setattr(model, "stop_training", True),
    }[way]
    fit(model, 8, [AtStep(do)])
    if dist.rank() == 1:
        # The others wait for its gradients; it waits for them here.
        dist.barrier()
    return None


def late_none():
    """Eagerly: a gradient is missing on rank 1, in the third step only."""
    a, b = tf.Variable([1.0]), tf.Variable([2.0, 3.0], name="late")
    for step in range(5):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(a)
            if not (step == 2 and dist.rank() == 1):
                loss += tf.reduce_sum(b)
        dist.DistributedGradientTape(tape).gradient(loss, [a, b])


def main():
    dist.init()
    if sys.argv[1] == "callbacks":
        callbacks(sys.argv[2])
        return
    try:
        fails(sys.argv[1])
    except BaseException as exc:
        said = " ".join(str(exc).split())
        print(f"CAUGHT {type(exc).__name__} collateral={is_collateral(exc)}: {said}", flush=True)
        raise


if __name__ == "__main__":
    main()
