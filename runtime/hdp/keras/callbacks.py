"""Keras callbacks; for Keras 3 and for Keras 2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import hdp.tensorflow as dist
from hdp.collectives import operations
from hdp.contract.errors import CollectiveMismatch, InvalidCollective
from hdp.contract.zipping import zip_strict
from hdp.tensorflow.refusals import refuse

Callback: Any = tf.keras.callbacks.Callback


class BroadcastGlobalVariablesCallback(Callback):  # type: ignore[misc]
    """All ranks begin with the weights, and the optimizer's state, of rank `root_rank`.

    Before the first step where the model is built by then, else after it. Random seeds of layers stay each rank's own.
    Ranks that would take different numbers of steps are told so, instead of waiting for one another: raises
    CollectiveMismatch. device: Horovod's; refused.
    """

    def __init__(self, root_rank: int = 0, device: str = "") -> None:
        super().__init__()
        refuse("BroadcastGlobalVariablesCallback", {"device_dense": (device, "")})
        self.root_rank = root_rank
        self._done = False

    def on_train_begin(self, logs: Any = None) -> None:
        """Make the optimizer's variables, and send all."""
        _agree_on_steps((self.params or {}).get("steps"))
        self._done = False
        if self.model.built and self.model.weights:
            _build_optimizer(self.model)
            self._send()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Send all, if that wasn't possible before."""
        if not self._done:
            self._send()

    def _send(self) -> None:
        dist.broadcast_variables(list(self.model.weights) + _optimizer_variables(self.model), self.root_rank)
        self._done = True


class MetricAverageCallback(Callback):  # type: ignore[misc]
    """At the end of an epoch, metrics are those of all ranks: the average, equal on each.

    Put it before callbacks that read metrics (checkpoints, early stopping). Every rank has the same metrics; raises
    CollectiveMismatch. device: Horovod's; refused.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()
        refuse("MetricAverageCallback", {"device_dense": (device, "")})

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Average what is in `logs`, in place."""
        logs = {} if logs is None else logs
        names = sorted(k for k, v in logs.items() if np.ndim(v) == 0)
        of_ranks = gathered_texts(" ".join(names), "hdp.keras names")
        for rank, theirs in enumerate(of_ranks):
            if theirs != of_ranks[0]:
                raise CollectiveMismatch(
                    f"ranks have different metrics: rank 0 has {of_ranks[0]!r}, rank {rank} has {theirs!r}"
                )
        mine = np.array([float(logs[name]) for name in names])
        if names:
            whole = operations.allreduce(mine, dist.communicator().world, dist.Average, tag="hdp.keras metrics").wait()
            assert whole is not None
            logs.update(zip_strict(names, whole.tolist()))


