"""SageMaker's Debugger and profiler, as v2 spells them. Jobs have them only where they were asked for.

They are AWS's own services around a job there; nothing of ours runs in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from hdp.contract.errors import SpecError
from hdp.estimator.faults import Spoken, seen, shown

#: Longest that the service takes, in milliseconds; it has a fixed list, which it checks.
_INTERVALS = (100, 200, 500, 1000, 5000, 60000)


def _texts(value: Any) -> Any:
    """The values of a dictionary as text, which is all that the service takes."""
    if not isinstance(value, Mapping):
        return value
    return {k: str(v) if isinstance(v, (int, float)) else v for k, v in value.items()}


def _listed(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _interval(value: object) -> object:
    if value is not None and value not in _INTERVALS:
        raise ValueError(f"{shown(value)} isn't one of the service's intervals: {', '.join(map(str, _INTERVALS))}")
    return value


def _profiling_parameters(value: object) -> object:
    """A dictionary; or an object that has one, such as v2's FrameworkProfile."""
    return _texts(getattr(value, "profiling_parameters", value))


TextMap = Annotated[dict[str, str] | None, BeforeValidator(_texts)]


class CollectionConfig(Spoken):
    """Tensors that Debugger's hook saves, under a name. parameters: how often, and which."""

    name: str
    parameters: TextMap = None

    def __init__(self, name: str, parameters: Mapping[str, str] | None = None) -> None:
        super().__init__(**{"name": name, "parameters": parameters})

    def configuration(self) -> dict[str, Any]:
        """In CreateTrainingJob's spelling."""
        return _given(CollectionName=self.name, CollectionParameters=self.parameters)


Collections = Annotated[tuple[CollectionConfig, ...], BeforeValidator(_listed)]


class DebuggerHookConfig(Spoken):
    """What Debugger's hook saves in the container, and where. s3_output_path: the job's output_path by default."""

    s3_output_path: str | None = None
    container_local_output_path: str | None = None
    hook_parameters: TextMap = None
    collection_configs: Collections = ()

    def __init__(
        self,
        s3_output_path: str | None = None,
        container_local_output_path: str | None = None,
        hook_parameters: Mapping[str, str] | None = None,
        collection_configs: Sequence[CollectionConfig] | None = None,
    ) -> None:
        where = {"s3_output_path": s3_output_path, "container_local_output_path": container_local_output_path}
        super().__init__(**{**where, "hook_parameters": hook_parameters, "collection_configs": collection_configs})

    def configuration(self, base: str | None, rules: Sequence[Rule]) -> dict[str, Any]:
        """In CreateTrainingJob's spelling. base: the job's output_path. rules: their collections are saved too."""
        wanted = [c for rule in rules for c in rule.collections_to_save] + list(self.collection_configs)
        return _given(
            S3OutputPath=self.s3_output_path or base,
            LocalPath=self.container_local_output_path,
            HookParameters=self.hook_parameters,
            CollectionConfigurations=[c.configuration() for i, c in enumerate(wanted) if c not in wanted[:i]],
        )


class TensorBoardOutputConfig(Spoken):
    """Where SageMaker keeps what a job writes for TensorBoard. container_local_output_path: where the job writes it."""

    s3_output_path: str
    container_local_output_path: str | None = None

    def __init__(self, s3_output_path: str, container_local_output_path: str | None = None) -> None:
        where = {"s3_output_path": s3_output_path, "container_local_output_path": container_local_output_path}
        super().__init__(**where)

    def configuration(self) -> dict[str, Any]:
        """In CreateTrainingJob's spelling."""
        return _given(S3OutputPath=self.s3_output_path, LocalPath=self.container_local_output_path)


class _Rule(Spoken):
    """What rules of both kinds have. image_uri: None is the service's own."""

    name: str = Field(min_length=1)
    image_uri: str | None = None
    instance_type: str | None = None
    container_local_output_path: str | None = None
    s3_output_path: str | None = None
    volume_size_in_gb: int | None = Field(None, ge=1)
    rule_parameters: TextMap = None

    def configuration(self, evaluator: str) -> dict[str, Any]:
        """In CreateTrainingJob's spelling. evaluator: image of the built-in rules."""
        return _given(
            RuleConfigurationName=self.name,
            RuleEvaluatorImage=self.image_uri or evaluator,
            InstanceType=self.instance_type,
            VolumeSizeInGB=self.volume_size_in_gb,
            LocalPath=self.container_local_output_path,
            S3OutputPath=self.s3_output_path,
            RuleParameters=self.rule_parameters or None,
        )


