"""What the cases of training_ranks.py share: data, models, and training by hand to compare with."""

import numpy as np
import tensorflow as tf

import hdp.tensorflow as dist
from hdp.tensorflow import sequence

keras = tf.keras

KERAS_3 = hasattr(keras.optimizers.Optimizer, "apply")

STEPS, PER_RANK, WIDTH = 10, 4, 5


def optimizers():
    """Name -> what makes the optimizers whose results are compared."""
    made = {
        "sgd": lambda: keras.optimizers.SGD(0.05),
        "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
        "adam": lambda: keras.optimizers.Adam(0.01),
    }
    if not KERAS_3:
        legacy = keras.optimizers.legacy
        made["legacy momentum"] = lambda: legacy.SGD(0.05, momentum=0.9)
        made["legacy adam"] = lambda: legacy.Adam(0.01)
    return made


def data(seed=1, steps=STEPS):
    """The whole batches: x [steps, ranks * PER_RANK, WIDTH], y [.., 3]."""
    rng = np.random.default_rng(seed)
    rows = dist.size() * PER_RANK
    return (
        rng.normal(size=(steps, rows, WIDTH)).astype("float32"),
        rng.normal(size=(steps, rows, 3)).astype("float32"),
    )


def mine(batches, rank=None):
    """This rank's slices of whole batches."""
    rank = dist.rank() if rank is None else rank
    return batches[:, rank * PER_RANK : (rank + 1) * PER_RANK]


def flat(batches):
    """For fit: batches one after the other."""
    return batches.reshape(-1, *batches.shape[2:])


def make_model(model_class=None):
    """The same weights each time, scaled by the rank: only a broadcast makes ranks agree."""
    inputs = keras.layers.Input([WIDTH])
    hidden = keras.layers.Dense(16, activation="tanh")(inputs)
    model = (model_class or keras.Model)(inputs, keras.layers.Dense(3)(hidden))
    return with_weights(model, 1 + dist.rank())


def with_weights(model, scale=1.0):
    rng = np.random.default_rng(7)
    model.set_weights([(rng.normal(size=w.shape) * 0.4 * scale).astype(w.dtype) for w in model.get_weights()])
    return model


def mean_squared(y, out):
    return tf.reduce_mean(tf.square(tf.cast(out, tf.float32) - tf.cast(y, tf.float32)))


@tf.autograph.experimental.do_not_convert
def pairs(grads, variables):
    """AutoGraph's zip knows no strict in TensorFlow 2.12."""
    return list(zip(grads, variables, strict=True))


def by_hand(model, optimizer, x, y, *, tape_of=lambda tape: tape, compiled=False):
    """A loop with a tape, without fit."""

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = mean_squared(y, model(x, training=True))
        variables = model.trainable_variables
        grads = tape_of(tape).gradient(loss, variables)
        optimizer.apply_gradients(pairs(grads, variables))

    step = tf.function(step) if compiled else step
    for i in range(len(x)):
        step(tf.constant(x[i]), tf.constant(y[i]))


def reference(optimizer, make=make_model, train=by_hand, x=None, y=None):
    """Weights of a process that has the whole batches; on rank 0, whose weights everybody begins with."""
    if dist.rank():
        return None
    model = make()
    if x is None:
        x, y = data()
    train(model, optimizer, x, y)
    return model.get_weights()


def compare(model, expected, what, tolerance=1e-5):
    dist.check_in_sync(model)
    if expected is not None:
        worst = max(float(np.abs(a - b).max()) for a, b in zip(model.get_weights(), expected, strict=True) if a.size)
        print(f"{what}: {worst:.1e}")
        assert worst < tolerance, f"{what}: weights are off by {worst}"


def started(make=make_model):
    model = make()
    dist.broadcast_variables(model.variables, 0)
    return model


class WithTape(keras.Model):
    """The seed's way."""

    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = mean_squared(y, self(x, training=True))
        tape = dist.DistributedGradientTape(tape)
        grads = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(pairs(grads, self.trainable_variables))
        return {"loss": loss}


def fit(model, optimizer, x, y, *, callbacks=(), batch=PER_RANK, **compiling):
    model.compile(optimizer, mean_squared, **compiling)
    return model.fit(flat(x), flat(y), batch_size=batch, shuffle=False, verbose=0, callbacks=list(callbacks))


def reductions():
    counter = sequence._counters.get("gradients")
    return 0 if counter is None else int(counter)


def refused(text, call, error=Exception):
    try:
        call()
    except error as exc:
        assert text in str(exc), str(exc)
    else:
        raise AssertionError(f"not refused: {text}")


class Logged:
    """Collects lines of hdp's log."""

    def __enter__(self):
        import logging

        self.lines = []
        self.handler = logging.Handler()
        self.handler.emit = lambda record: self.lines.append(record.getMessage())
        logging.getLogger("hdp").addHandler(self.handler)
        return self.lines

    def __exit__(self, *exception):
        import logging

        logging.getLogger("hdp").removeHandler(self.handler)


def variables_of(optimizer):
    found = optimizer.variables
    return found() if callable(found) else found


def assert_same(found, expected, what):
    worst = float(np.abs(found - expected).max())
    print(f"{what}: {worst:.1e}")
    assert worst < 1e-5, what
    dist.check_in_sync([tf.Variable(found)])