class LearningRateScheduleCallback(Callback):  # type: ignore[misc]
    """The learning rate is `initial_lr` times `multiplier`, from `start_epoch` on and before `end_epoch`.

    multiplier: a number, or a function of the epoch. staircase: once an epoch; else after every batch, with the epoch
    as a fraction, for which steps_per_epoch must be known. momentum_correction: Horovod scales SGD's momentum for the
    steps that change the rate; refused, since Keras's momentum is a constant of the step.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = False,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if momentum_correction:
            raise InvalidCollective("momentum_correction isn't supported: Keras's momentum is a constant of the step")
        if initial_lr is None or initial_lr <= 0:
            raise InvalidCollective(f"initial_lr is {initial_lr!r}; expected the learning rate, above 0")
        self.initial_lr, self.start_epoch, self.end_epoch = initial_lr, start_epoch, end_epoch
        self.staircase, self.steps_per_epoch = staircase, steps_per_epoch
        self.multiplier = multiplier if callable(multiplier) else lambda _: multiplier
        self._epoch = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Find out how many steps an epoch has."""
        if self.staircase or self.steps_per_epoch:
            return
        self.steps_per_epoch = (self.params or {}).get("steps")
        if not self.steps_per_epoch:
            raise InvalidCollective(f"{type(self).__name__} can't know steps_per_epoch; say it")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Set the rate for the epoch."""
        self._epoch = epoch
        if self.staircase and self._applies():
            self._set(float(epoch))

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the rate for the batch."""
        if not self.staircase and self._applies():
            assert self.steps_per_epoch is not None
            self._set(self._epoch + batch / self.steps_per_epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Log the rate."""
        if logs is not None:
            logs["lr"] = float(np.asarray(self.model.optimizer.learning_rate))

    def _applies(self) -> bool:
        return self._epoch >= self.start_epoch and (self.end_epoch is None or self._epoch < self.end_epoch)

    def _set(self, epoch: float) -> None:
        rate = self.initial_lr * self.multiplier(epoch)
        optimizer = self.model.optimizer
        if hasattr(optimizer.learning_rate, "assign"):
            optimizer.learning_rate.assign(rate)
        else:
            optimizer.learning_rate = rate


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """The learning rate grows from `initial_lr` / size to `initial_lr` in the first `warmup_epochs` epochs.

    initial_lr: the rate for all ranks, usually one rank's times `size()`. verbose: say when it is reached.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = False,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            epoch += 1 / (self.steps_per_epoch or 1)  # the full rate with the last batch of the warm-up
            return 1 / dist.size() * (epoch * (dist.size() - 1) / warmup_epochs + 1)

        super().__init__(initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch)
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Log the rate."""
        super().on_epoch_end(epoch, logs)
        if self.end_epoch is not None and epoch == self.end_epoch - 1 and self.verbose:
            rate = float(np.asarray(self.model.optimizer.learning_rate))
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:.3g}.")


class BestModelCheckpoint(tf.keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """Keras's ModelCheckpoint of the best model, written by rank 0 alone.

    Give it `monitor` a metric that is the same on all ranks (`MetricAverageCallback` first). filepath: as Keras's.
    """

    def __init__(self, filepath: Any, monitor: str = "val_loss", **keywords: Any) -> None:
        if keywords.pop("save_best_only", True) is not True:
            raise InvalidCollective("BestModelCheckpoint saves the best alone; use keras.callbacks.ModelCheckpoint")
        super().__init__(filepath, monitor=monitor, save_best_only=True, **keywords)

    def _save_model(self, *arguments: Any, **keywords: Any) -> None:
        if dist.rank() == 0:
            super()._save_model(*arguments, **keywords)


class CheckInSyncCallback(Callback):  # type: ignore[misc]
    """Raises `OutOfSync` unless all ranks have the same weights, at the end of every `every`-th epoch and of all."""

    def __init__(self, every: int = 1) -> None:
        super().__init__()
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise InvalidCollective(f"every is {every!r}; expected epochs, 1 or more")
        self.every = every

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Compare."""
        if (epoch + 1) % self.every == 0:
            dist.check_in_sync(self.model)

    def on_train_end(self, logs: Any = None) -> None:
        """Compare."""
        dist.check_in_sync(self.model)


def gathered_texts(text: str, tag: str) -> list[str]:
    """Every rank's `text`, by rank."""
    world, mine = dist.communicator().world, np.frombuffer(text.encode(), np.uint8)
    sizes = operations.allgather(np.array([mine.size]), world, tag=f"{tag} n").wait()
    assert sizes is not None
    counts = sizes.ravel().tolist()
    joined = operations.allgather(mine, world, counts=counts, tag=tag).wait()
    assert joined is not None
    ends = np.cumsum(counts).tolist()
    return [joined[end - n : end].tobytes().decode() for end, n in zip_strict(ends, counts)]


def _agree_on_steps(mine: int | None) -> None:
    """Raise CollectiveMismatch on every rank if ranks know that they'll take different numbers of steps."""
    number = -1 if mine is None else int(mine)
    found = operations.allgather(np.array([number]), dist.communicator().world, tag="hdp.keras steps").wait()
    assert found is not None
    known = {steps: rank for rank, steps in enumerate(found.ravel().tolist()) if steps >= 0}
    if len(known) > 1:
        each = ", ".join(f"{steps} on rank {rank}" for steps, rank in sorted(known.items()))
        raise CollectiveMismatch(
            f"ranks have different numbers of steps in an epoch: {each}; give every rank as many batches, or say "
            "fit(steps_per_epoch=...)"
        )


def _build_optimizer(model: Any) -> None:
    """So that its slots exist on every rank: one rank's may have been loaded from a file."""
    optimizer: Any = getattr(model, "optimizer", None)
    if hasattr(optimizer, "_create_all_weights"):  # Keras 2's legacy ones
        optimizer._create_all_weights(model.trainable_variables)
    elif hasattr(optimizer, "build") and not getattr(optimizer, "built", False):
        optimizer.build(model.trainable_variables)


def _optimizer_variables(model: Any) -> list[Any]:
    found = getattr(getattr(model, "optimizer", None), "variables", [])
    return list(found() if callable(found) else found)