class Rule(_Rule):
    """A rule that watches a job's tensors: one of Debugger's (`sagemaker`), or your own (`custom`)."""

    collections_to_save: Collections = ()

    @classmethod
    def sagemaker(cls, base_config: str | Mapping[str, Any], name: str | None = None, **more: Any) -> Rule:
        """A built-in rule. base_config: its name, e.g. "VanishingGradient", or what v2's rule_configs gave for it.

        more: container_local_output_path, s3_output_path, other_trials_s3_input_paths, rule_parameters,
        collections_to_save. Raises SpecError.
        """
        base = _base_config(base_config)
        own = base["DebugRuleConfiguration"]
        saved = [
            CollectionConfig(c.get("CollectionName"), c.get("CollectionParameters", {}))
            for c in base.get("CollectionConfigurations", ())
        ]
        parameters = {**_others(more.pop("other_trials_s3_input_paths", None)), **own.get("RuleParameters", {})}
        parameters |= _texts(more.pop("rule_parameters", None)) or {}
        more["collections_to_save"] = more.get("collections_to_save") or saved
        return cls(**{"name": name or own.get("RuleConfigurationName"), "rule_parameters": parameters, **more})

    @classmethod
    def custom(
        cls,
        name: str,
        image_uri: str,
        instance_type: str,
        volume_size_in_gb: int,
        source: str | None = None,
        rule_to_invoke: str | None = None,
        **more: Any,
    ) -> Rule:
        """A rule of your own, run in image_uri. source: its file on S3. more: as for `sagemaker`. Raises SpecError."""
        parameters = _others(more.pop("other_trials_s3_input_paths", None))
        parameters |= _called(source, rule_to_invoke) | (_texts(more.pop("rule_parameters", None)) or {})
        machine = {"image_uri": image_uri, "instance_type": instance_type, "volume_size_in_gb": volume_size_in_gb}
        return cls(**{"name": name, "rule_parameters": parameters, **machine, **more})


class ProfilerRule(_Rule):
    """A rule that watches a job's use of its hosts: one of the profiler's (`sagemaker`), or your own (`custom`)."""

    @classmethod
    def sagemaker(cls, base_config: Any, name: str | None = None, **more: Any) -> ProfilerRule:
        """A built-in rule. base_config: its name, e.g. "ProfilerReport", or what v2's rule_configs gave for it.

        more: container_local_output_path, s3_output_path. Raises SpecError.
        """
        own = base_config if isinstance(base_config, str) else getattr(base_config, "rule_name", None)
        parameters = getattr(base_config, "rule_parameters", {"rule_to_invoke": own})
        return cls(**{"name": name or own, "rule_parameters": parameters, **more})

    @classmethod
    def custom(
        cls,
        name: str,
        image_uri: str,
        instance_type: str,
        volume_size_in_gb: int,
        source: str | None = None,
        rule_to_invoke: str | None = None,
        **more: Any,
    ) -> ProfilerRule:
        """A rule of your own, run in image_uri. source: its file on S3. Raises SpecError."""
        parameters = _called(source, rule_to_invoke) | (_texts(more.pop("rule_parameters", None)) or {})
        machine = {"image_uri": image_uri, "instance_type": instance_type, "volume_size_in_gb": volume_size_in_gb}
        return cls(**{"name": name, "rule_parameters": parameters, **machine, **more})


class ProfilerConfig(Spoken):
    """What the profiler collects. framework_profile_params: the service's ProfilingParameters, or v2's object."""

    s3_output_path: str | None = None
    system_monitor_interval_millis: Annotated[int | None, BeforeValidator(_interval)] = None
    framework_profile_params: Annotated[dict[str, str] | None, BeforeValidator(_profiling_parameters)] = None
    disable_profiler: bool = False

    def __init__(
        self,
        s3_output_path: str | None = None,
        system_monitor_interval_millis: int | None = None,
        framework_profile_params: Any = None,
        *,
        disable_profiler: bool = False,
    ) -> None:
        what = {"s3_output_path": s3_output_path, "system_monitor_interval_millis": system_monitor_interval_millis}
        more = {"framework_profile_params": framework_profile_params, "disable_profiler": disable_profiler}
        super().__init__(**{**what, **more})

    def configuration(self, base: str | None) -> dict[str, Any]:
        """In CreateTrainingJob's spelling. base: the job's output_path."""
        return _given(
            S3OutputPath=None if self.disable_profiler else self.s3_output_path or base,
            DisableProfiler=self.disable_profiler,
            ProfilingIntervalInMilliseconds=self.system_monitor_interval_millis,
            ProfilingParameters=self.framework_profile_params,
        )


def _base_config(value: object) -> Mapping[str, Any]:
    if isinstance(value, str):
        return {"DebugRuleConfiguration": {"RuleConfigurationName": value, "RuleParameters": {"rule_to_invoke": value}}}
    return value if isinstance(value, Mapping) and "DebugRuleConfiguration" in value else _nothing(value)


def _nothing(value: object) -> Mapping[str, Any]:
    raise SpecError([f"base_config is {seen(value)}; expected a rule's name, e.g. 'VanishingGradient'"], "Rule")


def _others(paths: Sequence[str] | None) -> dict[str, str]:
    return {f"other_trial_{i}": path for i, path in enumerate(paths or ())}


def _called(source: str | None, rule: str | None) -> dict[str, str]:
    if bool(source) != bool(rule):
        raise SpecError(["source and rule_to_invoke go together; give both or none"], "custom")
    if source and not source.startswith("s3://"):
        raise SpecError([f"source is {shown(source)}; expected s3://bucket/key: hdp uploads no rules"], "custom")
    return _given(source_s3_uri=source, rule_to_invoke=rule)


def _given(**values: Any) -> dict[str, Any]:
    return {k: v for k, v in values.items() if v is not None}
