"""Where a rank's tensors are: a GPU, or the processor in its place, where a benchmark is tried without one."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

DEVICES = ("cuda", "cpu")


@dataclass(frozen=True)
class Place:
    """One device. tensor: moves a tensor there; settle: returns once everything that was begun there is done."""

    device: torch.device
    tensor: Callable[[Tensor], Tensor]
    settle: Callable[[], object]


def choose(name: str) -> Place:
    """The device `name` of `DEVICES`; on "cuda" this rank's GPU, which it may share with others."""
    if name == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        torch.cuda.set_device(device)
        return Place(device, lambda tensor: tensor.to(device), torch.cuda.synchronize)
    return Place(torch.device("cpu"), lambda tensor: tensor, lambda: None)
