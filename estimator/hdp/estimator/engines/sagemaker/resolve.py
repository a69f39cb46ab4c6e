"""A planned request -> one that the service takes: stand-ins replaced by what only the account knows.

A plan is made offline, so it says `DEFAULT_BUCKET` for the account's bucket and account 000000000000 for a role that
was given by its name. Whoever writes s3://default-bucket/... means the same bucket.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hdp.contract.errors import SpecError
from hdp.estimator import roles
from hdp.estimator.engines.sagemaker.asking import Refused, ask
from hdp.estimator.engines.sagemaker.aws import Aws
from hdp.estimator.request import DEFAULT_BUCKET

_STANDS = re.compile(re.escape(DEFAULT_BUCKET) + r"(?=/|\"|$)")


def needs_bucket(value: object) -> bool:
    """Whether the default bucket stands anywhere in `value`, a JSON value."""
    if isinstance(value, str):
        return _STANDS.search(value) is not None
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return any(needs_bucket(v) for v in inside)


def with_bucket(value: Any, bucket: str) -> Any:
    """`value`, a JSON value, with the bucket's name wherever the default bucket stands."""
    if isinstance(value, str):
        return _STANDS.sub(f"s3://{bucket}", value)
    if isinstance(value, Mapping):
        return {k: with_bucket(v, bucket) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [with_bucket(v, bucket) for v in value]
    return value


def role_name(arn: str) -> str | None:
    """The name that a stand-in stands for; None for a real ARN."""
    prefix = roles.stand_in("")
    return arn.removeprefix(prefix) if arn.startswith(prefix) else None


def role_arn(aws: Aws, arn: str) -> str:
    """The role's real ARN, by IAM where `arn` is a stand-in. Raises SpecError for a role that doesn't exist."""
    name = role_name(arn)
    if name is None:
        return arn
    try:
        return str(ask(aws, "iam", "get_role", RoleName=name)["Role"]["Arn"])
    except Refused as exc:
        if exc.code == "NoSuchEntity":
            raise SpecError([f"role {name!r}: the account has no IAM role of that name; check it"], "fit()") from exc
        if "AccessDenied" in exc.code:
            raise SpecError([f"role {name!r}: you may not ask IAM for its ARN; give the ARN itself"], "fit()") from exc
        raise
