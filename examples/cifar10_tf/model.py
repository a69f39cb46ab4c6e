"""The model: a residual network for 32x32 colour images in ten classes."""

from pathlib import Path

import keras
import numpy as np
from keras import layers
from prepare import files_of, read

CLASSES = 10
SHAPE = (32, 32, 3)


def make_model(name: str = "small") -> keras.Model:
    """Input (n, 32, 32, 3) in 0..1, output (n, 10) logits. name: "small", or "resnet50" for Keras's own."""
    if name == "resnet50":
        return keras.applications.ResNet50(
            weights=None, input_shape=SHAPE, classes=CLASSES, classifier_activation=None, name="resnet50"
        )
    pixels = keras.Input(SHAPE)
    x = layers.Conv2D(16, 3, padding="same", use_bias=False)(pixels)
    for filters in (16, 32, 64):
        x = _block(x, filters)
    x = _normal(x)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(pixels, layers.Dense(CLASSES)(x), name="small")


def _block(x, filters: int):
    """Two convolutions and the way around them; half the height and width."""
    ready = _normal(x)
    around = layers.Conv2D(filters, 1, strides=2, use_bias=False)(ready)
    x = layers.Conv2D(filters, 3, strides=2, padding="same", use_bias=False)(ready)
    x = _normal(x)
    x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
    return layers.add([around, x])


def _normal(x):
    """With statistics that follow fast, since digits are few steps."""
    return layers.Activation("relu")(layers.BatchNormalization(momentum=0.9)(x))


def accuracy(model: keras.Model, channel: Path) -> float:
    """Share of the images in the folder `channel` that `model` puts into the right class."""
    right = [np.argmax(model(images), axis=1) == labels for images, labels in read(files_of(channel)).batch(256)]
    return float(np.concatenate(right).mean())
