"""The networks that the training benchmarks train, for images of 32 x 32, in plain PyTorch.

`build` makes one by name. Parameters with 10 classes: ``resnet50`` 23,520,842, ``efficientnet_b0`` 4,020,358 (without
the classifier of 1,000 classes that makes it 5.3 million). ``resnet_tiny`` and ``efficientnet_tiny`` are the same code
with a few thousand parameters, for tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

CLASSES = 10
IMAGE = (3, 32, 32)


def convolution(inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A convolution that keeps the size (but for `stride`), and batch normalisation in place of a bias."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


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


@dataclass(frozen=True)
class Stage:
    """Blocks of one kind that follow each other; the first has the stride."""

    expansion: int
    outputs: int
    blocks: int
    stride: int
    kernel: int


_B0 = (
    Stage(1, 16, 1, 1, 3),
    Stage(6, 24, 2, 2, 3),
    Stage(6, 40, 2, 2, 5),
    Stage(6, 80, 3, 2, 3),
    Stage(6, 112, 3, 1, 5),
    Stage(6, 192, 4, 2, 5),
    Stage(6, 320, 1, 1, 3),
)
_TINY = (Stage(1, 4, 1, 1, 3), Stage(2, 8, 2, 2, 3), Stage(2, 8, 1, 2, 5))


class SqueezeExcite(nn.Module):
    """Scale each channel by what the mean of all says."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.scale = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, squeezed, 1),
            nn.SiLU(),
            nn.Conv2d(squeezed, channels, 1),
            nn.Sigmoid(),
        )

    def forward(self, images: Tensor) -> Tensor:
        """(n, channels, h, w), scaled."""
        scaled: Tensor = images * self.scale(images)
        return scaled


class MobileBlock(nn.Module):
    """Expand, convolve each channel by itself, squeeze and excite, project; added to its input where they fit."""

    def __init__(self, inputs: int, stage: Stage, stride: int, drop: float) -> None:
        super().__init__()
        hidden = inputs * stage.expansion
        expand = [convolution(inputs, hidden), nn.SiLU()] if stage.expansion > 1 else []
        self.path = nn.Sequential(
            *expand,
            convolution(hidden, hidden, stage.kernel, stride, groups=hidden),
            nn.SiLU(),
            SqueezeExcite(hidden, max(1, inputs // 4)),
            convolution(hidden, stage.outputs),
        )
        self.residual = stride == 1 and inputs == stage.outputs
        self.drop = drop

    def forward(self, images: Tensor) -> Tensor:
        """(n, inputs, h, w) -> (n, outputs, h / stride, w / stride)."""
        out: Tensor = self.path(images)
        if not self.residual:
            return out
        if self.training and self.drop:
            # Stochastic depth: some images skip the block, and the others count for them.
            keep = torch.rand(len(out), 1, 1, 1) >= self.drop
            out = out * keep / (1 - self.drop)
        return images + out


class EfficientNet(nn.Sequential):
    """EfficientNet's base network; its stem keeps the size, since 32 x 32 leaves nothing to give away."""

    def __init__(
        self, stages: Sequence[Stage], stem: int, head: int, drop_path: float = 0.2, drop: float = 0.2
    ) -> None:
        layers: list[nn.Module] = [convolution(IMAGE[0], stem, 3), nn.SiLU()]
        channels, number, count = stem, 0, sum(stage.blocks for stage in stages)
        for stage in stages:
            for block in range(stage.blocks):
                layers.append(MobileBlock(channels, stage, 1 if block else stage.stride, drop_path * number / count))
                channels, number = stage.outputs, number + 1
        layers += [convolution(channels, head), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        super().__init__(*layers, nn.Dropout(drop), nn.Linear(head, CLASSES))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                fan_out = module.out_channels * math.prod(module.kernel_size) // module.groups
                nn.init.normal_(module.weight, 0, math.sqrt(2 / fan_out))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "resnet50": lambda: ResNet((3, 4, 6, 3), 64),
    "resnet_tiny": lambda: ResNet((1, 1, 1), 4),
    "efficientnet_b0": lambda: EfficientNet(_B0, 32, 1280),
    "efficientnet_tiny": lambda: EfficientNet(_TINY, 4, 16),
}


def build(name: str, seed: int) -> nn.Module:
    """The model `name` of `MODELS`, its parameters given by `seed` alone."""
    torch.manual_seed(seed)
    return MODELS[name]()


def batch(size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Random images and classes, given by `seed`: (size, 3, 32, 32) and (size,)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, *IMAGE, generator=generator), torch.randint(CLASSES, (size,), generator=generator)
