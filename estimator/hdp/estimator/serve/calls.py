"""One call of the API, and what all operations share: ARNs, tokens, times."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hdp.estimator.engines.local.engine import LocalEngine
from hdp.estimator.engines.local.home import JobDir
from hdp.estimator.engines.local.store import Store
from hdp.estimator.serve.errors import ServiceError, no_such_job, validation
from hdp.estimator.serve.streams import Streams
from hdp.estimator.serve.throttle import Throttle

#: The account that every ARN names: nobody's.
ACCOUNT = "000000000000"
_ARN = re.compile(r"arn:aws[a-z-]*:sagemaker:[a-z0-9-]+:\d{12}:training-job/(.+)")


@dataclass(frozen=True)
class Serving:
    """What is served: the jobs of one home."""

    engine: LocalEngine
    options: Mapping[str, Any]
    """Engine options of every job that is made."""
    throttle: Throttle = field(default_factory=lambda: Throttle(None))
    streams: Streams = field(default_factory=Streams)

    @property
    def store(self) -> Store:
        """The jobs on disk."""
        return Store(self.engine.home)

    def job(self, name: str) -> JobDir:
        """Folder of the job `name`. Raises ServiceError as SageMaker does."""
        from hdp.contract.errors import JobNotFound

        try:
            return self.store.find(name)
        except JobNotFound as exc:
            raise no_such_job(name) from exc


@dataclass(frozen=True)
class Call:
    """One call: of what, with what, from where."""

    serving: Serving
    arguments: Mapping[str, Any]
    region: str
    """What the caller's signature says."""

    def arn(self, name: str) -> str:
        """ARN of the job `name`."""
        return f"arn:aws:sagemaker:{self.region}:{ACCOUNT}:training-job/{name}"


Operation = Callable[[Call], dict[str, Any]]
"""Raises ServiceError."""


def name_in(arn: str) -> str:
    """The name of the training job that `arn` means. Raises ServiceError for any other resource."""
    found = _ARN.fullmatch(arn)
    if found is None:
        raise validation(f"ResourceArn={arn!r}: only training jobs are served; expected arn:aws:sagemaker:...")
    return found[1]


def to_token(value: object) -> str:
    """An opaque text for what a caller brings back; see `from_token`."""
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode()


def from_token(token: str, refuse: Callable[[str], ServiceError]) -> Any:
    """What `to_token` was given. Raises what `refuse` makes for a text that isn't from there."""
    try:
        return json.loads(base64.b64decode(token, altchars=b"-_", validate=True))
    except (binascii.Error, ValueError) as exc:
        raise refuse(f"the token {token!r} isn't one of ours") from exc
