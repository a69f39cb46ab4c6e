"""What a container's agent gets to know through its environment. Pure, but for boto3's credentials."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from hdp.contract import env
from hdp.contract.uris import scheme
from hdp.estimator.engines.docker import mounts
from hdp.estimator.engines.docker.dockerjob import DockerJob
from hdp.estimator.engines.local.trees import for_mpi

INTERFACE = "eth0"
#: Of the client's environment, a container gets these, where they are no paths of this machine.
_PREFIXES = ("AWS_", "HDP_FASTFILE_")
_PATHS = frozenset(
    {"AWS_CA_BUNDLE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_PROFILE"}
    | {"AWS_DEFAULT_PROFILE", "AWS_DATA_PATH", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"}
)
_ALSO = frozenset(
    {"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"}
    | {v.name for v in env.ALL if "user" in v.set_by}
) - {env.HOME.name}


def agent_environment(
    job: DockerJob, inherited: Mapping[str, str], credentials: Mapping[str, str], devices: tuple[str, ...]
) -> dict[str, str]:
    """The agent's environment beyond the image's own: the client's, the user's for this job over it, ours over both.

    credentials: for S3, as AWS's variables. devices: GPUs of this host.
    """
    passed = {k: v for k, v in inherited.items() if (k in _ALSO or k.startswith(_PREFIXES)) and k not in _PATHS}
    ca = {"AWS_CA_BUNDLE": mounts.CA_BUNDLE} if ca_bundle(inherited) else {}
    defaults = {
        # Whoever runs in the container may be unknown to its /etc/passwd.
        "HOME": "/tmp",
        "USER": "hdp",
        "LOGNAME": "hdp",
        env.START_TIMEOUT.name: str(job.options.start_timeout_seconds),
        **for_mpi(INTERFACE),
        **({} if devices else {"CUDA_VISIBLE_DEVICES": ""}),
    }
    ours = {
        env.SECRET_FILE.name: mounts.SECRET,
        env.STOP_TIMEOUT.name: str(job.options.stop_timeout_seconds),
        env.TIMESTAMPS.name: "1",
        **({env.ENCRYPT.name: "1"} if job.training_job.get("EnableInterContainerTrafficEncryption") else {}),
        "TRAINING_JOB_NAME": job.folder.name,
    }
    return {**passed, **credentials, **ca, **defaults, **job.training_job.get("Environment", {}), **ours}


def ca_bundle(inherited: Mapping[str, str]) -> str:
    """This machine's file of certificates for AWS's services; empty: none is set."""
    path = inherited.get("AWS_CA_BUNDLE", "")
    return os.path.realpath(path) if path and os.path.isfile(path) else ""  # noqa: PTH113 (an empty path is no path)


def credentials_of(training_job: Mapping[str, Any], inherited: Mapping[str, str]) -> dict[str, str]:
    """Credentials for a job that reads S3, from wherever boto3 finds them here: a container has no profile."""
    if not uses_s3(training_job) or "AWS_ACCESS_KEY_ID" in inherited:
        return {}
    import boto3
    from botocore.exceptions import BotoCoreError

    try:
        session = boto3.Session()
        found = session.get_credentials()
        frozen = found.get_frozen_credentials() if found else None
    except BotoCoreError:
        return {}
    if frozen is None or not frozen.access_key:
        return {}
    token = {"AWS_SESSION_TOKEN": frozen.token} if frozen.token else {}
    region = {"AWS_DEFAULT_REGION": session.region_name} if session.region_name else {}
    return {"AWS_ACCESS_KEY_ID": frozen.access_key, "AWS_SECRET_ACCESS_KEY": str(frozen.secret_key), **token, **region}


def uses_s3(training_job: Mapping[str, Any]) -> bool:
    """Whether the hosts themselves read from S3."""
    channels = training_job.get("InputDataConfig") or ()
    uris = [c.get("DataSource", {}).get("S3DataSource", {}).get("S3Uri", "") for c in channels]
    code = str(training_job.get("HyperParameters", {}).get("sagemaker_submit_directory", "")).strip('"')
    return any(scheme(uri) == "s3" for uri in [*uris, code])


def endpoint_faults(training_job: Mapping[str, Any], inherited: Mapping[str, str]) -> list[str]:
    """An S3 server that only this machine's own loopback reaches is out of a container's reach."""
    if not uses_s3(training_job):
        return []
    environ = {**inherited, **training_job.get("Environment", {})}
    name = "AWS_ENDPOINT_URL_S3" if environ.get("AWS_ENDPOINT_URL_S3") else "AWS_ENDPOINT_URL"
    host = urlsplit(environ.get(name, "")).hostname or ""
    if host != "localhost" and not host.startswith("127.") and host != "::1":
        return []
    return [
        f"{name} is {environ[name]!r}, but in a container {host} is the container itself; have the server listen at "
        "an address that containers reach, such as docker0's (172.17.0.1), and give that one"
    ]
