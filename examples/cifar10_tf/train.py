"""Train a residual network with Keras on one process or on many, their gradients through hdp or through Horovod.

What is particular to a library is in `library`, and nowhere else. Gradients are reduced where you say:

    --reduce tape        a train_step of our own, in which the gradient tape is a DistributedGradientTape
    --reduce optimizer   Keras's train_step; the optimizer is a DistributedOptimizer

Every rank reads its own shard: of the sorted files, rank r of R takes r, r + R, r + 2R, ... Many scripts of this kind,
among them the one that this is modelled on, have every rank read all files in an order of its own. That trains too,
but an epoch is then as many passes over the data as there are ranks, and ranks meet the same images.

Each rank's batch is --batch-size images, so that R ranks take R times as many a step; the learning rate is R times
--lr, after a warm-up. A step count that all ranks share keeps a rank with a larger shard from waiting for the others.

BatchNormalization's moving statistics are each rank's own; they are averaged at the end of every epoch.
"""

# ruff: noqa: ARG002 - the callbacks' arguments are Keras's

import argparse
import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from model import accuracy, make_model
from prepare import files_of, read

from hdp import metrics


def main() -> None:
    args = parse()
    dist, callbacks = library(args.dist)
    use_own_gpu(dist.local_rank())
    keras.utils.set_random_seed(args.seed + dist.rank())  # the broadcast makes the weights the same
    batches, steps = shard(args, dist)
    net = make_model(args.model)
    history = History(dist.rank() == 0, steps * args.epochs, args.batch_size)
    model = compiled(args, dist, net)
    together = in_step(args, dist, callbacks, steps) if dist.size() > 1 else []
    model.fit(
        batches,
        shuffle=False,  # they are already
        epochs=args.epochs,
        steps_per_epoch=steps,
        verbose=0,
        callbacks=[*together, history],
    )
    if dist.rank() == 0:
        report(args, dist.size(), net, history)
    digest = hashlib.sha256(b"".join(value.tobytes() for value in net.get_weights())).hexdigest()
    print(f"weights sha256 {digest}", flush=True)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dist", choices=["hdp", "horovod", "none"], default="hdp")
    parser.add_argument("--reduce", choices=["tape", "optimizer"], default="tape")
    parser.add_argument("--model", choices=["small", "resnet50"], default="small")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32, help="images of each rank")
    parser.add_argument("--steps-per-epoch", type=int, default=0, help="0: as many as the smallest shard has batches")
    parser.add_argument("--lr", type=float, default=0.02, help="of one rank; R ranks take R times as much")
    parser.add_argument("--warmup-epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--check-in-sync", action="store_true", help="compare the ranks' weights after every epoch")
    parser.add_argument("--training", type=Path, default=os.environ.get("SM_CHANNEL_TRAINING"))
    parser.add_argument("--test", type=Path, default=os.environ.get("SM_CHANNEL_TEST"))
    parser.add_argument("--sm-model-dir", type=Path, default=os.environ.get("SM_MODEL_DIR", "model"))
    parser.add_argument("--output-data-dir", type=Path, default=os.environ.get("SM_OUTPUT_DATA_DIR", "output"))
    parser.add_argument("--model_dir", help="the estimator's, on SageMaker; unused: the model goes to --sm-model-dir")
    args = parser.parse_args(argv)
    if args.training is None or args.test is None:
        parser.error("give --training and --test, or run in a job with these channels")
    if args.dist == "horovod" and args.reduce == "optimizer":
        parser.error(
            "--dist horovod --reduce optimizer: with Keras 3, Horovod's DistributedOptimizer doesn't reduce the "
            "gradients and says nothing; use --reduce tape"
        )
    if args.check_in_sync and args.dist != "hdp":
        parser.error(f"--check-in-sync needs --dist hdp; it is {args.dist}")
    return args


def library(name: str) -> tuple[ModuleType, ModuleType]:
    """The module with the operations and the one with the Keras callbacks; the ranks have found each other."""
    if name == "hdp":
        import hdp.keras as callbacks
        import hdp.tensorflow as dist
    elif name == "horovod":
        import horovod.tensorflow as dist
        import horovod_callbacks as callbacks
    else:
        import alone as dist

        callbacks = keras.callbacks
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise SystemExit("--dist none is for one process; this job has more, and they would train apart")
    dist.init()
    return dist, callbacks


def use_own_gpu(local_rank: int) -> None:
    """Where a host has GPUs, each of its ranks takes one."""
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        tf.config.set_visible_devices(gpus[local_rank], "GPU")
        tf.config.experimental.set_memory_growth(gpus[local_rank], True)


