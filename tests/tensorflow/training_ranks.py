"""A rank of the tests of training: ``training_ranks.py CASE...``. Rank 0 compares with a training of its own."""

import inspect
import sys
import tempfile
import time
import traceback
from pathlib import Path

import numpy as np
import tensorflow as tf

import hdp.keras
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


def case_equal():
    """Each optimizer, in each way of training."""
    x, y = (mine(batches) for batches in data())
    for name, make in optimizers().items():
        expected = reference(make())
        for way in ("eager", "graph"):
            model = started()
            by_hand(model, make(), x, y, tape_of=dist.DistributedGradientTape, compiled=way == "graph")
            compare(model, expected, f"{name}, {way}")
        for way in ("tape", "optimizer"):
            model = make_model(WithTape if way == "tape" else None)
            optimizer = make() if way == "tape" else dist.DistributedOptimizer(make())
            fit(model, optimizer, x, y, callbacks=[hdp.keras.BroadcastGlobalVariablesCallback(0)])
            compare(model, expected, f"{name}, fit with {way}")


def case_quick():
    """One optimizer, in two ways."""
    x, y = (mine(batches) for batches in data())
    expected = reference(keras.optimizers.Adam(0.01))
    model = started()
    by_hand(model, keras.optimizers.Adam(0.01), x, y, tape_of=dist.DistributedGradientTape, compiled=True)
    compare(model, expected, "with a tape")
    model = make_model()
    optimizer = dist.DistributedOptimizer(keras.optimizers.Adam(0.01))
    fit(model, optimizer, x, y, callbacks=[hdp.keras.BroadcastGlobalVariablesCallback(0)])
    compare(model, expected, "in fit")


def reductions():
    counter = sequence._counters.get("gradients")
    return 0 if counter is None else int(counter)


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


def refused(text, call, error=Exception):
    try:
        call()
    except error as exc:
        assert text in str(exc), str(exc)
    else:
        raise AssertionError(f"not refused: {text}")


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


def case_models():
    """Sparse gradients, layers without a gradient, several outputs, and layers with state of their own."""
    case_embedding()
    x, y = (mine(batches) for batches in data())

    def several():
        inputs = keras.layers.Input([WIDTH])
        hidden = keras.layers.Dense(8, activation="tanh")(inputs)
        unused = keras.layers.Dense(2, name="unused")(hidden)
        one, two = keras.layers.Dense(3, name="one")(hidden), keras.layers.Dense(3, name="two")(hidden)
        return with_weights(keras.Model(inputs, [one, two, unused]), 1 + dist.rank())

    def train(model, optimizer, x, y):
        """The third output isn't in the loss: its layer has no gradient."""
        for i in range(len(x)):
            with tf.GradientTape() as tape:
                one, two, _ = model(x[i], training=True)
                loss = mean_squared(y[i], one) + 0.5 * mean_squared(2 * y[i], two)
            grads = tape.gradient(loss, model.trainable_variables)
            assert any(gradient is None for gradient in grads)
            optimizer.apply_gradients(pairs(grads, model.trainable_variables))

    expected = reference(keras.optimizers.Adam(0.01), several, train)
    model = started(several)
    train(model, dist.DistributedOptimizer(keras.optimizers.Adam(0.01)), x, y)
    compare(model, expected, "several outputs, a layer without gradient")

    inputs = keras.layers.Input([WIDTH])
    hidden = keras.layers.BatchNormalization()(keras.layers.Dense(8)(inputs))
    frozen = keras.layers.Dense(8, trainable=False)
    model = keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Dropout(0.2)(frozen(hidden))))
    fit(
        model,
        dist.DistributedOptimizer(keras.optimizers.Adam(0.01)),
        x,
        y,
        callbacks=[hdp.keras.BroadcastGlobalVariablesCallback(0), hdp.keras.CheckInSyncCallback()],
    )
    moving = [v for v in model.variables if "moving_mean" in (getattr(v, "path", None) or v.name)]
    refused("moving_mean", lambda: dist.check_in_sync(moving), dist.OutOfSync)
    frozen.kernel.assign_add(tf.ones_like(frozen.kernel) * dist.rank())
    refused("kernel", lambda: dist.check_in_sync(model), dist.OutOfSync)


def case_embedding():
    """Its gradients are tf.IndexedSlices: rows of every rank, or made dense first."""
    rng = np.random.default_rng(3)
    words = rng.integers(0, 20, size=(STEPS, dist.size() * PER_RANK, 6)).astype("int32")
    _, y = data()

    def make():
        inputs = keras.layers.Input([6], dtype="int32")
        mean = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(20, 8)(inputs))
        return with_weights(keras.Model(inputs, keras.layers.Dense(3)(mean)), 1 + dist.rank())

    for name, optimizer in (
        ("sgd", lambda: keras.optimizers.SGD(0.5, clipnorm=0.2)),
        ("adam", lambda: keras.optimizers.Adam(0.05)),
    ):
        for dense in (False, True):
            expected = reference(optimizer(), make, dense_by_hand if dense else by_hand, words, y)
            model = started(make)
            fit(model, dist.DistributedOptimizer(optimizer(), sparse_as_dense=dense), mine(words), mine(y))
            compare(model, expected, f"embedding, {name}, sparse_as_dense={dense}")


