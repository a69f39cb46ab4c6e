"""The agent's own settings, read once from the environment variables of `hdp.contract.env`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from hdp.contract import env
from hdp.contract.errors import ContractError
from hdp.contract.files import Layout


@dataclass(frozen=True)
class Settings:
    """How the engine told this agent to run."""

    layout: Layout
    secret_file: Path | None
    addresses: Mapping[str, str]
    control_port: int
    server_port: int
    master_port: int
    horovod_port: int
    stop_timeout: timedelta
    start_timeout: timedelta
    tensorflow_ports: tuple[int, ...]
    """By host; one alone is every host's."""
    run_dir: Path | None = None
    """Where the engine wants this host's folder of sockets."""

    def address(self, host: str) -> str:
        """Where `host` is reached: the address that the engine gave, else its name."""
        return self.addresses.get(host, host)

    def tensorflow_port(self, node_rank: int) -> int:
        """Where TensorFlow's server listens on the host with this index."""
        return self.tensorflow_ports[node_rank if len(self.tensorflow_ports) > 1 else 0]


def load_settings(environ: Mapping[str, str]) -> Settings:
    """Read `environ`. Raises ContractError that names the variable, its value and what was expected."""
    secret, run_dir = environ.get(env.SECRET_FILE.name, ""), environ.get(env.RUN_DIR.name, "")
    return Settings(
        layout=Layout(Path(_value(environ, env.BASE_DIR)).absolute()),
        secret_file=Path(secret) if secret else None,
        addresses=_addresses(environ),
        control_port=_port(environ, env.CONTROL_PORT),
        server_port=_port(environ, env.SERVER_PORT),
        master_port=_port(environ, env.MASTER_PORT),
        horovod_port=_port(environ, env.HOROVOD_PORT),
        tensorflow_ports=_ports(environ, env.TENSORFLOW_PORTS),
        stop_timeout=_seconds(environ, env.STOP_TIMEOUT),
        start_timeout=_seconds(environ, env.START_TIMEOUT),
        run_dir=Path(run_dir) if run_dir else None,
    )


def _value(environ: Mapping[str, str], variable: env.Variable) -> str:
    return environ.get(variable.name) or variable.default


def _port(environ: Mapping[str, str], variable: env.Variable) -> int:
    return _port_in(_value(environ, variable), variable)


def _ports(environ: Mapping[str, str], variable: env.Variable) -> tuple[int, ...]:
    return tuple(_port_in(text, variable) for text in _value(environ, variable).split(","))


def _port_in(text: str, variable: env.Variable) -> int:
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise ContractError(f"{variable.name} is {text!r}, expected a port from 1 to 65535")
    return int(text)


def _seconds(environ: Mapping[str, str], variable: env.Variable) -> timedelta:
    text = _value(environ, variable)
    try:
        value = timedelta(seconds=float(text))
    except (ValueError, OverflowError) as exc:
        raise ContractError(f"{variable.name} is {text!r}, expected a number of seconds") from exc
    if value < timedelta(0):
        raise ContractError(f"{variable.name} is {text!r}, expected zero seconds or more")
    return value


def _addresses(environ: Mapping[str, str]) -> dict[str, str]:
    text = _value(environ, env.ADDRESSES)
    try:
        value = json.loads(text)
    except ValueError as exc:
        raise ContractError(f"{env.ADDRESSES.name} is {text[:80]!r}, expected a JSON object: {exc}") from exc
    if not isinstance(value, dict) or not all(isinstance(v, str) and v for v in value.values()):
        raise ContractError(f"{env.ADDRESSES.name} is {text[:80]!r}, expected an object of host name to IP address")
    return value
