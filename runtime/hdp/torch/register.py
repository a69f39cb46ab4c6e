"""Tells torch that the backend exists. Nothing is loaded until a process group is made."""

from __future__ import annotations

import logging
from typing import Any

logger = logging.getLogger(__name__)


def register(name: str = "hdp") -> None:
    """Make ``init_process_group(name)`` use hdp. Does nothing where it already does, or torch has no distributed."""
    import torch.distributed as dist

    if not dist.is_available() or hasattr(dist.Backend, name.upper()):
        return
    dist.Backend.register_backend(name, _create, extended_api=True, devices=["cpu", "cuda"])


def autoload() -> None:
    """Called by ``import torch`` (entry point ``torch.backends``), which an error here would break."""
    try:
        register("hdp")
    except Exception:
        logger.warning('backend "hdp" could not be registered', exc_info=True)


def _create(options: Any, pg_options: Any) -> Any:
    from hdp.torch.process_group import create

    return create(options, pg_options)
