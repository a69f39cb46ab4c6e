"""What only the local engine knows about a job: `engine_options` as a strict model."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator

from hdp.estimator.faults import Strict, of_validation


class LocalOptions(Strict):
    """Options of the local engine."""

    stop_timeout_seconds: int = Field(default=120, ge=0, le=86400)
    """From SIGTERM to SIGKILL: what a rank has to write a checkpoint. SageMaker gives 120."""
    start_timeout_seconds: int = Field(default=600, ge=1, le=86400)
    """How long hosts and ranks wait for each other at start."""
    python: str = Field(default_factory=lambda: sys.executable)
    """The interpreter of agents and ranks. It needs NumPy and what the script imports; hdp is lent to it."""
    namespaces: Literal["auto", "off", "required"] = "auto"
    """Whether hosts get mount and UTS namespaces of their own: ``/opt/ml``, ``/etc/hosts``, the host name."""
    network: None = None
    """Reserved: hosts with shaped links between them."""

    @field_validator("python")
    @classmethod
    def _executable(cls, value: str) -> str:
        found = shutil.which(os.path.expanduser(value))  # noqa: PTH111 (a command's name isn't a path)
        if found is None:
            raise ValueError(f"no executable {value!r} is on this machine; give the path of a Python")
        return os.path.abspath(found)  # noqa: PTH100 (a venv's python is a symlink that must stay one)

    @field_validator("network", mode="before")
    @classmethod
    def _no_network(cls, value: object) -> None:
        if value is not None:
            raise ValueError(
                "networks with shaped links aren't in this version; leave `network` out: hosts use loopback"
            )


def parse(options: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Options with defaults filled in, and the faults found, one line each (empty: fine)."""
    try:
        return LocalOptions.model_validate(dict(options)).model_dump(), ()
    except ValidationError as exc:
        return dict(options), tuple(of_validation(exc, LocalOptions, "engine_options"))
