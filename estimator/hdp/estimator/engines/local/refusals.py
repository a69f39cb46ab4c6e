"""What this version of the local engine can't run: refused before anything is started. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hdp.contract.files import JOB_NAME
from hdp.contract.launch import AMAZONS
from hdp.contract.uris import local_path, scheme
from hdp.estimator.engines.local import cloud
from hdp.estimator.engines.local.addresses import MAX_HOSTS
from hdp.estimator.engines.local.kinds import LOCAL, LOCAL_GPU

INPUT_MODES = ("File", "FastFile", "Pipe")
URI_SCHEMES = ("file", "s3")
CHECKPOINTS = "/opt/ml/checkpoints"


def faults(training_job: Mapping[str, Any], usable_gpus: int, instance_types: str | None = None) -> list[str]:
    """Every fault, one line each. instance_types: the engine option of this name."""
    if instance_types is not None:
        asked = cloud.faults(training_job)
        return [*asked, *_all(cloud.as_local(training_job, instance_types), usable_gpus, emulated=True)]
    return _all(training_job, usable_gpus, emulated=False)


def _all(training_job: Mapping[str, Any], usable_gpus: int, *, emulated: bool) -> list[str]:
    return [
        *of_names_and_uris(training_job, "local", emulated=emulated),
        *_resources(training_job.get("ResourceConfig") or {}, usable_gpus, emulated),
        *_launcher(training_job.get("HyperParameters") or {}),
    ]


def of_names_and_uris(training_job: Mapping[str, Any], engine: str, *, emulated: bool = False) -> list[str]:
    """The faults that a job has on every engine that runs on this machine.

    engine: the name of the one it is for. emulated: whether the job was written for SageMaker.
    """
    return [
        *_name(str(training_job.get("TrainingJobName", ""))),
        *(
            fault
            for channel in training_job.get("InputDataConfig") or ()
            for fault in _channel(channel, training_job, engine)
        ),
        *_output(training_job.get("OutputDataConfig", {})),
        *_checkpoints(training_job.get("CheckpointConfig") or {}, engine, emulated),
    ]


def _name(name: str) -> Sequence[str]:
    if JOB_NAME.fullmatch(name):
        return ()
    return (
        f"job_name={name!r} can't be a job's name: expected 1 to 63 letters, digits and single hyphens between them",
    )


def of_hosts(resources: Mapping[str, Any], engine: str, most: int, kinds: Sequence[str]) -> list[str]:
    """Faults of the hosts' number, up to `most`, and of their types. kinds: those served; empty: any."""
    groups, where = _groups(resources)
    count = sum(group.get("InstanceCount") or 0 for group in groups)
    found = []
    if not 1 <= count <= most:
        found.append(f"{where}instance_count={count}: the {engine} engine runs 1 to {most} hosts")
    served = " and ".join(f'"{kind}"' for kind in kinds)
    for kind in dict.fromkeys(group.get("InstanceType") for group in groups):
        if kinds and kind not in kinds:
            found.append(f"{where}instance_type={kind!r}: the {engine} engine serves {served}")
    return found


def _groups(resources: Mapping[str, Any]) -> tuple[Sequence[Mapping[str, Any]], str]:
    """The groups of hosts, and what a fault of one begins with."""
    groups = resources.get("InstanceGroups")
    return (groups, "instance_groups: ") if groups else ([resources], "")


def _resources(resources: Mapping[str, Any], usable_gpus: int, emulated: bool) -> Sequence[str]:
    groups, where = _groups(resources)
    found = of_hosts(resources, "local", MAX_HOSTS, () if emulated else (LOCAL, LOCAL_GPU))
    with_gpus = sum(group.get("InstanceCount") or 0 for group in groups if group.get("InstanceType") == LOCAL_GPU)
    if with_gpus > usable_gpus:
        found.append(
            f'{where}instance_type="local_gpu" with {with_gpus} host(s): {usable_gpus} NVIDIA device(s) can be used '
            'here, and every host needs one; give instance_type="local" to train on the CPU'
        )
    return found


def _channel(channel: Mapping[str, Any], training_job: Mapping[str, Any], engine: str) -> Sequence[str]:
    name = channel.get("ChannelName")
    mode = channel.get("InputMode") or training_job.get("AlgorithmSpecification", {}).get("TrainingInputMode", "File")
    if "FileSystemDataSource" in channel.get("DataSource", {}):
        return [f"channel {name!r}: the {engine} engine mounts no EFS or FSx; mount it, and give file:///its/path"]
    uri = channel.get("DataSource", {}).get("S3DataSource", {}).get("S3Uri", "")
    found = []
    if mode not in INPUT_MODES:
        found.append(f"channel {name!r}: input_mode={mode!r}: expected one of {', '.join(INPUT_MODES)}")
    if scheme(uri) not in URI_SCHEMES:
        found.append(f"channel {name!r}: {uri!r} can't be read; expected file:///a/path or s3://bucket/prefix")
    return found


def _launcher(parameters: Mapping[str, str]) -> Sequence[str]:
    """Launchers and libraries that are in AWS's containers only; the client refuses them by their own names."""
    on = [name for name in AMAZONS if parameters.get(name) not in (None, "false")]
    return [f"hyperparameter {name}: only AWS's own containers serve it; the local engine can't" for name in on]


def _output(output: Mapping[str, Any]) -> Sequence[str]:
    uri = output.get("S3OutputPath") or ""
    return () if not uri or _usable(uri) else (f"output_path={uri!r}: expected file:///a/path or s3://bucket/prefix",)


def _checkpoints(checkpoints: Mapping[str, Any], engine: str, emulated: bool) -> Sequence[str]:
    uri, path = checkpoints.get("S3Uri"), checkpoints.get("LocalPath", CHECKPOINTS)
    found = []
    schemes = ("file", "s3") if emulated else ("file",)
    if uri is not None and not (scheme(uri) in schemes and _usable(uri)):
        found.append(
            f"checkpoint_s3_uri={uri!r}: this version of the {engine} engine keeps checkpoints in file:///a/path"
        )
    if path.rstrip("/") != CHECKPOINTS:
        found.append(f"checkpoint_local_path={path!r}: the {engine} engine has checkpoints in {CHECKPOINTS}")
    return found


def _usable(uri: str) -> bool:
    if scheme(uri) == "s3":
        return bool(uri.removeprefix("s3://").strip("/"))
    try:
        return bool(local_path(uri))
    except ValueError:
        return False
