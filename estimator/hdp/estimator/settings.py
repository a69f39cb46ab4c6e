"""What the user said about a job, as one frozen model: v2's argument names with v2's meaning.

`Settings` checks each argument by itself (types, ranges, spelling). Rules between arguments are in
`hdp.estimator.rules`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, field_validator

from hdp.contract.files import ONE_GROUP
from hdp.estimator import environment, groups
from hdp.estimator.compiler import TrainingCompilerConfig
from hdp.estimator.debugger import DebuggerHookConfig, ProfilerConfig, ProfilerRule, Rule, TensorBoardOutputConfig
from hdp.estimator.faults import Strict, of_validation, seen
from hdp.estimator.groups import MOST_GROUPS, MOST_HOSTS, InstanceGroup
from hdp.estimator.inputs import InputMode
from hdp.estimator.spelling import did_you_mean, nearest

#: v2's arguments that this version doesn't have, and what to do instead.
NOT_HERE: Mapping[str, str] = {
    "sagemaker_session": "hdp keeps no session; choose account and region with boto_session, AWS_PROFILE, AWS_REGION",
    "training_recipe": "recipes aren't in this version; give entry_point",
    "recipe_overrides": "recipes aren't in this version; give hyperparameters",
    "algorithm_arn": "Marketplace algorithms aren't in this version; give image_uri",
}


def _path(value: object) -> object:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _tags(value: object) -> object:
    """{"team": "a"} as [{"Key": "team", "Value": "a"}]."""
    return [{"Key": k, "Value": v} for k, v in value.items()] if isinstance(value, Mapping) else value


def _rules(value: object) -> object:
    """A list of rules; both kinds in one, as in v2."""
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{seen(value)} isn't a list of rules; write [Rule.sagemaker('VanishingGradient'), ...]")
    for item in value:
        if not isinstance(item, (Rule, ProfilerRule)):
            raise ValueError(f"{seen(item)} isn't a Rule or a ProfilerRule; write Rule.sagemaker('VanishingGradient')")
    return tuple(value)


def _hook(value: object) -> object:
    """True is the default hook, {} says nothing, as in v2."""
    if value == {} or isinstance(value, (bool, DebuggerHookConfig)):
        return None if value == {} else value
    raise ValueError(f"{seen(value)} isn't a DebuggerHookConfig; write DebuggerHookConfig(...), or False")


def _made_of(model: type[BaseModel]) -> BeforeValidator:
    """Takes an object of `model` only."""

    def check(value: object) -> object:
        if value is not None and not isinstance(value, model):
            raise ValueError(f"{seen(value)} isn't a {model.__name__}; write {model.__name__}(...)")
        return value

    return BeforeValidator(check)


def _board(value: object) -> object:
    """A TensorBoardOutputConfig as the API spells it, or what is spelt so already."""
    return value.configuration() if isinstance(value, TensorBoardOutputConfig) else value


class Tag(Strict):
    """One tag, in the API's spelling."""

    Key: str
    Value: str

    @field_validator("Key")
    @classmethod
    def _own(cls, key: str) -> str:
        if key.lower().startswith("aws:"):
            raise ValueError(f"{key!r} begins with 'aws:', which Amazon keeps for itself; choose another key")
        return key


class MetricDefinition(Strict):
    """One metric that SageMaker reads from the log, in the API's spelling."""

    Name: str
    Regex: str


Text = str | None
PathText = Annotated[str | None, BeforeValidator(_path)]
Texts = Annotated[tuple[str, ...], Field(strict=False)]
Paths = Annotated[tuple[Annotated[str, BeforeValidator(_path)], ...], Field(strict=False)]

Groups = Annotated[
    tuple[InstanceGroup, ...], BeforeValidator(groups.declared), Field(strict=False, max_length=MOST_GROUPS)
]

#: The API's integers have 32 bits; nobody means a larger number.
_MOST = 2**31 - 1


