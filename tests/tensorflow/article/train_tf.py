"""A Keras 2 script as SMDDP's users wrote them: fit() with a train step of its own, and no word of hdp's.

Every rank reads all records. What it has in the end goes to SM_OUTPUT_DATA_DIR, for the test.
"""

import argparse
import hashlib
import json
import os
import signal
from pathlib import Path

import tensorflow as tf
from keras.engine import data_adapter
from tensorflow.keras import layers
from tensorflow.keras.callbacks import Callback

import smdistributed.dataparallel.tensorflow as sdp

SHAPE = (32, 32, 3)


class FirstWeightsOfOneRank(Callback):
    """After the first batch, when the optimizer has all its variables."""

    def __init__(self, root):
        super().__init__()
        self.root, self.done = root, False

    def on_batch_end(self, batch, logs=None):
        if not self.done:
            sdp.broadcast_variables(self.model.variables, root_rank=self.root)
            sdp.broadcast_variables(self.model.optimizer.variables(), root_rank=self.root)
            self.done = True


class Dies(Callback):
    """Rank `rank` is killed before batch 3."""

    def __init__(self, rank):
        super().__init__()
        self.rank = rank

    def on_batch_begin(self, batch, logs=None):
        if batch == 3 and sdp.rank() == self.rank:
            os.kill(os.getpid(), signal.SIGKILL)


class DataParallelModel(tf.keras.Model):
    def train_step(self, data):
        images, labels, weights = data_adapter.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            scores = self(images, training=True)
            loss = self.compute_loss(images, labels, scores, weights)
        self._validate_target_and_loss(labels, loss)
        self.optimizer.minimize(loss, self.trainable_variables, tape=sdp.DistributedGradientTape(tape))
        return self.compute_metrics(images, labels, scores, weights)


def residual(inputs, filters, stride):
    found = layers.Conv2D(filters, 3, stride, "same", use_bias=False)(inputs)
    found = layers.ReLU()(layers.BatchNormalization()(found))
    found = layers.Conv2D(filters, 3, 1, "same", use_bias=False)(found)
    found = layers.BatchNormalization()(found)
    shortcut = layers.Conv2D(filters, 1, stride, "same", use_bias=False)(inputs)
    return layers.ReLU()(layers.Add()([found, shortcut]))


def network():
    inputs = tf.keras.Input(SHAPE)
    found = layers.Conv2D(8, 3, 2, "same")(inputs)
    for filters, stride in ((8, 1), (16, 2), (32, 2)):
        found = residual(found, filters, stride)
    return DataParallelModel(inputs, layers.Dense(10, activation="softmax")(layers.GlobalAveragePooling2D()(found)))


def records(batch_size):
    features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

    def parsed(record):
        found = tf.io.parse_single_example(record, features)
        image = tf.reshape(tf.io.decode_raw(found["image"], tf.uint8), SHAPE)
        return tf.cast(image, tf.float32) / 255, tf.cast(found["label"], tf.int32)

    files = tf.data.Dataset.list_files(os.environ["SM_CHANNEL_TRAINING"] + "/*", shuffle=True)
    found = tf.data.TFRecordDataset(files, num_parallel_reads=tf.data.AUTOTUNE).repeat()
    found = found.map(parsed, num_parallel_calls=tf.data.AUTOTUNE)
    return found.batch(batch_size).prefetch(tf.data.AUTOTUNE)


def digest(variables):
    joined = b"".join(variable.numpy().tobytes() for variable in variables)
    return hashlib.sha256(joined).hexdigest()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_dir", default="./model")
    parser.add_argument("--dies", type=int, default=-1)
    arguments = parser.parse_args()
    sdp.init()
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        tf.config.set_visible_devices(gpus[sdp.local_rank()], "GPU")
    model = network()
    first = digest(model.trainable_variables)
    model.compile(optimizer=tf.optimizers.Adam(), loss=tf.losses.SparseCategoricalCrossentropy())
    callbacks = [FirstWeightsOfOneRank(0), Dies(arguments.dies)]
    history = model.fit(records(32), steps_per_epoch=8, epochs=2, callbacks=callbacks, verbose=2).history
    told = {
        "versions": [tf.__version__, tf.keras.__version__],
        "place": [sdp.rank(), sdp.size(), sdp.local_rank(), sdp.local_size()],
        "model_dir": arguments.model_dir,
        "first": first,
        "trained": digest(model.trainable_variables),
        "optimizer": digest(model.optimizer.variables()),
        "losses": history["loss"],
    }
    Path(os.environ["SM_OUTPUT_DATA_DIR"], f"rank-{sdp.rank()}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
