"""The Docker daemon: who answers, and its errors in our words."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hdp.contract.errors import EngineError

if TYPE_CHECKING:
    from docker import APIClient

DEFAULT = "unix:///var/run/docker.sock"
#: A daemon that works answers within milliseconds; starting a container on a busy disk takes longest.
TIMEOUT_SECONDS = 120


def address(environ: Mapping[str, str] = os.environ) -> str:
    """Where the daemon is: DOCKER_HOST, else the usual socket."""
    return environ.get("DOCKER_HOST") or DEFAULT


def address_fault(where: str) -> str | None:
    """Why a daemon at `where` can't run jobs; None: it can, if it answers."""
    if where.startswith("unix://"):
        return None
    return (
        f"DOCKER_HOST is {where!r}, a daemon of another machine, which can't mount this one's folders; expected "
        f"unix:///path/of/docker.sock, or nothing for {DEFAULT}"
    )


def connect(where: str) -> APIClient:
    """A client of the daemon at `where`, which has answered.

    Raises EngineError that says what to do: no SDK, no daemon, no permission.
    """
    try:
        import docker
        from docker.errors import DockerException
    except ImportError as exc:
        raise EngineError("the docker engine needs Docker's SDK for Python: pip install 'hdp-train[docker]'") from exc
    if fault := address_fault(where):
        raise EngineError(fault)
    try:
        _knock(where.removeprefix("unix://"))
        return docker.APIClient(base_url=where, version="auto", timeout=TIMEOUT_SECONDS)
    except (DockerException, OSError) as exc:
        raise EngineError(_unreachable(where, exc)) from exc


def _knock(path: str) -> None:
    """Raises OSError: nobody listens there. The SDK would leave a socket open when it finds out."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as knocker:
        knocker.connect(path)


@contextlib.contextmanager
def connected(where: str) -> Iterator[APIClient]:
    """`connect`, for the block."""
    client = connect(where)
    try:
        yield client
    finally:
        client.close()


@contextlib.contextmanager
def explained(deed: str) -> Iterator[None]:
    """In the block, the SDK's errors become EngineError: "<deed>: <what the daemon said>"."""
    from docker.errors import APIError, DockerException
    from requests.exceptions import RequestException

    try:
        yield
    except APIError as exc:
        raise EngineError(f"{deed}: {_said(exc)}") from exc
    except (DockerException, RequestException, OSError) as exc:
        raise EngineError(f"{deed}: the Docker daemon no longer answers ({exc})") from exc


def facts(client: APIClient) -> Mapping[str, Any]:
    """What the daemon says about itself. Raises EngineError."""
    with explained("the Docker daemon can't be asked about itself"):
        return dict(client.info())


def is_rootless(info: Mapping[str, Any]) -> bool:
    """Whether the daemon runs as a user, who is root in its containers."""
    return any("name=rootless" in option for option in info.get("SecurityOptions") or ())


def has_gpus(info: Mapping[str, Any]) -> bool:
    """Whether the daemon can give containers NVIDIA's GPUs."""
    return "nvidia" in (info.get("Runtimes") or {})


def _said(exc: Any) -> str:
    text = str(exc.explanation or exc).strip()
    if exc.status_code == 507 or "no space left on device" in text:
        return f"{text}; the disk of the Docker daemon is full: `docker system df` shows by what"
    return text


def _unreachable(where: str, exc: Exception) -> str:
    text = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
    if isinstance(exc, PermissionError):
        return f"you may not talk to the Docker daemon at {where}: have your user in the group docker, and log in anew"
    return (
        f"no Docker daemon answers at {where}: start it (`systemctl start docker`), or set DOCKER_HOST to the socket "
        f'of one that runs; instance_type="local" runs the same job without Docker ({text})'
    )
