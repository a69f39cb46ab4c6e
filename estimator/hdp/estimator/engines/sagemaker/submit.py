"""CreateTrainingJob, at most once: a call whose answer was lost is never simply repeated.

Where the connection broke, or the service failed inside, the job may have been made. So the name is looked up first: a
job with what we asked for, made since we began to ask, is ours.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from hdp.contract.errors import SpecError
from hdp.estimator.engines.sagemaker.asking import BRIEF, Patience, Refused, Unanswered, ask, code_of, refusal
from hdp.estimator.engines.sagemaker.asking import trouble_of as _trouble_of
from hdp.estimator.engines.sagemaker.aws import Aws

_TAKEN = ("ResourceInUse", "ResourceInUseException")
#: How far the service's clock may be behind ours.
_CLOCKS = timedelta(minutes=5)
#: What the service gives back as it was sent; other fields it fills in or leaves out.
_COMPARED = ("HyperParameters", "InputDataConfig", "RoleArn", "StoppingCondition", "Environment", "CheckpointConfig")


def require_new(aws: Aws, name: str, patience: Patience = BRIEF) -> None:
    """Raise SpecError where a job has this name. Where jobs may not be looked at, CreateTrainingJob will say it."""
    try:
        ask(aws, "sagemaker", "describe_training_job", patience, TrainingJobName=name)
    except Refused:
        return
    raise _taken(name)


def create(aws: Aws, training_job: Mapping[str, Any], patience: Patience = BRIEF) -> None:
    """Have the job made. Raises SpecError for a name that is taken, Refused, Unanswered: it may yet come."""
    began, name = datetime.now(timezone.utc), str(training_job["TrainingJobName"])
    deadline, pause = time.monotonic() + patience.total.total_seconds(), patience.first_seconds
    lost = renewed = False
    while True:
        try:
            aws.client("sagemaker").create_training_job(**training_job)
            return
        except Exception as exc:
            trouble = _refused_for_good(exc, name, lost)
            if trouble != "throttled" and _is_ours(aws, training_job, began, patience):
                return
            if trouble is None:
                raise _taken(name) from exc
            if trouble == "expired" and renewed:
                raise refusal("sagemaker create_training_job", exc) from exc
            lost = lost or trouble == "unreachable"
            if time.monotonic() + pause > deadline:
                if not lost:  # every call was answered, so there is no job
                    raise refusal("sagemaker create_training_job", exc) from exc
                raise Unanswered(
                    f"sagemaker create_training_job: no answer for {patience.total.total_seconds():.0f} s; no job "
                    f"called {name} is known; the last try: {exc}"
                ) from exc
            if trouble == "expired":
                renewed = True
                aws.renew()
        time.sleep(pause)
        pause = min(pause * 2, patience.longest_seconds)


def _refused_for_good(exc: Exception, name: str, lost: bool) -> str | None:
    """What another try may overcome; None: the name is in use, maybe by us. Raises what neither is.

    lost: an earlier call had no answer, so that it may have made the job.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    if not isinstance(exc, (BotoCoreError, ClientError)):
        raise exc
    trouble = _trouble_of(exc)
    if trouble is None and code_of(exc) not in _TAKEN:
        raise refusal("sagemaker create_training_job", exc)
    if trouble is None and not lost:
        raise _taken(name) from exc
    return trouble


def _taken(name: str) -> SpecError:
    return SpecError(
        [
            f"job_name={name!r} is taken by an earlier job of this account and region; choose another name, or leave "
            "it out to get one with the time in it"
        ]
    )


def _is_ours(aws: Aws, wanted: Mapping[str, Any], began: datetime, patience: Patience) -> bool:
    """Whether the job of that name is the one that we asked for."""
    try:
        found = ask(aws, "sagemaker", "describe_training_job", patience, TrainingJobName=wanted["TrainingJobName"])
    except Refused:
        return False
    return found["CreationTime"] >= began - _CLOCKS and same_job(wanted, found)


def same_job(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Whether a described job is what a request asks for. What the service adds by itself doesn't count."""
    asked = {key: wanted[key] for key in (*_COMPARED, "AlgorithmSpecification", "ResourceConfig") if wanted.get(key)}
    return all(_contains(found.get(key), value) for key, value in asked.items())


def _contains(found: object, wanted: object) -> bool:
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(_contains(found.get(k), v) for k, v in wanted.items())
    if isinstance(wanted, (list, tuple)):
        if not isinstance(found, (list, tuple)) or len(found) != len(wanted):
            return False
        return all(map(_contains, found, wanted))
    return found == wanted
