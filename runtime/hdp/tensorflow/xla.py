"""XLA: a compiled step can't hold an operation of ours. Keras models are told to compile without it, in one line."""

from __future__ import annotations

import functools
import logging
from typing import Any

import tensorflow as tf

logger = logging.getLogger(__name__)


def guard() -> None:
    """Let every Keras model that trains from now on do so without XLA. (A tf.function that says jit_compile itself
    fails with TensorFlow's own error, which names the operation.)"""
    model = tf.keras.Model
    if getattr(model.make_train_function, "_hdp_guard", False):
        return
    original = model.make_train_function

    @functools.wraps(original)
    def make_train_function(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if _compiles(self):
            logger.warning(
                "model %r is trained with jit_compile=False: XLA has no way to run the gradients' reduction", self.name
            )
            self.jit_compile = False
        return original(self, *arguments, **keywords)

    make_train_function._hdp_guard = True  # type: ignore[attr-defined]
    model.make_train_function = make_train_function


def _compiles(model: Any) -> bool:
    return bool(getattr(model, "jit_compile", None) or getattr(model, "_jit_compile", None))
