"""SageMaker's operations on one training job: create, describe, stop, update, delete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from hdp.contract.errors import JobNotFound, SpecError
from hdp.contract.redact import redact_text
from hdp.estimator.engines.base import TERMINAL, JobRequest
from hdp.estimator.engines.local import kinds
from hdp.estimator.engines.local.cleaning import Cleaning, clean
from hdp.estimator.faults import not_one_of
from hdp.estimator.serve import records
from hdp.estimator.serve.calls import Call
from hdp.estimator.serve.errors import ServiceError, no_such_job, validation
from hdp.estimator.serve.tags import require_own
from hdp.estimator.validate import instance_types

#: In every answer of the service; v2's `attach` needs some of it.
_SAID_ALWAYS = {
    "EnableNetworkIsolation": False,
    "EnableInterContainerTrafficEncryption": False,
    "EnableManagedSpotTraining": False,
}


def create(call: Call) -> dict[str, Any]:
    """CreateTrainingJob: the job starts here."""
    _require_types(call.arguments.get("ResourceConfig", {}))
    _require_wait(call.arguments)
    _require_channels([channel["ChannelName"] for channel in call.arguments.get("InputDataConfig", ())])
    require_own(tag["Key"] for tag in call.arguments.get("Tags", ()))
    request = JobRequest(call.arguments, call.serving.options)
    _require_new(call, request.name)
    try:
        call.serving.engine.submit(request)
    except SpecError as exc:
        _require_new(call, request.name)  # somebody else was faster
        raise validation(redact_text("; ".join(exc.faults))) from exc
    return {"TrainingJobArn": call.arn(request.name)}


def describe(call: Call) -> dict[str, Any]:
    """DescribeTrainingJob."""
    return answer_of(call, call.arguments["TrainingJobName"])


def stop(call: Call) -> dict[str, Any]:
    """StopTrainingJob: SIGTERM, and what the stop deadline leaves of it."""
    name = call.arguments["TrainingJobName"]
    status = _status(call, name)
    if status in TERMINAL:
        raise validation(f"The request was rejected because the training job is in status {status}.")
    call.serving.engine.stop(name)
    return {}


def update(call: Call) -> dict[str, Any]:
    """UpdateTrainingJob: what can be changed is kept and described; nothing of it has an effect here."""
    changes = {k: v for k, v in call.arguments.items() if k != "TrainingJobName"}
    name, job = call.arguments["TrainingJobName"], call.serving.job(call.arguments["TrainingJobName"])
    if "RemoteDebugConfig" in changes and _status(call, name) in TERMINAL:
        raise validation("RemoteDebugConfig can't be updated: the training job has ended.")
    if "ResourceConfig" in changes:
        asked = call.serving.engine.describe(name)["ResourceConfig"]
        changes["ResourceConfig"] = {**asked, **changes["ResourceConfig"]}
    records.with_updates(job, changes)
    return {"TrainingJobArn": call.arn(name)}


def delete(call: Call) -> dict[str, Any]:
    """DeleteTrainingJob: the record goes, with logs and what wasn't copied to the output path."""
    name = call.arguments["TrainingJobName"]
    if not call.serving.store.home.job(name).state.exists():
        raise ServiceError("ResourceNotFound", f"Requested resource not found. No training job is called {name!r}.")
    status = _status(call, name)
    if status not in TERMINAL:
        raise ServiceError("ResourceInUse", f"The training job {name!r} is in status {status}; stop it first.")
    clean(call.serving.store, Cleaning((name,), whole_jobs=True))
    return {}


def answer_of(call: Call, name: str) -> dict[str, Any]:
    """The whole job, as DescribeTrainingJob has it. Raises ServiceError."""
    job = call.serving.job(name)
    try:
        answer = call.serving.engine.describe(name)
        answer |= records.read(job).updates
    except JobNotFound as exc:  # removed meanwhile
        raise no_such_job(name) from exc
    answer = {**_SAID_ALWAYS, **answer, "TrainingJobArn": call.arn(name)}
    answer["OutputDataConfig"] = {"KmsKeyId": "", **answer.get("OutputDataConfig", {})}
    extras = answer.pop("Hdp")
    steps = with_download(answer["SecondaryStatusTransitions"], extras["ranks_started"])
    answer |= {"SecondaryStatusTransitions": steps, "SecondaryStatus": steps[-1]["Status"]}
    if "TrainingTimeInSeconds" in answer:
        answer["BillableTimeInSeconds"] = answer["TrainingTimeInSeconds"]
    return answer


def with_download(steps: list[dict[str, Any]], ranks_started: float | None) -> list[dict[str, Any]]:
    """`steps` with Downloading before Training: the engine's Training begins when the hosts get their channels.

    ranks_started: Unix seconds when all had them, if they had.
    """
    out: list[dict[str, Any]] = []
    for step in steps:
        out += _halves(step, ranks_started) if step["Status"] == "Training" else [step]
    return out


def _halves(step: Mapping[str, Any], ranks_started: float | None) -> list[dict[str, Any]]:
    download = {**step, "Status": "Downloading", "StatusMessage": "Downloading input data"}
    if ranks_started is None:
        return [download]
    middle = datetime.fromtimestamp(ranks_started, tz=timezone.utc)
    middle = min(max(middle, step["StartTime"]), step.get("EndTime", middle))
    return [{**download, "EndTime": middle}, {**step, "StartTime": middle}]


def _require_wait(request: Mapping[str, Any]) -> None:
    """Spot capacity needs a limit of waiting, which includes the run."""
    limits = request.get("StoppingCondition", {})
    run, wait = limits.get("MaxRuntimeInSeconds", 86400), limits.get("MaxWaitTimeInSeconds")
    if not request.get("EnableManagedSpotTraining"):
        return
    if wait is None:
        raise validation(f"EnableManagedSpotTraining needs StoppingCondition.MaxWaitTimeInSeconds of at least {run}.")
    if wait < run:
        raise validation(f"MaxWaitTimeInSeconds is {wait}, less than MaxRuntimeInSeconds ({run}).")


def _require_channels(names: Sequence[str]) -> None:
    """Each name once."""
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise validation(f"InputDataConfig: the channel {twice!r} is there twice; names must be unique.")


def _require_types(resources: Mapping[str, Any]) -> None:
    """Of hosts: those that the service has, and those of this machine."""
    known = (*kinds.KINDS, *instance_types())
    asked = [group.get("InstanceType") for group in resources.get("InstanceGroups") or [resources]]
    wrong = [not_one_of("ResourceConfig.InstanceType", kind, known) for kind in asked if kind not in (None, *known)]
    if wrong:
        raise validation(f"1 validation error detected: {wrong[0]}")


def _require_new(call: Call, name: str) -> None:
    if call.serving.store.home.job(name).state.exists():
        raise ServiceError(
            "ResourceInUse",
            "Training job names must be unique within an AWS account and region, and a training job with this name "
            f"already exists ({call.arn(name)})",
        )


def _status(call: Call, name: str) -> str:
    call.serving.job(name)
    return call.serving.store.look(name).stage.status
