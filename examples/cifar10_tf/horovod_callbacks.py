"""Horovod's Keras callbacks for Keras 3, where Horovod 0.28.1's own fail: the same names and the same meaning."""

# ruff: noqa: ARG002 - the callbacks' arguments are Keras's

import horovod.tensorflow as hvd
import keras
import tensorflow as tf


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """All ranks begin with the weights, and the optimizer's state, of rank `root_rank`."""

    def __init__(self, root_rank: int) -> None:
        super().__init__()
        self.root_rank = root_rank

    def on_train_begin(self, logs=None) -> None:
        self.model.optimizer.build(self.model.trainable_variables)
        variables = self.model.variables + self.model.optimizer.variables
        hvd.broadcast_variables([variable.value for variable in variables], root_rank=self.root_rank)


class MetricAverageCallback(keras.callbacks.Callback):
    """At the end of an epoch, metrics are the averages of all ranks'."""

    def on_epoch_end(self, epoch: int, logs=None) -> None:
        for name in sorted(logs or {}):
            logs[name] = float(hvd.allreduce(tf.constant(logs[name], tf.float64), name=f"metric {name}"))


class LearningRateWarmupCallback(keras.callbacks.Callback):
    """The learning rate grows from `initial_lr` / size to `initial_lr` in the first `warmup_epochs` epochs."""

    def __init__(self, initial_lr: float, warmup_epochs: int, steps_per_epoch: int) -> None:
        super().__init__()
        self.initial_lr, self.steps = initial_lr, warmup_epochs * steps_per_epoch
        self.done = 0

    def on_train_batch_begin(self, batch: int, logs=None) -> None:
        self.done += 1
        if self.done <= self.steps:
            first = 1 / hvd.size()
            share = first + (1 - first) * self.done / self.steps
            self.model.optimizer.learning_rate.assign(self.initial_lr * share)