def dense_by_hand(model, optimizer, x, y):
    """Keras counts a word that occurs twice as two rows, in norms and in squares; but not in a dense gradient."""
    by_hand(model, optimizer, x, y, tape_of=Dense)


class Dense:
    def __init__(self, tape):
        self.tape = tape

    def gradient(self, loss, variables):
        return [tf.convert_to_tensor(gradient) for gradient in self.tape.gradient(loss, variables)]


def case_states():
    """Optimizers in use, files, and checkpoints."""
    x, y = data()
    expected = reference(keras.optimizers.Adam(0.01))
    model = started()
    plain = keras.optimizers.Adam(0.01)
    by_hand(model, plain, x[:4], y[:4])  # the same on every rank
    count = len(variables_of(plain))
    optimizer = dist.DistributedOptimizer(plain)
    refused("distributed already", lambda: dist.DistributedOptimizer(optimizer))
    by_hand(model, optimizer, mine(x[4:7]), mine(y[4:7]))
    assert len(variables_of(optimizer)) == count
    model.compile(optimizer, mean_squared_of_keras())
    # One folder: rank 0's is told to all
    folder = Path(hdp.keras.callbacks.gathered_texts(tempfile.mkdtemp(prefix="tf-"), "folder")[0])
    if dist.rank() == 0:
        model.save(folder / "model.keras")
        model.save_weights(folder / "w.weights.h5")
        tf.train.Checkpoint(model=model, optimizer=optimizer).save(str(folder / "checkpoint"))
    dist.barrier()
    loaded = keras.models.load_model(folder / "model.keras")
    assert type(loaded.optimizer) is keras.optimizers.Adam, type(loaded.optimizer)
    loaded = hdp.keras.load_model(folder / "model.keras")
    fit_on(loaded, mine(x[7:]), mine(y[7:]))
    compare(loaded, expected, "from a file")

    model = started()
    model.compile(keras.optimizers.Adam(0.01), mean_squared)
    with Logged() as lines:
        fit_on(model, x[:4], y[:4])  # the same on every rank
    assert "its Adam isn't distributed" in lines[0], lines
    dist.DistributedOptimizer(model.optimizer)
    fit_on(model, mine(x[4:]), mine(y[4:]))
    compare(model, expected, "in the middle of fitting", 1e-5)

    restored, other = make_model(), dist.DistributedOptimizer(keras.optimizers.Adam(0.01))
    other.build(restored.trainable_variables)
    at = tf.train.latest_checkpoint(str(folder))
    tf.train.Checkpoint(model=restored, optimizer=other).restore(at).assert_existing_objects_matched()
    by_hand(restored, other, mine(x[7:]), mine(y[7:]))
    compare(restored, expected, "from a checkpoint")
    if KERAS_3:
        case_custom(folder)
    print(f"FOLDER {folder}")


def case_custom(folder):
    """An optimizer of the user's keeps the name under which Keras knows it."""

    from keras import saving

    @saving.register_keras_serializable("mine")
    class Own(keras.optimizers.SGD):
        pass

    model = make_model()
    model.compile(dist.DistributedOptimizer(Own(0.1)), "mse")
    assert saving.get_registered_name(type(model.optimizer)) == "mine>Own"
    if dist.rank() == 0:
        model.save(folder / "custom.keras")
        assert type(keras.models.load_model(folder / "custom.keras").optimizer) is Own


def mean_squared_of_keras():
    return "mse"


def fit_on(model, x, y):
    model.fit(flat(x), flat(y), batch_size=x.shape[1], shuffle=False, verbose=0)


def variables_of(optimizer):
    found = optimizer.variables
    return found() if callable(found) else found


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


def assert_same(found, expected, what):
    worst = float(np.abs(found - expected).max())
    print(f"{what}: {worst:.1e}")
    assert worst < 1e-5, what
    dist.check_in_sync([tf.Variable(found)])


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


def main():
    dist.init()
    for name in sys.argv[1:]:
        try:
            globals()[f"case_{name}"]()
        except BaseException:
            print(f"rank {dist.rank()}: case {name} failed")
            traceback.print_exc()
            sys.stdout.flush()
            raise
        print(f"{name} is fine, after {time.process_time():.0f} s of CPU", flush=True)
    dist.barrier()


if __name__ == "__main__":
    assert inspect.isfunction(case_equal)
    main()
