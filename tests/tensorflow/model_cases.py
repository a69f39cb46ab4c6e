"""Models of all kinds, and what is saved of them."""

import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf
from training_support import (
    KERAS_3,
    PER_RANK,
    STEPS,
    WIDTH,
    Logged,
    by_hand,
    compare,
    data,
    fit,
    flat,
    keras,
    make_model,
    mean_squared,
    mine,
    pairs,
    reference,
    refused,
    started,
    variables_of,
    with_weights,
)

import hdp.keras
import hdp.tensorflow as dist


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
