"""The Docker engine's face: what a client calls. Records and logs are the local engine's; hosts are containers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hdp.contract.errors import EngineError, SpecError
from hdp.estimator.engines.base import Capabilities, JobRequest
from hdp.estimator.engines.docker import daemon, gpus, refusals
from hdp.estimator.engines.docker.dockerjob import write_record
from hdp.estimator.engines.docker.options import DockerOptions, parse
from hdp.estimator.engines.local import kinds, state, store
from hdp.estimator.engines.local.engine import LocalEngine, start
from hdp.estimator.engines.local.gpus import usable_gpus

if TYPE_CHECKING:
    from docker import APIClient

SUPERVISOR_MODULE = "hdp.estimator.engines.docker.supervisor"


class DockerEngine(LocalEngine):
    """Runs jobs in containers of this machine's Docker daemon."""

    name = "docker"

    def capabilities(
        self, training_job: Mapping[str, Any] | None = None, options: Mapping[str, Any] | None = None
    ) -> Capabilities:
        """What the daemon can do for `training_job`; one that doesn't answer is a note, for `submit` says so."""
        usual = Capabilities(uri_schemes=refusals.URI_SCHEMES, input_modes=refusals.INPUT_MODES, interface="eth0")
        if training_job is None:
            return usual
        wanted = DockerOptions.model_validate(dict(options or {}))
        faults = refusals.faults(training_job, wanted, os.environ)
        try:
            with daemon.connected(daemon.address()) as client:
                info, missing = daemon.facts(client), _missing(client, training_job)
        except EngineError as exc:
            return replace(usual, faults=tuple(faults), notes=(f"fit() will refuse: {exc}",))
        hosts, usable = len(kinds.hosts_of(training_job)), len(usable_gpus(os.environ))
        faults += gpus.faults(wanted.gpus, hosts, usable, info)
        notes = [*_daemon_notes(info), *([missing] if missing else [])]
        return replace(
            usual,
            gpus_per_host=gpus.per_host(wanted.gpus, hosts, usable, info),
            faults=tuple(faults),
            notes=tuple(notes),
        )

    def validate_options(self, options: Mapping[str, Any]) -> tuple[Mapping[str, Any], Sequence[str]]:
        """Options with defaults filled in, and the faults found."""
        return parse(options)

    def submit(self, request: JobRequest) -> None:
        """Start the job; return once its supervisor is on record."""
        options, faults = self.validate_options(request.engine_options)
        if not faults:
            wanted = DockerOptions.model_validate(dict(options))
            faults = refusals.faults(request.training_job, wanted, os.environ)
        if faults:
            raise SpecError(faults, "this job request")
        where = daemon.address()
        with daemon.connected(where) as client:
            _have_image(client, request.training_job, wanted)
            found = gpus.faults(
                wanted.gpus,
                len(kinds.hosts_of(request.training_job)),
                len(usable_gpus(os.environ)),
                daemon.facts(client),
            )
        if found:
            raise SpecError(found, "this job request")
        job = self._store.create(replace(request, engine_options=options))
        try:
            write_record(job, where)
        except OSError as exc:
            reason = f"job {job.name} can't be recorded in {job.path}: {exc.strerror or exc}"
            store.update(job, lambda s: state.fail(s, reason, s.created))
            raise EngineError(reason) from exc
        start(job, SUPERVISOR_MODULE)


def _image(training_job: Mapping[str, Any]) -> str:
    return str(training_job.get("AlgorithmSpecification", {}).get("TrainingImage", ""))


def _missing(client: APIClient, training_job: Mapping[str, Any]) -> str:
    from hdp.estimator.engines.docker.images import is_here, remedy

    image = _image(training_job)
    return "" if is_here(client, image) else f"the daemon has no image {image!r}: {remedy(image)}"


def _have_image(client: APIClient, training_job: Mapping[str, Any], options: DockerOptions) -> None:
    """Raises EngineError: the image isn't to be had, or can't run a host."""
    from hdp.estimator.engines.docker import images

    image = _image(training_job)
    if not images.is_here(client, image):
        images.pull(client, image, options.pull)
    if not training_job.get("AlgorithmSpecification", {}).get("ContainerEntrypoint"):
        images.check_entry(client, image)


def _daemon_notes(info: Mapping[str, Any]) -> list[str]:
    return [
        f"hosts are containers of Docker {info.get('ServerVersion', '?')} on this machine: they share its "
        f"{info.get('NCPU', '?')} processors and its memory"
    ]
