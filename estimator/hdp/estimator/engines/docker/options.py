"""What only the Docker engine knows about a job: `engine_options` as a strict model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError

from hdp.estimator.faults import Strict, of_validation

_SIZE = re.compile(r"([1-9]\d{0,9})([kmg]?)")
_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
#: Docker's own least.
_MIN_BYTES = 6 * 1024**2


def size_bytes(text: str) -> int:
    """Bytes of ``512m``, ``4g`` and the like, as Docker writes sizes. Raises ValueError."""
    found = _SIZE.fullmatch(text.lower())
    if found is None or int(found[1]) * _UNITS[found[2]] < _MIN_BYTES:
        raise ValueError(f'{text!r} is no amount of memory; expected e.g. "512m" or "4g", at least 6m')
    return int(found[1]) * _UNITS[found[2]]


def _size(text: str) -> str:
    size_bytes(text)
    return text


def _user(text: str) -> str:
    if not re.fullmatch(r"\d{1,10}(:\d{1,10})?", text):
        raise ValueError(f'{text!r} is no user; expected numbers: "1000" or "1000:1000"')
    return text


class DockerOptions(Strict):
    """Options of the Docker engine."""

    stop_timeout_seconds: int = Field(default=120, ge=0, le=86400)
    """From SIGTERM to SIGKILL: what a rank has to write a checkpoint. SageMaker gives 120."""
    start_timeout_seconds: int = Field(default=600, ge=1, le=86400)
    """How long hosts and ranks wait for each other at start."""
    memory: Annotated[str, AfterValidator(_size)] | None = None
    """What each host may use, e.g. ``"4g"``, without swap; None: no limit."""
    gpus: int | None = Field(default=None, ge=0, le=64)
    """GPUs of each host; None: this machine's, divided among the hosts, where the daemon has NVIDIA's runtime."""
    fuse: bool = False
    """Let hosts mount FastFile channels: /dev/fuse, the capability SYS_ADMIN, and root in the container."""
    user: Annotated[str, AfterValidator(_user)] | None = None
    """Whom the containers run as, ``"uid"`` or ``"uid:gid"``; None: as the user who calls."""
    pull: Literal["missing", "never"] = "missing"
    """Whether an image that the daemon hasn't got is pulled."""


def parse(options: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Options with defaults filled in, and the faults found, one line each (empty: fine)."""
    try:
        return DockerOptions.model_validate(dict(options)).model_dump(), ()
    except ValidationError as exc:
        return dict(options), tuple(of_validation(exc, DockerOptions, "engine_options"))
