"""Removes what jobs have in the daemon, known by its labels, whoever made it and however that ended."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hdp.contract.errors import EngineError
from hdp.estimator.engines.docker import daemon
from hdp.estimator.engines.docker.dockerjob import HOME_LABEL, JOB_LABEL, daemon_of, daemons_of, labels_of
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
        _remove(lambda c=container: client.remove_container(c["Id"], v=True, force=True))
    for network in networks:
        _remove(lambda n=network: client.remove_network(n["Id"]))
    count = [(len(containers), "container"), (len(networks), "network")]
    said = [f"{n} {what}{'s' * (n != 1)}" for n, what in count if n]
    return f"removed {' and '.join(said)}" if said else ""


def sweep(home: Home) -> dict[str, str]:
    """Remove what daemons have of jobs of this home whose folders are gone. Returns the job's name to what was there.

    A daemon that doesn't answer is left out, with what it has.
    """
    done = {}
    for where in daemons_of(home):
        try:
            with daemon.connected(where) as client:
                for job in _strays(client, home):
                    done[job] = removed(client, {JOB_LABEL: job, HOME_LABEL: str(home.path)})
        except EngineError as exc:
            LOG.warning("what jobs without a folder have left isn't known: %s", exc)
    return done


def _strays(client: APIClient, home: Home) -> list[str]:
    wanted = {"label": [f"{HOME_LABEL}={home.path}"]}
    with daemon.explained("containers and networks of hdp's can't be listed"):
        found: list[dict[str, Any]] = [*client.containers(all=True, filters=wanted), *client.networks(filters=wanted)]
    jobs = {str(one["Labels"].get(JOB_LABEL, "")) for one in found}
    return [job for job in sorted(jobs) if not home.job(job).path.exists()]


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
