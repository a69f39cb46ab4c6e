"""`load_model`: a saved model, to be trained further on all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

import hdp.tensorflow as dist


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: str = dist.Compression.none,
    **keywords: Any,
) -> Any:
    """Keras's `load_model`, but the model's optimizer is distributed; its state is the file's.

    custom_optimizers: classes that Keras has to know for it. keywords: Keras's (`safe_mode`, ...).
    """
    known = {made.__name__: made for made in custom_optimizers or ()} | dict(custom_objects or {})
    model = tf.keras.models.load_model(filepath, custom_objects=known or None, **keywords)
    if getattr(model, "optimizer", None) is not None:
        dist.DistributedOptimizer(model.optimizer, compression=compression)
    return model