def shard(args: argparse.Namespace, dist: ModuleType) -> tuple[tf.data.Dataset, int]:
    """This rank's batches, without end, and how many of them are an epoch, on every rank."""
    files = files_of(args.training)
    if len(files) < dist.size():
        raise SystemExit(f"{dist.size()} ranks can't share {len(files)} files; prepare.py --shards writes more")
    mine = files[dist.rank() :: dist.size()]
    images = read(mine)
    count = int(images.reduce(0, lambda n, _: n + 1))
    names = " ".join(Path(name).name for name in mine)
    print(f"rank {dist.rank()} of {dist.size()} reads {count} images from {names}", flush=True)
    steps = int(dist.allreduce(tf.constant(count // args.batch_size), op=dist.Min))
    if steps == 0:
        raise SystemExit(f"a rank has less than a batch of {args.batch_size} images; make the batch smaller")
    shuffled = images.shuffle(min(count, 10_000), seed=args.seed + dist.rank()).repeat()
    return shuffled.batch(args.batch_size).prefetch(2), args.steps_per_epoch or steps


def in_step(args: argparse.Namespace, dist: ModuleType, callbacks: ModuleType, steps: int) -> list:
    """Callbacks that let ranks begin with the same weights and go on together."""
    found = [
        callbacks.BroadcastGlobalVariablesCallback(0),
        AverageStatistics(dist),
        callbacks.MetricAverageCallback(),
        callbacks.LearningRateWarmupCallback(
            args.lr * dist.size(), warmup_epochs=args.warmup_epochs, steps_per_epoch=steps
        ),
    ]
    return [*found, callbacks.CheckInSyncCallback()] if args.check_in_sync else found


def compiled(args: argparse.Namespace, dist: ModuleType, net: keras.Model) -> keras.Model:
    """A model that trains the layers of `net`, and reduces the gradients."""
    optimizer = keras.optimizers.SGD(args.lr * dist.size(), momentum=0.9)
    if args.reduce == "tape":
        model = TapeModel(net.inputs, net.outputs, dist.DistributedGradientTape)
    else:
        model = keras.Model(net.inputs, net.outputs)
        optimizer = dist.DistributedOptimizer(optimizer)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False)
    return model


class TapeModel(keras.Model):
    """Keras's model with a train_step of its own. distribute: wraps the tape."""

    def __init__(self, inputs, outputs, distribute: Callable[[tf.GradientTape], Any]) -> None:
        super().__init__(inputs, outputs)
        self.distribute = distribute

    def train_step(self, data):
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            found = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=found, sample_weight=weight, training=True)
        sources = [variable.value for variable in self.trainable_variables]  # TensorFlow's, which every library knows
        gradients = self.distribute(tape).gradient(loss, sources)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, found, sample_weight=weight)
        return self.get_metrics_result()


class AverageStatistics(keras.callbacks.Callback):
    """At the end of an epoch, moving statistics are the averages of all ranks'. Put it before what reads weights."""

    def __init__(self, dist: ModuleType) -> None:
        super().__init__()
        self.dist = dist

    def on_epoch_end(self, epoch: int, logs=None) -> None:
        variables = [v for v in self.model.non_trainable_variables if v.path.split("/")[-1].startswith("moving_")]
        if variables:
            whole = self.dist.allreduce(tf.concat([tf.reshape(v.value, [-1]) for v in variables], 0))
            parts = tf.split(whole, [int(np.prod(v.shape)) for v in variables])
            for variable, part in zip(variables, parts, strict=True):
                variable.assign(tf.reshape(part, variable.shape))


class History(keras.callbacks.Callback):
    """Says and keeps every step's loss; rank 0 prints each epoch. Put it last, so that it sees averaged metrics."""

    def __init__(self, prints: bool, total: int, batch_size: int) -> None:
        """total: steps of all epochs."""
        super().__init__()
        self.prints, self.total, self.batch_size = prints, total, batch_size
        self.steps: list[dict] = []
        self.began = 0.0

    def on_train_batch_begin(self, batch: int, logs=None) -> None:
        self.began = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs=None) -> None:
        """Keras's loss is the mean over the epoch so far."""
        step = len(self.steps)
        self.steps.append({"step": step, "loss": logs["loss"], "seconds": time.perf_counter() - self.began})
        metrics.log(step=step, steps=self.total, loss=logs["loss"], samples=self.batch_size)

    def on_epoch_end(self, epoch: int, logs=None) -> None:
        if self.prints:
            values = " ".join(f"{name} {logs[name]:.6f}" for name in ("loss", "accuracy"))
            print(f"epoch {epoch + 1} of {self.params['epochs']}: {values}", flush=True)


def report(args: argparse.Namespace, ranks: int, net: keras.Model, history: History) -> None:
    """Evaluate on the held-out images; leave the model artifact and a summary."""
    share = accuracy(net, args.test)
    args.sm_model_dir.mkdir(parents=True, exist_ok=True)
    net.save(args.sm_model_dir / "model.keras")
    args.output_data_dir.mkdir(parents=True, exist_ok=True)
    summary = {"accuracy": share, "ranks": ranks, "steps": history.steps}
    (args.output_data_dir / "summary.json").write_text(json.dumps(summary))
    print(f"test accuracy {share:.4f}", flush=True)


if __name__ == "__main__":
    main()
