"""A job that was written for SageMaker, as hosts of this machine run it. Pure.

Hosts of Amazon's instance types become hosts here. The image isn't run: a Python of this machine stands for it, and the
program that a request names as ContainerEntrypoint is one of this machine, run as in a container. What our own entry
point brings into an image that doesn't contain us is here already, so its channels aren't provided, and the code is
fetched from where its channel has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hdp.contract import delivery
from hdp.contract.hyperparameters import decode, encode
from hdp.estimator.engines.local.kinds import LOCAL, LOCAL_GPU

_DATA = "/opt/ml/input/data/"
_DIRECTORY, _PROGRAM = "sagemaker_submit_directory", "sagemaker_program"
#: What is taken, shown in the description, and has no effect here.
_WITHOUT_EFFECT = {
    "VpcConfig": "the VPC",
    "EnableNetworkIsolation": "network isolation",
    "EnableManagedSpotTraining": "spot capacity",
    "RetryStrategy": "retries",
    "DebugHookConfig": "the debugger",
    "ProfilerConfig": "the profiler",
    "TensorBoardOutputConfig": "TensorBoard output",
    "ExperimentConfig": "experiments",
}


def as_local(training_job: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """`training_job` as our agents here get it. kind: what hosts of Amazon's types run as, "local" or "local_gpu"."""
    job = dict(training_job)
    if own_entry_point(job):
        job["AlgorithmSpecification"] = _without(job["AlgorithmSpecification"], "ContainerEntrypoint")
    if uri := _archive(training_job):
        job["HyperParameters"] = {**job.get("HyperParameters", {}), _DIRECTORY: encode(uri)}
    if own_entry_point(training_job):
        channels = job.get("InputDataConfig") or ()
        job["InputDataConfig"] = [c for c in channels if c.get("ChannelName") not in delivery.CHANNELS]
    return with_kinds(job, kind)


def with_kinds(training_job: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """`training_job`, with hosts of this machine; `kind` as for `as_local`.

    Amazon's types stay as they are for "local", since whoever has no GPUs may be called anything.
    """
    job = dict(training_job)
    return {**job, "ResourceConfig": _with_gpus(job.get("ResourceConfig") or {})} if kind == LOCAL_GPU else job


def program(training_job: Mapping[str, Any], own_too: bool = False) -> tuple[str, ...]:
    """What its container would run: ContainerEntrypoint and ContainerArguments. Empty: a script, under our agents.

    own_too: also where that is our own start script, which the hosts here could do without.
    """
    if own_entry_point(training_job) and not own_too:
        return ()
    algorithm = _algorithm(training_job)
    entry_point = algorithm.get("ContainerEntrypoint") or ()
    return (*entry_point, *(algorithm.get("ContainerArguments") or ())) if entry_point else ()


def own_entry_point(training_job: Mapping[str, Any]) -> bool:
    """Whether its container would run our own start script, or the agent of an image that has us."""
    given = tuple(_algorithm(training_job).get("ContainerEntrypoint") or ())
    return given in (delivery.ENTRYPOINT, delivery.INSTALLED_ENTRYPOINT)


def faults(training_job: Mapping[str, Any]) -> list[str]:
    """Why no host of this machine can stand for a container of this job, a line each."""
    algorithm = _algorithm(training_job)
    found = []
    if algorithm.get("AlgorithmName"):
        found.append(
            f"AlgorithmSpecification.AlgorithmName={algorithm['AlgorithmName']!r}: algorithms of the service can't be "
            "run here; give a TrainingImage and a script"
        )
    if not algorithm.get("ContainerEntrypoint") and not _hyperparameter(training_job, _PROGRAM):
        found.append(
            f"HyperParameters has no {_PROGRAM}: no image is run here, so there must be a script, with its archive in "
            f"{_DIRECTORY}, or a ContainerEntrypoint that this machine can run"
        )
    if own_entry_point(training_job) and not _channel_uri(training_job, delivery.CODE_CHANNEL):
        found.append(f"InputDataConfig has no channel {delivery.CODE_CHANNEL!r}, where {delivery.START} finds the code")
    return [*found, *(fault for channel in training_job.get("InputDataConfig") or () for fault in _source(channel))]


def preface(training_job: Mapping[str, Any], python: str, kind: str) -> list[str]:
    """What the log of such a job begins with: what stands for what, and what has no effect."""
    image = _algorithm(training_job).get("TrainingImage", "none was named")
    lines = [f"emulated on this machine: the image isn't run ({image}), {python} stands for it"]
    types = [t for t in _types(training_job.get("ResourceConfig", {})) if t not in (LOCAL, LOCAL_GPU)]
    if types:
        lines.append(f"hosts of the type {', '.join(dict.fromkeys(types))} run as {kind!r}")
    ignored = [name for key, name in _WITHOUT_EFFECT.items() if training_job.get(key)]
    ignored += ["encryption keys"] if _keys(training_job) else []
    if training_job.get("OutputDataConfig", {}).get("CompressionType") == "NONE":
        ignored.append("CompressionType=NONE (artifacts are archives)")
    return [*lines, *([f"without effect here: {', '.join(ignored)}"] if ignored else [])]


def _archive(training_job: Mapping[str, Any]) -> str | None:
    """Where the code archive is, if it would come in a channel."""
    directory = _hyperparameter(training_job, _DIRECTORY)
    channel, _, name = directory.removeprefix(_DATA).partition("/") if directory.startswith(_DATA) else ("", "", "")
    if own_entry_point(training_job):
        channel, name = delivery.CODE_CHANNEL, name or delivery.ARCHIVE
    uri = _channel_uri(training_job, channel)
    return uri if not uri or not name or uri.endswith(".tar.gz") else f"{uri.rstrip('/')}/{name}"


def _channel_uri(training_job: Mapping[str, Any], name: str) -> str | None:
    channels = training_job.get("InputDataConfig") or ()
    found = [c for c in channels if c.get("ChannelName") == name]
    return found[0].get("DataSource", {}).get("S3DataSource", {}).get("S3Uri") if found else None


def _source(channel: Mapping[str, Any]) -> Sequence[str]:
    other = [kind for kind in channel.get("DataSource", {}) if kind != "S3DataSource"]
    name = channel.get("ChannelName")
    return [f"channel {name!r}: a {kind} can't be had here; give s3:// or file://" for kind in other]


def _with_gpus(resources: Mapping[str, Any]) -> dict[str, Any]:
    groups = [{**g, "InstanceType": LOCAL_GPU} for g in resources.get("InstanceGroups") or ()]
    return {**resources, **({"InstanceGroups": groups} if groups else {"InstanceType": LOCAL_GPU})}


def _types(resources: Mapping[str, Any]) -> Iterable[str]:
    return [g["InstanceType"] for g in resources.get("InstanceGroups") or [resources] if g.get("InstanceType")]


def _keys(training_job: Mapping[str, Any]) -> bool:
    output, resources = training_job.get("OutputDataConfig", {}), training_job.get("ResourceConfig", {})
    return bool(output.get("KmsKeyId") or resources.get("VolumeKmsKeyId"))


def _algorithm(training_job: Mapping[str, Any]) -> Mapping[str, Any]:
    return training_job.get("AlgorithmSpecification") or {}


def _hyperparameter(training_job: Mapping[str, Any], name: str) -> str:
    return str(decode((training_job.get("HyperParameters") or {}).get(name, "")) or "")


def _without(value: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {k: v for k, v in value.items() if k != key}
