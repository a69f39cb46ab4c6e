"""Pushes an image to a registry; to Amazon's (ECR) with a login through boto3."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hdp.contract.errors import EngineError
from hdp.estimator.engines.docker import daemon
from hdp.estimator.engines.docker.images import _split

if TYPE_CHECKING:
    from docker import APIClient

#: Source: https://docs.aws.amazon.com/AmazonECR/latest/userguide/Registries.html
_ECR = re.compile(r"(\d{12})\.dkr[.-]ecr(?:-fips)?\.([a-z0-9-]+)\.(?:amazonaws\.com(?:\.cn)?|on\.aws)")


def push(client: APIClient, image: str, target: str) -> str:
    """Tag `image` as `target`, ``registry/repository:tag``, and push that. Returns its digest in the registry.

    A repository in ECR that isn't there is made. Raises EngineError.
    """
    repository, tag = _split(target)
    if "/" not in target or tag is None:
        raise EngineError(f"--push {target!r}: expected registry/repository:tag")
    credentials = ecr_login(target)
    with daemon.explained(f"{target} can't be pushed"):
        client.tag(image, repository, tag)
        lines = client.push(repository, tag=tag, stream=True, decode=True, auth_config=credentials)
        return _digest(lines, target)


def ecr_login(target: str) -> dict[str, str] | None:
    """User and password for `target`'s registry, by boto3; None: it isn't ECR, and the daemon's own login counts.

    Makes the repository where it isn't there. Raises EngineError.
    """
    registry, _, rest = target.partition("/")
    found = _ECR.fullmatch(registry)
    if found is None:
        return None
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        ecr = boto3.client("ecr", region_name=found[2])
        _have_repository(ecr, found[1], _split(rest)[0])
        token = ecr.get_authorization_token()["authorizationData"][0]["authorizationToken"]
    except (BotoCoreError, ClientError) as exc:
        raise EngineError(f"{registry} can't be logged in to: {exc}") from exc
    user, _, password = base64.b64decode(token).decode().partition(":")
    return {"username": user, "password": password}


def _have_repository(ecr: Any, account: str, name: str) -> None:
    try:
        ecr.describe_repositories(registryId=account, repositoryNames=[name])
    except ecr.exceptions.RepositoryNotFoundException:
        ecr.create_repository(registryId=account, repositoryName=name)


def _digest(lines: Any, target: str) -> str:
    digest = ""
    for line in lines:
        found: Mapping[str, Any] = line
        if "error" in found:
            raise EngineError(f"{target} can't be pushed: {found['error']}")
        digest = (found.get("aux") or {}).get("Digest", digest)
    return digest
