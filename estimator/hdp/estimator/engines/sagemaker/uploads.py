"""What a request needs on S3 before its job starts: our runtime, and the job's secret.

The request names the places: the channels of `hdp.contract.delivery`. The runtime's key follows from its content, so
that it is sent once. The secret is made here, for one job, and removed when the job is seen to have ended (DESIGN I9).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from hdp.contract import delivery
from hdp.estimator.engines.sagemaker import buckets
from hdp.estimator.engines.sagemaker.aws import Aws

_SECRET_BYTES = 32


def send(aws: Aws, training_job: Mapping[str, Any]) -> None:
    """Send what the resolved request names."""
    key_id = training_job.get("OutputDataConfig", {}).get("KmsKeyId")
    runtime = channel_uri(training_job, delivery.RUNTIME_CHANNEL)
    if runtime is not None:
        from hdp.estimator.delivery import runtime_files

        for name, content in runtime_files().items():
            buckets.put_once(aws, _below(runtime, name), content, key_id)
    secret = secret_uri(training_job)
    if secret is not None:
        buckets.put(aws, secret, secrets.token_hex(_SECRET_BYTES).encode(), key_id)


def secret_uri(training_job: Mapping[str, Any]) -> str | None:
    """Where the job's secret is; None: it has none of ours. training_job: a request, or a description."""
    channel = channel_uri(training_job, delivery.SECRET_CHANNEL)
    return None if channel is None else _below(channel, delivery.SECRET)


def is_our_secret(uri: str, name: str) -> bool:
    """Whether `uri` is where we keep the secret of the job `name`: nothing else is ever removed."""
    return uri.endswith(f"/hdp-secret/{name}/{delivery.SECRET}")


def channel_uri(training_job: Mapping[str, Any], name: str) -> str | None:
    """The S3 URI of the channel `name`; None: the job has no such channel."""
    for channel in training_job.get("InputDataConfig", ()):
        if channel.get("ChannelName") == name:
            uri: str | None = channel.get("DataSource", {}).get("S3DataSource", {}).get("S3Uri")
            return uri
    return None


def _below(uri: str, name: str) -> str:
    """The object `name` of the channel at `uri`, which may name the object itself."""
    return uri if uri.endswith(f"/{name}") else f"{uri.rstrip('/')}/{name}"
