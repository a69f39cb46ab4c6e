"""Removes what jobs have in the daemon, known by its labels, whoever made it and however that ended."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hdp.contract.errors import EngineError
from hdp.estimator.engines.docker import daemon
from hdp.estimator.engines.docker.dockerjob import HOME_LABEL, JOB_LABEL, daemon_of, labels_of
from hdp.estimator.engines.local.home import Home, JobDir

if TYPE_CHECKING:
    from docker import APIClient

LOG = logging.getLogger(__name__)


def end(folder: JobDir) -> str:
    """Remove all of the job's containers and networks. Says what was there; empty: nothing, or no Docker job."""
    try:
        where = daemon_of(folder)
        if where is None:
            return ""
        with daemon.connected(where) as client:
            return removed(client, labels_of(folder))
    except EngineError as exc:
        return f"its containers, if any are left, could not be removed: {exc}"


def removed(client: APIClient, labels: Mapping[str, str]) -> str:
    """Remove every container, with its volumes, and every network that has all `labels`. Says what was there."""
    wanted = {"label": [f"{name}={value}" for name, value in labels.items()]}
    with daemon.explained("containers and networks of hdp's can't be listed"):
        containers, networks = client.containers(all=True, filters=wanted), client.networks(filters=wanted)
    for container in containers:
        _remove(lambda c=container: client.remove_container(c["Id"], v=True, force=True))  # type: ignore[misc]
    for network in networks:
        _remove(lambda n=network: client.remove_network(n["Id"]))  # type: ignore[misc]
    count = [(len(containers), "container"), (len(networks), "network")]
    said = [f"{n} {what}{'s' * (n != 1)}" for n, what in count if n]
    return f"removed {' and '.join(said)}" if said else ""


def strays(home: Home, where: str) -> list[Mapping[str, str]]:
    """Labels of what the daemon at `where` has of jobs of this home whose folders are gone. Raises EngineError."""
    wanted = {"label": [f"{HOME_LABEL}={home.path}"]}
    with daemon.connected(where) as client, daemon.explained("containers and networks of hdp's can't be listed"):
        found: list[dict[str, Any]] = [*client.containers(all=True, filters=wanted), *client.networks(filters=wanted)]
    jobs = {str(one["Labels"].get(JOB_LABEL, "")) for one in found}
    return [{JOB_LABEL: job, HOME_LABEL: str(home.path)} for job in sorted(jobs) if not Path(home.jobs, job).exists()]


def _remove(deed: Any) -> None:
    from docker.errors import NotFound

    try:
        with daemon.explained("removal"):
            try:
                deed()
            except NotFound:
                return
    except EngineError as exc:
        LOG.warning("%s", exc)
