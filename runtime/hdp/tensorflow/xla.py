"""What Keras models are told before they train on several ranks.

XLA: a compiled step can't hold an operation of ours, so models are compiled without it, in one line. (A tf.function
that says jit_compile itself fails with TensorFlow's own error, which names the operation.) And a model whose optimizer
isn't distributed, as one has that was loaded from a file, trains on each rank alone: one line says so.
"""

from __future__ import annotations

import functools
import logging
import sys
import weakref
from typing import Any

import tensorflow as tf

logger = logging.getLogger(__name__)

#: Model -> class of the optimizer for which its training function was made.
_made_for: weakref.WeakKeyDictionary[Any, type] = weakref.WeakKeyDictionary()


def guard() -> None:
    """Watch over every Keras model that trains from now on."""
    _guard(tf.keras.Model)
    if "tf_keras" in sys.modules:
        _guard(sys.modules["tf_keras"].Model)


def _guard(model_class: Any) -> None:
    original = model_class.make_train_function
    if getattr(original, "_hdp_guard", False):
        return
    plain_step = model_class.train_step

    @functools.wraps(original)
    def make_train_function(self: Any, *arguments: Any, **keywords: Any) -> Any:
        from hdp.tensorflow import process

        if process.is_initialized() and process.size() > 1:
            _without_xla(self)
            _with_this_optimizer(self)
            if type(self).train_step is plain_step:
                _ask_for_reduction(self)
        return original(self, *arguments, **keywords)

    make_train_function._hdp_guard = True  # type: ignore[attr-defined]
    model_class.make_train_function = make_train_function


def _without_xla(model: Any) -> None:
    if getattr(model, "jit_compile", None) or getattr(model, "_jit_compile", None):
        logger.warning(
            "model %r is trained with jit_compile=False: XLA has no way to run the gradients' reduction", model.name
        )
        model.jit_compile = False
        model.train_function = None  # made before there were other ranks


def _with_this_optimizer(model: Any) -> None:
    """A step that was traced before the optimizer became a distributed one would go on without reducing."""
    made_for = type(getattr(model, "optimizer", None))
    if _made_for.get(model) is not made_for:
        model.train_function = None
        _made_for[model] = made_for


def _ask_for_reduction(model: Any) -> None:
    from hdp.tensorflow.optimizers import is_distributed

    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not is_distributed(optimizer) and model.trainable_variables:
        logger.warning(
            "model %r trains on this rank alone: its %s isn't distributed; give compile() "
            "hdp.tensorflow.DistributedOptimizer(optimizer), or load the model by hdp.keras.load_model",
            model.name,
            type(optimizer).__name__,
        )