class Settings(Strict):
    """All arguments of an estimator. Those typed Any are parsed by modules of their own."""

    image_uri: Text = None
    role: Text = None
    instance_count: int = Field(1, ge=1, le=MOST_HOSTS)
    instance_type: str = "local"
    instance_groups: Groups = ()
    entry_point: PathText = None
    source_dir: PathText = None
    dependencies: Paths = ()
    git_config: Any = Field(None, repr=False)  # it may hold a password
    hyperparameters: Any = None
    distribution: Any = None
    engine: Any = None
    engine_options: Any = None
    boto_session: Any = None
    framework_version: Text = None
    py_version: Text = None
    model_dir: Any = None
    input_mode: InputMode = "File"
    output_path: Text = None
    output_kms_key: Text = None
    code_location: Text = None
    disable_output_compression: bool = False
    base_job_name: Text = None
    environment: dict[str, str] = Field(default_factory=dict)
    container_log_level: int = Field(20, ge=0, le=_MOST)
    max_run: int = Field(86400, ge=1, le=_MOST)
    max_wait: int | None = Field(None, ge=1, le=_MOST)
    use_spot_instances: bool = False
    max_retry_attempts: int | None = Field(None, ge=1, le=30)
    checkpoint_s3_uri: Text = None
    checkpoint_local_path: Text = None
    volume_size: int = Field(30, ge=1, le=_MOST)
    volume_kms_key: Text = None
    keep_alive_period_in_seconds: int | None = Field(None, ge=0, le=_MOST)
    training_plan: Text = None
    instance_placement_config: dict[str, Any] | None = None
    subnets: Texts = ()
    security_group_ids: Texts = ()
    encrypt_inter_container_traffic: bool = False
    enable_network_isolation: bool = False
    tags: Annotated[tuple[Tag, ...], BeforeValidator(_tags), Field(strict=False)] = ()
    metric_definitions: Annotated[tuple[MetricDefinition, ...], Field(strict=False)] = ()
    enable_sagemaker_metrics: bool | None = None
    tensorboard_output_config: Annotated[dict[str, Any] | None, BeforeValidator(_board)] = None
    debugger_hook_config: Annotated[DebuggerHookConfig | bool | None, BeforeValidator(_hook)] = None
    rules: Annotated[tuple[Rule | ProfilerRule, ...], BeforeValidator(_rules)] = ()
    profiler_config: Annotated[ProfilerConfig | None, _made_of(ProfilerConfig)] = None
    disable_profiler: bool | None = None
    compiler_config: Annotated[TrainingCompilerConfig | None, _made_of(TrainingCompilerConfig)] = None
    container_entry_point: Texts = ()
    container_arguments: Texts = ()
    training_repository_access_mode: Text = None
    training_repository_credentials_provider_arn: Text = None
    enable_remote_debug: bool | None = None
    enable_session_tag_chaining: bool | None = None
    enable_infra_check: bool | None = None
    model_uri: Text = None
    model_channel_name: str = "model"

    @property
    def groups(self) -> tuple[InstanceGroup, ...]:
        """The job's kinds of hosts, in the hosts' order: instance_groups, else all hosts as one."""
        return self.instance_groups or (InstanceGroup(ONE_GROUP, self.instance_type, self.instance_count),)

    @property
    def tensor_rules(self) -> tuple[Rule, ...]:
        """The rules that watch tensors."""
        return tuple(rule for rule in self.rules if isinstance(rule, Rule))

    @property
    def profiler_rules(self) -> tuple[ProfilerRule, ...]:
        """The rules that watch the hosts."""
        return tuple(rule for rule in self.rules if isinstance(rule, ProfilerRule))


def parse(given: Mapping[str, Any], refused: Mapping[str, str]) -> tuple[Settings, frozenset[str], list[str]]:
    """The settings, the names of the faulty arguments (which then have their defaults, misspelt
    ones among them), and the faults.

    given: the arguments as the user wrote them. None counts as not given, as in v2; so does switching off what isn't
    in this version.
    refused: arguments that this estimator class doesn't take, and what to do instead.
    """
    exists = {*Settings.model_fields, *NOT_HERE, *refused}
    said = {k: v for k, v in given.items() if k not in exists or not (v is None or _is_off(k, v))}
    faults = [f for f in (_unknown(k, {**NOT_HERE, **refused}) for k in said) if f]
    meant = frozenset(
        m for m in (nearest(k, Settings.model_fields) for k in said if k not in Settings.model_fields) if m
    )
    good = {k: v for k, v in said.items() if k in Settings.model_fields and k not in refused}
    good["environment"], wrong = environment.parse(good.get("environment", {}))
    if wrong:
        meant |= {"environment"}
    try:
        return Settings.model_validate(good), meant, faults + wrong
    except ValidationError as exc:
        bad = frozenset(str(e["loc"][0]) for e in exc.errors(include_url=False))
        faults += of_validation(exc, Settings, "") + wrong
    return Settings.model_validate({k: v for k, v in good.items() if k not in bad}), bad | meant, faults


def _is_off(name: str, value: object) -> bool:
    """Whether `value` asks for nothing of an argument that isn't here."""
    return name in NOT_HERE and isinstance(value, (list, tuple, dict)) and not value


def _unknown(name: str, refused: Mapping[str, str]) -> str | None:
    """The fault line for an argument that doesn't exist here; None where it does."""
    if name in refused:
        return f"{name} isn't an argument here: {refused[name]}"
    if name in Settings.model_fields:
        return None
    known = [k for k in Settings.model_fields if k not in refused]
    return f"{name} is unknown{did_you_mean(name, known) or '; see the list in help(Estimator)'}"
