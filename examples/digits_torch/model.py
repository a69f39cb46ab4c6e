"""The model: a small convolutional network for 8x8 images in ten classes."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn


def make_model(hidden: Sequence[int] = (64,)) -> nn.Module:
    """Input (n, 1, 8, 8) float32, output (n, 10) logits. hidden: units of the layers before the last one."""
    dense = [layer for sizes in pairwise((32 * 4 * 4, *hidden)) for layer in (nn.Linear(*sizes), nn.ReLU())]
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        *dense,
        nn.Linear(hidden[-1], 10),
    )


def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Share of `images` (n, 1, 8, 8) that `model` puts into the right class."""
    model.eval()
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).sum().item()
    return right / len(labels)
