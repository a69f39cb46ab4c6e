"""From the target of a call to its answer: which operation, are its arguments right, what of its answer is shown."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hdp.contract.errors import HdpError
from hdp.contract.redact import redact_text
from hdp.estimator.serve import events, listing, tags, training
from hdp.estimator.serve.calls import Call, Operation, Serving
from hdp.estimator.serve.errors import ServiceError, invalid_parameter, validation
from hdp.estimator.validate import Relaxed, faults_of_input, service_model

LOG = logging.getLogger(__name__)
#: By botocore's names of the services.
OPERATIONS: Mapping[str, Mapping[str, Operation]] = {
    "sagemaker": {
        "CreateTrainingJob": training.create,
        "DescribeTrainingJob": training.describe,
        "ListTrainingJobs": listing.list_jobs,
        "StopTrainingJob": training.stop,
        "UpdateTrainingJob": training.update,
        "DeleteTrainingJob": training.delete,
        "AddTags": tags.add,
        "ListTags": tags.list_tags,
        "DeleteTags": tags.delete,
    },
    "logs": {
        "DescribeLogStreams": events.describe_streams,
        "GetLogEvents": events.get_events,
        "FilterLogEvents": events.filter_events,
    },
}
_PREFIXES = {"SageMaker": "sagemaker", "Logs_20140328": "logs"}
_RELAXED = Relaxed(file_uris=True, any_instance_type=True)


@dataclass(frozen=True)
class Target:
    """What is called."""

    service: str
    operation: str


def target_of(header: str) -> Target:
    """The operation that ``X-Amz-Target`` names. Raises ServiceError for one that isn't served."""
    prefix, _, operation = header.partition(".")
    service = _PREFIXES.get(prefix)
    if service is None or operation not in OPERATIONS[service]:
        served = ", ".join(name for group in OPERATIONS.values() for name in group)
        raise ServiceError("UnknownOperationException", f"{header or 'no X-Amz-Target'}: hdp serve has {served}")
    return Target(service, operation)


def answer(serving: Serving, target: Target, arguments: Mapping[str, Any], region: str) -> dict[str, Any]:
    """Do what is asked. Returns the operation's answer; times in it are datetimes. Raises ServiceError."""
    if faults := faults_of_input(target.service, target.operation, arguments, _RELAXED):
        count = "1 validation error" if len(faults) == 1 else f"{len(faults)} validation errors"
        refuse = invalid_parameter if target.service == "logs" else validation
        raise refuse(redact_text(f"{count} detected: {'; '.join(faults)}"))
    try:
        found = OPERATIONS[target.service][target.operation](Call(serving, arguments, region))
    except ServiceError:
        raise
    except HdpError as exc:
        raise ServiceError("InternalFailure", redact_text(str(exc)), 500) from exc
    shape = service_model(target.service).operation_model(target.operation).output_shape
    return {key: value for key, value in found.items() if shape is not None and key in shape.members}
