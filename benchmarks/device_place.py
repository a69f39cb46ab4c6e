"""Where a rank's tensors are: a GPU, or memory in its place, where a benchmark is tried without one.

``fake``: hdp takes tensors in memory for those of a GPU, behind the fake driver that $HDP_CUDA_DRIVER names (the one of
the tests); for others they are what they are.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor


@dataclass(frozen=True)
class Place:
    """One device. tensor: moves a tensor there; settle: returns once everything that was begun there is done."""

    device: torch.device
    tensor: Callable[[Tensor], Tensor]
    settle: Callable[[], object]


def choose(name: str) -> Place:
    """The device "cuda" (this rank's GPU, which it may share with others), "fake" or "cpu"."""
    if name == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        torch.cuda.set_device(device)
        return Place(device, lambda tensor: tensor.to(device), torch.cuda.synchronize)
    if name == "fake":
        sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "torch"))
        import fake_tensors

        fake_tensors.install()
    return Place(torch.device("cpu"), lambda tensor: tensor, lambda: None)
