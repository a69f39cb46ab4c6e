"""What only the local engine knows about a job: `engine_options` as a strict model."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, field_validator

from hdp.contract import links
from hdp.contract.units import format_rate
from hdp.estimator.faults import Strict, of_validation, seen

_NETWORK = 'a rate such as "1gbit", or {"rate": "1gbit", "hosts": {"algo-2": "100mbit"}}'


def _rate(value: str) -> str:
    """`value`, which must be bits a second as tc writes them."""
    bits = links.parse_rate(value)
    if links.counts_bytes(value):
        raise ValueError(f"{value!r} is in bytes a second, which makes {format_rate(bits)}; write bits, e.g. 1gbit")
    return value


Rate = Annotated[str, AfterValidator(_rate)]
"""Of a link, in each direction, as tc writes it: ``1gbit``, ``250mbit``."""


class NetworkOptions(Strict):
    """A network of the hosts' own, in which each has a link. ``{}``: links of no set rate."""

    rate: Rate | None = None
    """Of every host's link; None: not shaped."""
    hosts: dict[str, Rate | None] = Field(default_factory=dict)
    """Rates of some hosts' links instead, by the host's name."""


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
    instance_types: Literal["local", "local_gpu"] | None = None
    """Take the request as SageMaker's: what hosts of its instance types run as. None: such types are refused.

    `hdp serve` sets it; see `cloud`.
    """
    run_carried: bool = False
    """With `instance_types`: run the start script and the runtime that a request carries, not what is here."""
    network: NetworkOptions | None = None
    """A network namespace for each host, with a shaped link: a rate as text, or a dictionary of `NetworkOptions`.

    None: hosts have loopback addresses.
    """

    @field_validator("python")
    @classmethod
    def _executable(cls, value: str) -> str:
        found = shutil.which(os.path.expanduser(value))  # noqa: PTH111 (a command's name isn't a path)
        if found is None:
            raise ValueError(f"no executable {value!r} is on this machine; give the path of a Python")
        return os.path.abspath(found)  # noqa: PTH100 (a venv's python is a symlink that must stay one)

    @field_validator("network", mode="before")
    @classmethod
    def _a_rate_alone(cls, value: object) -> object:
        if isinstance(value, str):
            return NetworkOptions(rate=_rate(value))
        if value is None or isinstance(value, (Mapping, NetworkOptions)):
            return value
        raise ValueError(f"{seen(value)} is no network; expected {_NETWORK}")


def parse(options: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Options with defaults filled in, and the faults found, one line each (empty: fine)."""
    try:
        return LocalOptions.model_validate(dict(options)).model_dump(), ()
    except ValidationError as exc:
        return dict(options), tuple(of_validation(exc, LocalOptions, "engine_options"))
