"""Models -> `JobRequest`: pure functions, a section of CreateTrainingJob each.

What isn't asked for isn't sent: no debugger hook, no profiler. Sources: v2 2.257.6 and the API's service model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hdp.contract.launch import LaunchSpec, to_hyperparameters
from hdp.estimator import roles
from hdp.estimator.debugger import DebuggerHookConfig, ProfilerConfig
from hdp.estimator.delivery.carriage import Carriage
from hdp.estimator.engines.base import JobRequest
from hdp.estimator.hyperparameters import encode_all
from hdp.estimator.image_choice import Choice
from hdp.estimator.inputs import Inputs
from hdp.estimator.settings import Settings

#: Stands for the account's default bucket in the plan of an engine that isn't there to name it.
DEFAULT_BUCKET = "s3://default-bucket"

_CODE_CHANNEL = "code"
_MODEL_TYPE = "application/x-sagemaker-model"


@dataclass(frozen=True)
class Code:
    """The user's script: its path in the archive, and the archive's URI (.tar.gz)."""

    program: str
    uri: str


@dataclass(frozen=True)
class Job:
    """All that one request is made from."""

    settings: Settings
    name: str
    launch: LaunchSpec = field(default_factory=LaunchSpec)
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    """The user's, plain; see `hdp.estimator.hyperparameters`."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Hyperparameters of the estimator's class, plain; the user's win."""
    inputs: Inputs = field(default_factory=Inputs)
    code: Code | None = None
    engine_name: str = "local"
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    region: str | None = None
    sagemaker_metrics: bool | None = None
    """EnableSageMakerMetricsTimeSeries where the user said nothing."""

    carriage: Carriage | None = None
    """How code, runtime and secret travel, where hdp's own entry point starts the ranks."""
    image: Choice = field(default_factory=Choice)
    experiment: Mapping[str, str] = field(default_factory=dict)
    """ExperimentConfig."""

    @property
    def isolated(self) -> bool:
        """The container can't fetch its code by itself, or needn't, so it comes as a channel."""
        return self.carriage is not None or (
            self.settings.enable_network_isolation and self.code is not None and self.code.uri.startswith("s3://")
        )


def build(job: Job) -> JobRequest:
    """The request for `job`."""
    s = job.settings
    required = {
        "TrainingJobName": job.name,
        "RoleArn": _role(job),
        "AlgorithmSpecification": _algorithm(job),
        **({"HyperParameters": hyperparameters} if (hyperparameters := _hyperparameters(job)) else {}),
        "OutputDataConfig": _output(job),
        "ResourceConfig": _resources(s),
        "StoppingCondition": _given(MaxRuntimeInSeconds=s.max_run, MaxWaitTimeInSeconds=s.max_wait),
    }
    return JobRequest({**required, **_optional(job)}, dict(job.engine_options))


def own_hyperparameters(job: Job) -> dict[str, Any]:
    """The launcher's hyperparameters, not yet encoded."""
    s, out = job.settings, dict(to_hyperparameters(job.launch))
    if s.compiler_config:
        out |= s.compiler_config.hyperparameters()
    typed = job.launch.kind in ("smdistributed", "torch_distributed") or job.launch.library
    if typed and job.engine_name == "sagemaker":
        out["sagemaker_instance_type"] = _ranked_type(job)
    if job.code is None:
        return out
    archive = f"/opt/ml/input/data/{_CODE_CHANNEL}/{job.code.uri.rpartition('/')[2]}"
    out |= {
        "sagemaker_program": job.code.program,
        "sagemaker_submit_directory": archive if job.isolated else job.code.uri,
        "sagemaker_container_log_level": job.settings.container_log_level,
        "sagemaker_job_name": job.name,
    }
    return {**out, "sagemaker_region": job.region} if job.region and job.engine_name == "sagemaker" else out


def _ranked_type(job: Job) -> str:
    """The type of the hosts with ranks; of several, the first."""
    groups = job.settings.groups
    return next(
        (g.instance_type for g in groups if g.instance_group_name in job.launch.groups), groups[0].instance_type
    )


def output_base(job_settings: Settings, engine_name: str) -> str | None:
    """Where artifacts go: output_path; without one, None where the engine keeps them with the job."""
    return job_settings.output_path or (f"{DEFAULT_BUCKET}/" if engine_name == "sagemaker" else None)


def _hyperparameters(job: Job) -> dict[str, str]:
    user = encode_all({**job.defaults, **job.hyperparameters}, script=job.code is not None)
    return {**user, **encode_all(own_hyperparameters(job), script=True)}


def _role(job: Job) -> str:
    """The role's ARN, or what stands for it; see `hdp.estimator.roles`."""
    role = job.settings.role
    if role and roles.is_arn(role):
        return role
    return roles.stand_in(role) if role and job.engine_name == "sagemaker" else roles.LOCAL_ROLE


def _algorithm(job: Job) -> dict[str, Any]:
    s = job.settings
    usual = job.sagemaker_metrics if job.engine_name == "sagemaker" else None
    metrics = usual if s.enable_sagemaker_metrics is None else s.enable_sagemaker_metrics
    return _given(
        TrainingInputMode=job.inputs.single_mode or s.input_mode,
        TrainingImage=s.image_uri or job.image.uri,
        EnableSageMakerMetricsTimeSeries=metrics,
        MetricDefinitions=[m.model_dump() for m in s.metric_definitions] or None,
        ContainerEntrypoint=list(job.carriage.entry_point if job.carriage else s.container_entry_point) or None,
        ContainerArguments=list(s.container_arguments) or None,
        TrainingImageConfig=_image_config(s),
    )


