"""The networks that the training benchmarks train, for images of 32 x 32, in plain PyTorch.

`build` makes one by name. Parameters with 10 classes: ``resnet50`` 23,520,842, ``efficientnet_b0`` 4,020,358 (without
the classifier of 1,000 classes that makes it 5.3 million). ``resnet_tiny`` and ``efficientnet_tiny`` are the same code
with a few thousand parameters, for tests.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples/efficientnet"))
from efficientnet_model import convolution, efficientnet  # the example's own network

CLASSES = 10
IMAGE = (3, 32, 32)


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
        layers: list[nn.Module] = [convolution(IMAGE[0], width, 3), nn.ReLU(inplace=True)]
        channels = width
        for stage, depth in enumerate(depths):
            for block in range(depth):
                stride = 2 if stage and not block else 1
                layers.append(Bottleneck(channels, width << stage, stride))
                channels = (width << stage) * Bottleneck.EXPANSION
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "resnet50": lambda: ResNet((3, 4, 6, 3), 64),
    "resnet_tiny": lambda: ResNet((1, 1, 1), 4),
    "efficientnet_b0": lambda: efficientnet("b0", CLASSES, stem_stride=1),
    "efficientnet_tiny": lambda: efficientnet("tiny", CLASSES, stem_stride=1),
}


def build(name: str, seed: int) -> nn.Module:
    """The model `name` of `MODELS`, its parameters given by `seed` alone."""
    torch.manual_seed(seed)
    return MODELS[name]()


def batch(size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Random images and classes, given by `seed`: (size, 3, 32, 32) and (size,)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, *IMAGE, generator=generator), torch.randint(CLASSES, (size,), generator=generator)
