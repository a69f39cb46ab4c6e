"""Train a digit classifier with TensorFlow from TFRecord files that are streamed, by ``tf.data``.

Of the sorted training files, rank r of R takes r, r + R, r + 2R, ..., and reads some at a time (`interleave`), without
end, so that every rank takes the same number of steps, whatever its files hold.
"""

import argparse
import hashlib
import json
import os
import time
from pathlib import Path

import keras
import tensorflow as tf

import hdp.tensorflow as dist
from hdp import metrics


def main() -> None:
    args = parse()
    dist.init()
    keras.utils.set_random_seed(args.seed)
    model = make_model()
    first = train(args, model)
    if dist.rank() == 0:
        report(args, model, first)
    digest = hashlib.sha256(b"".join(value.tobytes() for value in model.get_weights())).hexdigest()
    print(f"weights sha256 {digest}", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=16, help="digits of each rank")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--training", type=Path, default=os.environ.get("SM_CHANNEL_TRAINING"))
    parser.add_argument("--test", type=Path, default=os.environ.get("SM_CHANNEL_TEST"))
    parser.add_argument("--sm-model-dir", type=Path, default=os.environ.get("SM_MODEL_DIR", "model"))
    parser.add_argument("--output-data-dir", type=Path, default=os.environ.get("SM_OUTPUT_DATA_DIR", "output"))
    parser.add_argument("--model_dir", help="the estimator's, on SageMaker; unused: the model goes to --sm-model-dir")
    return parser.parse_args()


def make_model() -> keras.Model:
    """Input (n, 8, 8, 1) float32, output (n, 10) logits."""
    conv, layers = keras.layers.Conv2D, keras.layers
    return keras.Sequential([
        keras.Input((8, 8, 1)), conv(16, 3, padding="same", activation="relu"),
        conv(32, 3, padding="same", activation="relu"), layers.MaxPooling2D(), layers.Flatten(),
        layers.Dense(64, activation="relu"), layers.Dense(10),
    ])  # fmt: skip


def digits(files: list[str]) -> tf.data.Dataset:
    """Images (8, 8, 1) in 0..1 and labels of some files, four of them at a time."""
    names = tf.data.Dataset.from_tensor_slices(files)
    return names.interleave(tf.data.TFRecordDataset, cycle_length=4).map(decode)


def decode(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """A record is 65 bytes: 64 pixels of 0..16, the label."""
    values = tf.io.decode_raw(record, tf.uint8)
    return tf.cast(tf.reshape(values[:64], (8, 8, 1)), tf.float32) / 16, tf.cast(values[64], tf.int64)


def files_of(channel: Path) -> list[str]:
    """The TFRecord files of a channel, sorted."""
    return sorted(str(path) for path in channel.glob("*.tfrecord"))


def train(args: argparse.Namespace, model: keras.Model) -> float:
    """Take the steps. Returns the seconds until the first batch was there."""
    files = files_of(args.training)
    if len(files) < dist.size():
        raise SystemExit(f"{len(files)} files can't be shared by {dist.size()} ranks")
    stream = digits(files[dist.rank() :: dist.size()]).repeat().shuffle(500, seed=args.seed + dist.rank())
    optimizer = keras.optimizers.SGD(args.lr, momentum=0.9)
    optimizer.build(model.trainable_variables)
    dist.broadcast_variables(model.variables, root_rank=0)
    step = make_step(model, optimizer)
    began, first = time.perf_counter(), 0.0
    for number, (images, labels) in enumerate(stream.batch(args.batch_size).prefetch(2).take(args.steps)):
        first = first or time.perf_counter() - began
        loss = step(images, labels)
        metrics.log(step=number, steps=args.steps, loss=float(loss), samples=len(labels))
    return first


def make_step(model: keras.Model, optimizer: keras.optimizers.Optimizer):
    """A training step as a graph; gradients are averaged over the ranks."""
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(images, labels):
        with tf.GradientTape() as tape:
            loss = cross_entropy(labels, model(images, training=True))
        gradients = dist.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    return step


def report(args: argparse.Namespace, model: keras.Model, first: float) -> None:
    """Evaluate on the held-out digits; leave the model artifact and a summary."""
    images, labels = next(iter(digits(files_of(args.test)).batch(10_000)))
    share = float(tf.reduce_mean(tf.cast(tf.argmax(model(images), 1) == labels, tf.float32)))
    args.sm_model_dir.mkdir(parents=True, exist_ok=True)
    model.save(args.sm_model_dir / "model.keras")
    args.output_data_dir.mkdir(parents=True, exist_ok=True)
    summary = {"accuracy": share, "ranks": dist.size(), "seconds_to_first_batch": first}
    (args.output_data_dir / "summary.json").write_text(json.dumps(summary))
    print(f"test accuracy {share:.4f}", flush=True)


if __name__ == "__main__":
    main()
