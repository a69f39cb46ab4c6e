"""Keras 3's LossScaleOptimizer round a distributed optimizer: every rank skips the step in which one has an infinity.

Keras looks for infinities in a rank's own gradients, and applies them in a branch. Ranks would take different
branches, and gradients of different steps would meet. `compile` puts such an optimizer round any other, so the class
itself is changed, for those round a distributed one alone.
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from hdp.tensorflow.functions import Min, allreduce


def guard() -> None:
    """Change the class, once."""
    import keras

    scaler = keras.optimizers.LossScaleOptimizer
    if getattr(scaler.apply, "_hdp_guard", False):
        return
    apply, check_finite = scaler.apply, scaler.check_finite

    @functools.wraps(apply)
    def reduced(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        """Reduce before the finite ones are looked for: a rank's infinity is then every rank's."""
        inner = self.inner_optimizer
        if not _is_distributed(inner) or inner.gradient_accumulation_steps:
            return apply(self, grads, trainable_variables)
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)
        grads = inner._hdp_reduce(list(grads), variables)
        inner.__dict__["_hdp_reduced"] = True
        try:
            return apply(self, grads, None if trainable_variables is None else variables)
        finally:
            del inner.__dict__["_hdp_reduced"]

    @functools.wraps(check_finite)
    def agreed(self: Any, grads: Any) -> Any:
        """Where gradients are accumulated first, ranks agree on this alone."""
        mine = check_finite(self, grads)
        if not _is_distributed(self.inner_optimizer) or were_reduced(self.inner_optimizer):
            return mine
        return tf.cast(allreduce(tf.cast(mine, tf.int32), op=Min, name="finite"), tf.bool)

    reduced._hdp_guard = True  # type: ignore[attr-defined]
    scaler.apply, scaler.check_finite = reduced, agreed


def were_reduced(optimizer: Any) -> bool:
    """Whether the gradients that `optimizer` is applying are those of all ranks already."""
    return "_hdp_reduced" in optimizer.__dict__


def _is_distributed(optimizer: Any) -> bool:
    return hasattr(optimizer, "_hdp_reduce")
