"""The networks that the training benchmarks train, for images of 32 x 32, in plain PyTorch.

`build` makes one by name. Parameters with 10 classes: ``resnet50`` 23,520,842, ``efficientnet_b0`` 4,020,358 (without
the classifier of 1,000 classes that makes it 5.3 million). ``resnet_tiny`` and ``efficientnet_tiny`` are the same code
with a few thousand parameters, for tests. The published ones, for 1,000 classes and images of that size, are
``efficientnet_b0_224`` and ``efficientnet_b4_380``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples/efficientnet"))
from efficientnet_model import convolution, efficientnet  # the example's own network

CLASSES = 10
CHANNELS = 3


class Bottleneck(nn.Module):
    """1 x 1 to `width`, 3 x 3, 1 x 1 to four times `width`, added to its input."""

    EXPANSION = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.EXPANSION
        self.path = nn.Sequential(
            convolution(inputs, width),
            nn.ReLU(inplace=True),
            convolution(width, width, 3, stride),
            nn.ReLU(inplace=True),
            convolution(width, outputs),
        )
        same = stride == 1 and inputs == outputs
        self.shortcut: nn.Module = nn.Identity() if same else convolution(inputs, outputs, 1, stride)

    def forward(self, images: Tensor) -> Tensor:
        """(n, inputs, h, w) -> (n, outputs, h / stride, w / stride)."""
        return torch.relu(self.path(images) + self.shortcut(images))


class ResNet(nn.Sequential):
    """A residual network whose stem keeps the size, as is usual for images of 32 x 32."""

    def __init__(self, depths: Sequence[int], width: int) -> None:
        layers: list[nn.Module] = [convolution(CHANNELS, width, 3), nn.ReLU(inplace=True)]
        channels = width
        for stage, depth in enumerate(depths):
            for block in range(depth):
                stride = 2 if stage and not block else 1
                layers.append(Bottleneck(channels, width << stage, stride))
                channels = (width << stage) * Bottleneck.EXPANSION
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES))


@dataclass(frozen=True)
class Network:
    """A network, and the images that it takes: (n, 3, pixels, pixels), of so many classes."""

    make: Callable[[], nn.Module]
    pixels: int = 32
    classes: int = CLASSES


MODELS = {
    "resnet50": Network(lambda: ResNet((3, 4, 6, 3), 64)),
    "resnet_tiny": Network(lambda: ResNet((1, 1, 1), 4)),
    "efficientnet_b0": Network(lambda: efficientnet("b0", CLASSES, stem_stride=1)),
    "efficientnet_tiny": Network(lambda: efficientnet("tiny", CLASSES, stem_stride=1)),
    "efficientnet_b0_224": Network(lambda: efficientnet("b0"), 224, 1000),
    "efficientnet_b4_380": Network(lambda: efficientnet("b4"), 380, 1000),
}


def build(name: str, seed: int) -> nn.Module:
    """The model `name` of `MODELS`, its parameters given by `seed` alone."""
    torch.manual_seed(seed)
    return MODELS[name].make()


def batch(size: int, seed: int, network: Network = MODELS["resnet50"]) -> tuple[Tensor, Tensor]:
    """Random images for the network and their classes, given by `seed`: (size, 3, pixels, pixels) and (size,)."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(size, CHANNELS, network.pixels, network.pixels, generator=generator)
    return images, torch.randint(network.classes, (size,), generator=generator)
