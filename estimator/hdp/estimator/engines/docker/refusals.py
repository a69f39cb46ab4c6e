"""What the Docker engine can't run: refused before anything is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hdp.estimator.engines.docker import mounts
from hdp.estimator.engines.docker.environment import endpoint_faults, uses_s3
from hdp.estimator.engines.docker.options import DockerOptions
from hdp.estimator.engines.local import refusals

INPUT_MODES = refusals.INPUT_MODES
URI_SCHEMES = refusals.URI_SCHEMES
#: Docker gives a network 4,096 addresses or more; but each host is some hundred MB of memory.
MAX_HOSTS = 250


def faults(training_job: Mapping[str, Any], options: DockerOptions, environ: Mapping[str, str]) -> list[str]:
    """Every fault, one line each. environ: the client's, by which S3 is found."""
    return [
        *refusals.of_names_and_uris(training_job, "docker"),
        *refusals.of_hosts(training_job.get("ResourceConfig") or {}, "docker", MAX_HOSTS, ("docker",)),
        *mounts.faults(training_job),
        *endpoint_faults(training_job, environ),
        *_fastfile(training_job, options, environ),
        *_isolation(training_job),
    ]


def _fastfile(training_job: Mapping[str, Any], options: DockerOptions, environ: Mapping[str, str]) -> Sequence[str]:
    default = training_job.get("AlgorithmSpecification", {}).get("TrainingInputMode", "File")
    channels = training_job.get("InputDataConfig") or ()
    names = [c["ChannelName"] for c in channels if c.get("InputMode", default) == "FastFile"]
    fallback = {**environ, **training_job.get("Environment", {})}.get("HDP_FASTFILE_FALLBACK")
    if not names or options.fuse or fallback == "file":
        return ()
    return (
        f"channel {names[0]!r}: input_mode='FastFile' needs FUSE in the containers, which takes /dev/fuse, the "
        "capability SYS_ADMIN and root there; allow it by engine_options={'fuse': True}, or use input_mode='File'; "
        "HDP_FASTFILE_FALLBACK=file in the job's environment downloads such channels instead",
    )


def _isolation(training_job: Mapping[str, Any]) -> Sequence[str]:
    if not training_job.get("EnableNetworkIsolation") or not uses_s3(training_job):
        return ()
    return (
        "enable_network_isolation: the hosts read from S3 themselves, which they couldn't then; use file:// inputs",
    )
