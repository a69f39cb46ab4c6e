"""EfficientNet-B0 to B4 in plain PyTorch (Tan and Le, 2019): base network B0, made wider and deeper by the table.

Parameters with 1,000 classes: b0 5,288,548; b4 19,341,616. ``tiny`` is the same code with a few
thousand, to try things.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn


def convolution(inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A convolution that keeps the size (but for `stride`), and batch normalisation in place of a bias."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


@dataclass(frozen=True)
class Stage:
    """Blocks of one kind that follow each other; the first has the stride."""

    expansion: int
    outputs: int
    blocks: int
    stride: int
    kernel: int


@dataclass(frozen=True)
class Size:
    """How a network differs from the base."""

    width: float
    depth: float
    pixels: int
    """Height and width of the images that it was made for."""
    drop: float


#: From the paper's table.
SIZES = {
    "b0": Size(1.0, 1.0, 224, 0.2),
    "b1": Size(1.0, 1.1, 240, 0.2),
    "b2": Size(1.1, 1.2, 260, 0.3),
    "b3": Size(1.2, 1.4, 300, 0.3),
    "b4": Size(1.4, 1.8, 380, 0.4),
}
_BASE = (
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
            keep = torch.rand(len(out), 1, 1, 1, device=out.device) >= self.drop
            out = out * keep / (1 - self.drop)
        return images + out


class EfficientNet(nn.Sequential):
    """(n, 3, h, w) -> (n, classes). stem_stride 1 keeps the size of small images, which leave nothing to give away."""

    def __init__(
        self,
        stages: Sequence[Stage],
        stem: int,
        head: int,
        classes: int = 1000,
        stem_stride: int = 2,
        drop: float = 0.2,
        drop_path: float = 0.2,
    ) -> None:
        layers: list[nn.Module] = [convolution(3, stem, 3, stem_stride), nn.SiLU()]
        channels, number, count = stem, 0, sum(stage.blocks for stage in stages)
        for stage in stages:
            for block in range(stage.blocks):
                layers.append(MobileBlock(channels, stage, 1 if block else stage.stride, drop_path * number / count))
                channels, number = stage.outputs, number + 1
        layers += [convolution(channels, head), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        super().__init__(*layers, nn.Dropout(drop), nn.Linear(head, classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                fan_out = module.out_channels * math.prod(module.kernel_size) // module.groups
                nn.init.normal_(module.weight, 0, math.sqrt(2 / fan_out))


def efficientnet(name: str, classes: int = 1000, stem_stride: int = 2) -> EfficientNet:
    """The network `name`: "b0" to "b4", or "tiny". Raises KeyError with the names that there are."""
    if name == "tiny":
        return EfficientNet(_TINY, 4, 16, classes, stem_stride)
    if name not in SIZES:
        raise KeyError(f"no EfficientNet is called {name!r}; there are {', '.join(SIZES)} and tiny")
    size = SIZES[name]
    stages = [
        replace(s, outputs=_rounded(s.outputs * size.width), blocks=math.ceil(s.blocks * size.depth)) for s in _BASE
    ]
    return EfficientNet(stages, _rounded(32 * size.width), _rounded(1280 * size.width), classes, stem_stride, size.drop)


def _rounded(channels: float) -> int:
    """The nearest multiple of 8 that isn't more than a tenth below."""
    near = max(8, int(channels + 4) // 8 * 8)
    return near if near >= 0.9 * channels else near + 8
