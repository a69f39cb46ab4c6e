"""SMDDP's ``DistributedDataParallel``: PyTorch's own, over backend "smddp"."""

from __future__ import annotations

from typing import Any

import torch

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 - registers the backend

__all__ = ["DistributedDataParallel"]


class DistributedDataParallel(torch.nn.parallel.DistributedDataParallel):
    """PyTorch's, with SMDDP's order of arguments. Others are passed on."""

    def __init__(
        self,
        module: torch.nn.Module,
        device_ids: Any = None,
        output_device: Any = None,
        broadcast_buffers: bool = True,
        process_group: Any = None,
        bucket_cap_mb: float | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__(
            module,
            device_ids=device_ids,
            output_device=output_device,
            broadcast_buffers=broadcast_buffers,
            process_group=process_group,
            bucket_cap_mb=bucket_cap_mb,
            **arguments,
        )