def _image_config(s: Settings) -> dict[str, Any] | None:
    if s.training_repository_access_mode is None:
        return None
    arn = s.training_repository_credentials_provider_arn
    auth = {"TrainingRepositoryCredentialsProviderArn": arn} if arn else None
    return _given(
        TrainingRepositoryAccessMode=s.training_repository_access_mode,
        TrainingRepositoryAuthConfig=auth,
    )


def _output(job: Job) -> dict[str, Any]:
    s = job.settings
    return _given(
        S3OutputPath=output_base(s, job.engine_name),
        KmsKeyId=s.output_kms_key,
        CompressionType="NONE" if s.disable_output_compression else None,
    )


def _resources(s: Settings) -> dict[str, Any]:
    groups = [
        {
            "InstanceGroupName": g.instance_group_name,
            "InstanceType": g.instance_type,
            "InstanceCount": g.instance_count,
        }
        for g in s.instance_groups
    ]
    return _given(
        InstanceType=None if groups else s.instance_type,
        InstanceCount=None if groups else s.instance_count,
        InstanceGroups=groups or None,
        VolumeSizeInGB=s.volume_size,
        VolumeKmsKeyId=s.volume_kms_key,
        KeepAlivePeriodInSeconds=s.keep_alive_period_in_seconds,
        TrainingPlanArn=s.training_plan,
        InstancePlacementConfig=s.instance_placement_config,
    )


def _optional(job: Job) -> dict[str, Any]:
    """The sections that are there only when asked for."""
    s = job.settings
    both = s.subnets and s.security_group_ids
    vpc = {"Subnets": list(s.subnets), "SecurityGroupIds": list(s.security_group_ids)} if both else None
    checkpoint = _given(S3Uri=s.checkpoint_s3_uri, LocalPath=s.checkpoint_local_path)
    retry = {"MaximumRetryAttempts": s.max_retry_attempts} if s.max_retry_attempts else None
    return _given(
        InputDataConfig=_channels(job) or None,
        Environment=s.environment or None,
        Tags=[t.model_dump() for t in s.tags] or None,
        VpcConfig=vpc,
        CheckpointConfig=checkpoint or None,
        RetryStrategy=retry,
        TensorBoardOutputConfig=s.tensorboard_output_config,
        ExperimentConfig=dict(job.experiment) or None,
        **_watchers(job),
        EnableManagedSpotTraining=s.use_spot_instances or None,
        EnableNetworkIsolation=s.enable_network_isolation or None,
        EnableInterContainerTrafficEncryption=s.encrypt_inter_container_traffic or None,
        RemoteDebugConfig=_switch("EnableRemoteDebug", s.enable_remote_debug),
        SessionChainingConfig=_switch("EnableSessionTagChaining", s.enable_session_tag_chaining),
        InfraCheckConfig=_switch("EnableInfraCheck", s.enable_infra_check),
    )


def _watchers(job: Job) -> dict[str, Any]:
    """Debugger and profiler, where they were asked for."""
    s, base = job.settings, output_base(job.settings, job.engine_name)
    if job.engine_name != "sagemaker":
        return {}
    hook = s.debugger_hook_config
    if hook is True or (hook is None and s.tensor_rules):
        hook = DebuggerHookConfig()
    profiler = s.profiler_config
    if profiler is None and (s.profiler_rules or s.disable_profiler is not None):
        profiler = ProfilerConfig(disable_profiler=bool(s.disable_profiler))
    rules = [r.configuration(job.image.rule_evaluator) for r in s.tensor_rules]
    profiler_rules = [r.configuration(job.image.rule_evaluator) for r in s.profiler_rules]
    return _given(
        DebugHookConfig=hook.configuration(base, s.tensor_rules) if hook else None,
        DebugRuleConfigurations=rules or None,
        ProfilerConfig=profiler.configuration(base) if profiler else None,
        ProfilerRuleConfigurations=profiler_rules or None,
    )


def _channels(job: Job) -> list[dict[str, Any]]:
    """The user's channels, then those that v2 adds for a model and for code without a network."""
    channels = [channel.channel(name) for name, channel in job.inputs.channels]
    choosy = any(job.inputs.groups.values())
    everywhere = [g.instance_group_name for g in job.settings.instance_groups] if choosy else []
    if job.settings.model_uri:
        channels.append(
            _object_channel(
                job.settings.model_channel_name, job.settings.model_uri, everywhere, ContentType=_MODEL_TYPE
            )
        )
    if job.carriage:
        channels += [_object_channel(name, uri, everywhere) for name, uri in job.carriage.channels.items()]
    elif job.isolated and job.code is not None:
        channels.append(_object_channel(_CODE_CHANNEL, job.code.uri, everywhere))
    return channels


def _object_channel(name: str, uri: str, groups: list[str], **more: Any) -> dict[str, Any]:
    """groups: names of those that get it, where other channels name theirs, since then all must."""
    source: dict[str, Any] = {"S3DataType": "S3Prefix", "S3Uri": uri, "S3DataDistributionType": "FullyReplicated"}
    if groups:
        source["InstanceGroupNames"] = groups
    return {"ChannelName": name, "DataSource": {"S3DataSource": source}, "InputMode": "File", **more}


def _switch(name: str, value: bool | None) -> dict[str, bool] | None:
    return None if value is None else {name: value}


def _given(**values: Any) -> dict[str, Any]:
    """`values` without those that are None."""
    return {k: v for k, v in values.items() if v is not None}
