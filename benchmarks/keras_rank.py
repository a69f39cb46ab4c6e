"""One rank that trains in TensorFlow: ``keras_rank.py KIND CONTROL_SOCKET BARRIER_FILE ...``, as `training` asks.

KIND says with what: ``hdp`` (``hdp:25``: with buckets of at most 25 MB) or ``horovod``. The script is the same for
both: a Keras model, a tape that the library wraps, a step in a tf.function. In place of a model there may be bare
gradients, `SMALL` of them, which are reduced as the tape does it.

A timed step is forward, backward, whatever the library sends, and the optimizer's step, on images that are in memory.
All ranks meet at a barrier off the wire before and after; the clock runs between.
"""

from __future__ import annotations

import gc
import hashlib
import importlib.metadata
import itertools
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import keras_models
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from barrier import Barrier
from control import serve

_BATCHES = 8  # that a rank has in memory, and takes in turn
_SEED = 20_220_901
_LEARNING_RATE, _MOMENTUM = 1e-4, 0.9  # small: with each step rounding grows into the losses
_INTER_OP_THREADS = 2
SMALL = (1000, 1024)
"""Gradients in place of a model: how many, and float32 elements of each."""

Step = Callable[[], tuple[float, Sequence[Any]]]
"""A step: its loss, and the averaged gradients. It has ended when these are known, and all that it assigned."""


class Library(Protocol):
    """What averages the gradients."""

    rank: int
    size: int
    versions: dict[str, str]

    def start(self, variables: Sequence[Any]) -> None:
        """Give all ranks rank 0's."""

    def tape(self, tape: tf.GradientTape) -> Any:
        """A tape whose gradients are averaged."""

    def reduce(self, gradients: Sequence[Any]) -> Sequence[Any]:
        """What the tape does with gradients, and nothing else."""

    def close(self) -> None:
        """Leave."""


class Hdp:
    """hdp.tensorflow."""

    def __init__(self, bucket_cap: str = "") -> None:
        import hdp.tensorflow as dist

        dist.init()
        self._dist = dist
        self._options = {"bucket_cap_mb": float(bucket_cap)} if bucket_cap else {}
        self.rank, self.size = dist.rank(), dist.size()
        self.versions = {**_versions(), "operations": dist.operations_name()}

    def start(self, variables: Sequence[Any]) -> None:
        self._dist.broadcast_variables(variables, 0)

    def tape(self, tape: tf.GradientTape) -> Any:
        return self._dist.DistributedGradientTape(tape, **self._options)

    def reduce(self, gradients: Sequence[Any]) -> Sequence[Any]:
        averaged: Sequence[Any] = self.tape(Given()).gradient(None, gradients)
        return averaged

    def close(self) -> None:
        self._dist.shutdown()


class Horovod:
    """horovod.tensorflow; which controller it has says the environment."""

    def __init__(self, _: str = "") -> None:
        import horovod.tensorflow as hvd  # type: ignore[import-not-found]  # in an environment of its own

        hvd.init()
        self._hvd = hvd
        self.rank, self.size = hvd.rank(), hvd.size()
        self.versions = {**_versions(), "horovod": importlib.metadata.version("horovod")}

    def start(self, variables: Sequence[Any]) -> None:
        self._hvd.broadcast_variables([getattr(v, "value", v) for v in variables], root_rank=0)

    def tape(self, tape: tf.GradientTape) -> Any:
        return self._hvd.DistributedGradientTape(tape)

    def reduce(self, gradients: Sequence[Any]) -> Sequence[Any]:
        # Its tape puts a tf.cond around each, of which a thousand take minutes to trace.
        return [self._hvd.allreduce(tf.identity(g), name=f"alone.{i}") for i, g in enumerate(gradients)]

    def close(self) -> None:
        self._hvd.shutdown()


LIBRARIES: dict[str, Callable[[str], Library]] = {"hdp": Hdp, "horovod": Horovod}


def _versions() -> dict[str, str]:
    return {"tensorflow": tf.__version__, "keras": importlib.metadata.version("keras")}


class Given(tf.GradientTape):  # type: ignore[misc]  # tensorflow has no types
    """A tape that gives gradients that are there already."""

    def gradient(self, _target: Any, sources: Any, *_: Any, **__: Any) -> Any:
        return [tf.identity(source) for source in sources]


def trained(model: Any, batches: Sequence[Any], wrapped: Callable[[Any], Any]) -> Step:
    """The training step of `model`, on the batches in turn. wrapped: what becomes of the tape."""
    optimizer = tf.keras.optimizers.SGD(_LEARNING_RATE, momentum=_MOMENTUM)
    variables = model.trainable_variables
    sources = [variable.value for variable in variables]  # Horovod doesn't know Keras 3's own
    optimizer.build(variables)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]  # as above
    def step(images: Any, classes: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(classes, model(images, training=True))
        gradients = wrapped(tape).gradient(loss, sources)
        optimizer.apply(gradients, variables)
        return loss, gradients

    turns = itertools.cycle(batches)

    def run() -> tuple[float, Sequence[Any]]:
        loss, gradients = step(*next(turns))
        return float(loss), gradients

    return run


def reduced(whole: tf.Variable, shapes: Sequence[Any], library: Library) -> Step:
    """A step that averages parts of `whole`, one after the other, as gradients of these shapes."""

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]  # as above
    def step() -> Any:
        parts = tf.split(whole, [shape.num_elements() for shape in shapes])  # one operation, so that it costs little
        averages = library.reduce([tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)])
        return tf.constant(0.0), [tf.concat([tf.reshape(average, [-1]) for average in averages], 0)]

    def run() -> tuple[float, Sequence[Any]]:
        loss, averages = step()
        return float(loss), averages

    return run


