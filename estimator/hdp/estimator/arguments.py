"""Types of the estimators' keyword arguments, for editors and type checkers. What they mean: `help(Estimator)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, TypedDict

from hdp.estimator.compiler import TrainingCompilerConfig
from hdp.estimator.debugger import DebuggerHookConfig, ProfilerConfig, ProfilerRule, Rule, TensorBoardOutputConfig
from hdp.estimator.engines.base import Engine
from hdp.estimator.groups import InstanceGroup
from hdp.estimator.inputs import InputMode


class Common(TypedDict, total=False):
    """What every estimator takes by keyword."""

    source_dir: str | PathLike[str] | None
    dependencies: Sequence[str | PathLike[str]] | None
    git_config: Mapping[str, Any] | None
    hyperparameters: Mapping[str, Any] | None
    distribution: Mapping[str, Any] | None
    instance_groups: Sequence[InstanceGroup] | None
    engine: str | Engine | None
    engine_options: Mapping[str, Any] | None
    boto_session: Any
    input_mode: InputMode | None
    output_path: str | None
    output_kms_key: str | None
    code_location: str | None
    disable_output_compression: bool | None
    base_job_name: str | None
    environment: Mapping[str, str] | None
    container_log_level: int | None
    max_run: int | None
    max_wait: int | None
    use_spot_instances: bool | None
    max_retry_attempts: int | None
    checkpoint_s3_uri: str | None
    checkpoint_local_path: str | None
    volume_size: int | None
    volume_kms_key: str | None
    keep_alive_period_in_seconds: int | None
    training_plan: str | None
    instance_placement_config: Mapping[str, Any] | None
    subnets: Sequence[str] | None
    security_group_ids: Sequence[str] | None
    encrypt_inter_container_traffic: bool | None
    enable_network_isolation: bool | None
    tags: Mapping[str, str] | Sequence[Mapping[str, str]] | None
    metric_definitions: Sequence[Mapping[str, str]] | None
    enable_sagemaker_metrics: bool | None
    tensorboard_output_config: TensorBoardOutputConfig | Mapping[str, Any] | None
    debugger_hook_config: DebuggerHookConfig | bool | None
    rules: Sequence[Rule | ProfilerRule] | None
    profiler_config: ProfilerConfig | None
    disable_profiler: bool | None
    compiler_config: TrainingCompilerConfig | None
    container_entry_point: Sequence[str] | None
    container_arguments: Sequence[str] | None
    training_repository_access_mode: str | None
    training_repository_credentials_provider_arn: str | None
    enable_remote_debug: bool | None
    enable_session_tag_chaining: bool | None
    enable_infra_check: bool | None
    model_uri: str | None
    model_channel_name: str | None


class EstimatorArguments(Common, total=False):
    """What `Estimator` takes by keyword only."""

    entry_point: str | PathLike[str] | None


class FrameworkArguments(Common, total=False):
    """What `PyTorch` takes by keyword only."""

    image_uri: str | None
    role: str | None
    instance_count: int | None
    instance_type: str | None
    framework_version: str | None
    py_version: str | None


class TensorFlowArguments(FrameworkArguments, total=False):
    """What `TensorFlow` takes by keyword only."""

    model_dir: str | bool | None
