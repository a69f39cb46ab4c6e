"""The networks that keras_step.py trains, for images of 32 x 32, and their data.

Parameters with 10 classes: ``resnet26`` 5,465,170, ``resnet50`` 23,520,842; ``tiny`` is the same code with a few
thousand, for tests.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
import numpy.typing as npt

CLASSES = 10
IMAGE = (32, 32, 3)
_EXPANSION = 4


def _convolution(images: Any, outputs: int, kernel: int = 1, stride: int = 1) -> Any:
    """A convolution that keeps the size (but for `stride`), and batch normalisation in place of a bias."""
    layer = keras.layers.Conv2D(outputs, kernel, stride, padding="same", use_bias=False, kernel_initializer="he_normal")
    return keras.layers.BatchNormalization()(layer(images))


def _bottleneck(images: Any, width: int, stride: int) -> Any:
    """1 x 1 to `width`, 3 x 3, 1 x 1 to four times `width`, added to its input."""
    outputs = width * _EXPANSION
    path = keras.layers.ReLU()(_convolution(images, width))
    path = keras.layers.ReLU()(_convolution(path, width, 3, stride))
    path = _convolution(path, outputs)
    same = stride == 1 and images.shape[-1] == outputs
    return keras.layers.ReLU()(path + (images if same else _convolution(images, outputs, 1, stride)))


def resnet(depths: Sequence[int], width: int) -> Any:
    """A residual network whose stem keeps the size, as is usual for images of 32 x 32."""
    inputs = keras.layers.Input(IMAGE)
    images = keras.layers.ReLU()(_convolution(inputs, width, 3))
    for stage, depth in enumerate(depths):
        for block in range(depth):
            images = _bottleneck(images, width << stage, 2 if stage and not block else 1)
    features = keras.layers.GlobalAveragePooling2D()(images)
    return keras.Model(inputs, keras.layers.Dense(CLASSES)(features))


MODELS: dict[str, Callable[[], Any]] = {
    "resnet26": lambda: resnet((2, 2, 2, 2), 40),
    "resnet50": lambda: resnet((3, 4, 6, 3), 64),
    "tiny": lambda: resnet((1, 1, 1), 4),
}


def build(name: str, seed: int) -> Any:
    """The model `name` of `MODELS`, its parameters given by `seed` alone."""
    keras.utils.set_random_seed(seed)
    return MODELS[name]()


def batch(size: int, seed: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Random images and classes, given by `seed`: (size, 32, 32, 3) and (size,)."""
    generator = np.random.default_rng(seed)
    return generator.standard_normal((size, *IMAGE), np.float32), generator.integers(CLASSES, size=size)