class Trainer:
    """Answers to the coordinator's requests."""

    def __init__(self, library: Library, barrier_file: str) -> None:
        self._library = library
        self._barrier = Barrier(barrier_file, library.rank, library.size)
        self._parameters: Sequence[Any] = ()
        self._steps: dict[str, Step] = {}

    def hello(self) -> dict[str, Any]:
        """Who this is."""
        return {"rank": self._library.rank, "size": self._library.size, "versions": self._library.versions}

    def prepare(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Build the model and train `steps` steps, each checked against the mean of all ranks' own gradients.

        folder: of all ranks; rank 0 leaves there, as ``change``, what the first step changed in the parameters, or the
        first average where there is no model. Losses: of each step, to compare libraries by.
        """
        own = self._build(asked["model"], asked["batch"])
        before, folder = _flat(self._parameters), Path(asked["folder"])
        errors, losses = [], []
        for step in range(asked["steps"]):
            expected, (loss, gradients) = own(), self._steps["train"]()
            errors.append(self._error(expected, gradients, folder))
            losses.append(loss)
            if self._library.rank == 0 and not step:
                change = _flat(self._parameters) - before if "compute" in self._steps else _flat(gradients)
                change.tofile(folder / "change")
        more = {"errors": errors, "losses": losses, "rank": self._library.rank}
        return {"parameters": before.size, "buckets": [], **more, **self.digest({})}

    def _build(self, name: str, batch: int) -> Callable[[], Sequence[Any]]:
        """Make the steps. Returns what gives this rank's own gradients of the step that is next."""
        if name == "small":
            count, elements = SMALL
            random = np.random.default_rng(_SEED + self._library.rank)
            whole = tf.Variable(random.standard_normal(count * elements, np.float32))
            self._parameters = [whole]
            self._steps["train"] = reduced(whole, [tf.TensorShape([elements])] * count, self._library)
            return lambda: self._parameters
        # No rank may see the batches of another one, and every library's rank r has the same.
        first = _SEED + 1 + self._library.rank * _BATCHES
        batches = [tuple(map(tf.constant, keras_models.batch(batch, first + i))) for i in range(_BATCHES)]
        model, bare = keras_models.build(name, _SEED), keras_models.build(name, _SEED)
        self._parameters = model.trainable_variables
        self._library.start(model.variables)
        self._steps["train"] = trained(model, batches, self._library.tape)
        self._steps["compute"] = trained(bare, batches, lambda tape: tape)
        shapes = [variable.shape for variable in self._parameters]
        whole = tf.Variable(tf.zeros([sum(math.prod(shape) for shape in shapes)]))
        self._steps["exchange"] = reduced(whole, [tf.TensorShape(shape) for shape in shapes], self._library)

        def own() -> Sequence[Any]:
            bare.set_weights(model.get_weights())
            return self._steps["compute"]()[1]

        return own

    def _error(self, expected: Sequence[Any], gradients: Sequence[Any], folder: Path) -> float:
        """On rank 0: how far the library's gradients are from the mean of what the ranks computed by themselves."""
        _flat(expected).tofile(folder / f"rank-{self._library.rank}")
        self._barrier.wait()
        error = 0.0
        if self._library.rank == 0:
            files = (folder / f"rank-{rank}" for rank in range(self._library.size))
            mean = sum(np.fromfile(file, np.float32).astype(np.float64) for file in files) / self._library.size
            error = float(np.linalg.norm(_flat(gradients) - mean) / np.linalg.norm(mean))
        self._barrier.wait()
        return error

    def digest(self, _: dict[str, Any]) -> dict[str, Any]:
        """What is equal on two ranks exactly when all their parameters are, or their averages, to the bit."""
        values = self._parameters if "compute" in self._steps else self._steps["train"]()[1]
        return {"digest": hashlib.sha256(_flat(values).tobytes()).hexdigest()}

    def measure(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Time `steps` of `part`: ``train``, ``compute`` (the bare model) or ``exchange`` (a step's gradients alone).

        Where there are timelines, rank 0 leaves beside them when its steps began and ended.
        """
        operation = self._steps[asked["part"]]
        if asked["part"] == "exchange":
            self._barrier.wait()
            operation()  # the first one is traced
        times, cpu, spans = [], [], []  # seconds; of spans since 1970
        gc.disable()
        for _ in range(asked["steps"]):
            self._barrier.wait()
            used, began, start = time.process_time(), time.time(), time.monotonic()
            operation()
            times.append(time.monotonic() - start)
            spans.append((began, began + times[-1]))
            self._barrier.wait()
            cpu.append(time.process_time() - used)
        gc.enable()
        folder = os.environ.get("HDP_TIMELINE_DIR")
        if folder and self._library.rank == 0 and asked["part"] == "train":
            with (Path(folder) / "spans").open("a") as file:
                file.writelines(f"{began:.6f} {ended:.6f}\n" for began, ended in spans)
        return {"times": times, "cpu": cpu}

    def close(self) -> None:
        """Leave the job."""
        self._library.close()


def _flat(tensors: Sequence[Any]) -> npt.NDArray[np.float32]:
    flat: npt.NDArray[np.float32] = np.concatenate([np.ravel(np.asarray(t)) for t in tensors])
    return flat


def main(kind: str, control: str, barrier_file: str, *_: str) -> int:
    """Join, then answer."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(_INTER_OP_THREADS)
    name, _, option = kind.partition(":")
    code = serve(control, lambda: Trainer(LIBRARIES[name](option), barrier_file))
    sys.stdout.flush()
    return code


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    os._exit(main(*sys.argv[1:]))  # not through the libraries' exit handlers, which may wait for ranks that are gone
