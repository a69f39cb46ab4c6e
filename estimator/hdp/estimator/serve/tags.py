"""AddTags, ListTags and DeleteTags, for training jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hdp.estimator.serve import records
from hdp.estimator.serve.calls import Call, from_token, name_in, to_token
from hdp.estimator.serve.errors import ServiceError, validation

MOST_TAGS = 50


def add(call: Call) -> dict[str, Any]:
    """AddTags: a key that is there gets the new value."""
    new = {tag["Key"]: tag["Value"] for tag in call.arguments["Tags"]}
    require_own(new)
    job = call.serving.job(name_in(call.arguments["ResourceArn"]))
    return {"Tags": _rows(records.with_tags(job, lambda tags: _few({**tags, **new})).tags)}


def delete(call: Call) -> dict[str, Any]:
    """DeleteTags: keys that aren't there are fine."""
    gone = set(call.arguments["TagKeys"])
    job = call.serving.job(name_in(call.arguments["ResourceArn"]))
    records.with_tags(job, lambda tags: {k: v for k, v in tags.items() if k not in gone})
    return {}


def list_tags(call: Call) -> dict[str, Any]:
    """ListTags, by pages."""
    rows = _rows(records.read(call.serving.job(name_in(call.arguments["ResourceArn"]))).tags)
    start = from_token(call.arguments["NextToken"], validation) if "NextToken" in call.arguments else 0
    if not isinstance(start, int):
        raise validation(f"NextToken {start!r} isn't from ListTags")
    end = start + call.arguments.get("MaxResults", MOST_TAGS)
    return {"Tags": rows[start:end], **({"NextToken": to_token(end)} if end < len(rows) else {})}


def require_own(keys: Iterable[str]) -> None:
    """Keys that begin with "aws:" are Amazon's. Raises ServiceError."""
    taken = next((key for key in keys if key.lower().startswith("aws:")), None)
    if taken is not None:
        raise validation(f"Tags: the key {taken!r} begins with 'aws:', which is reserved.")


def _few(tags: Mapping[str, str]) -> Mapping[str, str]:
    if len(tags) > MOST_TAGS:
        raise ServiceError("ResourceLimitExceeded", f"a training job can have {MOST_TAGS} tags, this makes {len(tags)}")
    return tags


def _rows(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]
