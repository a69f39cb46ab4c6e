"""Rules between an estimator's arguments: what each says is fine, together they can't be."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from hdp.contract.uris import scheme
from hdp.estimator import git_config, groups, roles
from hdp.estimator.engines.base import Capabilities
from hdp.estimator.faults import shown
from hdp.estimator.inputs import scheme_faults, uri_faults
from hdp.estimator.metrics import definition_faults
from hdp.estimator.settings import Settings

#: 28 days: SageMaker's limit, which its API's model doesn't have.
MAX_RUN_SECONDS = 2_419_200


@dataclass(frozen=True)
class Target:
    """The engine that a job is for."""

    name: str
    can: Capabilities

    @property
    def cloud(self) -> bool:
        """Whether the hosts are SageMaker's."""
        return self.name == "sagemaker"


Rule = Callable[[Settings, Target], list[str]]


def faults_of(settings: Settings, target: Target, bad: frozenset[str]) -> list[str]:
    """One line for each rule that `settings` breaks; it begins with an argument's name.

    bad: arguments that are faulty by themselves, so that rules about them would only repeat it.
    """
    return [line for names, rule in _RULES if not bad & set(names) for line in rule(settings, target)]


def _groups(s: Settings, _: Target) -> list[str]:
    """What v2 says only at fit."""
    both = [n for n in ("instance_count", "instance_type") if s.instance_groups and n in s.model_fields_set]
    faults = [f"{n} can't go with instance_groups, whose groups have their own; leave one out" for n in both]
    return faults + groups.duplicates(s.instance_groups)


def _max_run(s: Settings, target: Target) -> list[str]:
    if not target.cloud or s.max_run <= MAX_RUN_SECONDS:
        return []
    return [f"max_run is {s.max_run}; on SageMaker at most {MAX_RUN_SECONDS} seconds (28 days)"]


def _spot_here(s: Settings, target: Target) -> list[str]:
    if not s.use_spot_instances or target.cloud:
        return []
    types = ", ".join(dict.fromkeys(repr(g.instance_type) for g in s.groups))
    return [f"use_spot_instances is for ml.* instance types, not {types}; leave it out"]


def _spot(s: Settings, _: Target) -> list[str]:
    if not s.use_spot_instances:
        return [] if s.max_wait is None else ["max_wait is for use_spot_instances=True only; leave it out"]
    faults = []
    if s.max_wait is None:
        faults.append(f"use_spot_instances needs max_wait, in seconds, of at least max_run ({s.max_run}); give it")
    elif s.max_wait < s.max_run:
        faults.append(f"max_wait is {s.max_wait}, less than max_run ({s.max_run}); it includes the run: raise it")
    if s.keep_alive_period_in_seconds:
        faults.append("keep_alive_period_in_seconds can't go with use_spot_instances; leave one out")
    return faults


def _checkpoint(s: Settings, target: Target) -> list[str]:
    if s.checkpoint_local_path is None:
        return []
    if s.checkpoint_s3_uri is None:
        where = "s3://bucket/prefix" + (" or file:///path" if "file" in target.can.uri_schemes else "")
        return [f"checkpoint_local_path needs checkpoint_s3_uri, where checkpoints are kept: give it ({where})"]
    if not PurePosixPath(s.checkpoint_local_path).is_absolute():
        return [f"checkpoint_local_path is {s.checkpoint_local_path!r}; expected an absolute path in the container"]
    return []


def _vpc(s: Settings, _: Target) -> list[str]:
    if bool(s.subnets) == bool(s.security_group_ids):
        return []
    given, missing = ("subnets", "security_group_ids") if s.subnets else ("security_group_ids", "subnets")
    return [f"{given} needs {missing} too; give both or none"]


def _registry(s: Settings, _: Target) -> list[str]:
    if s.training_repository_credentials_provider_arn and s.training_repository_access_mode != "Vpc":
        return ["training_repository_credentials_provider_arn needs training_repository_access_mode='Vpc'"]
    return []


def _code(s: Settings, _: Target) -> list[str]:
    """The script is there, as far as this machine can tell."""
    if s.entry_point is None:
        orphans = [n for n in ("source_dir", "dependencies") if getattr(s, n)]
        orphans += ["git_config"] if s.git_config is not None else []
        faults = [f"{n} needs entry_point, the script in it; give both or none" for n in orphans]
        return faults if s.image_uri or orphans else ["entry_point is missing; give the training script's path"]
    if s.entry_point.startswith("s3://"):
        return [f"entry_point is {shown(s.entry_point)}; expected a path: give the archive as source_dir"]
    if PurePosixPath(s.entry_point).suffix not in (".py", ".sh"):
        return [f"entry_point is {shown(s.entry_point)}; expected a .py or .sh file"]
    if s.git_config is not None:
        return [*git_config.parse(s.git_config)[1], *git_config.path_faults(s)]
    if s.source_dir is None:
        missing = not Path(s.entry_point).is_file()
        return [f"entry_point: {s.entry_point} isn't a file on this machine; check the path"] if missing else []
    return _source_dir(s.source_dir, s.entry_point)


def _source_dir(source_dir: str, entry_point: str) -> list[str]:
    faults = []
    inside = PurePosixPath(entry_point)
    if inside.is_absolute() or ".." in inside.parts:
        return [f"entry_point: {entry_point} must be a path inside source_dir, e.g. {inside.name!r}"]
    if scheme(source_dir):
        if not re.fullmatch(r"s3://[^/]+/.+\.tar\.gz", source_dir):
            faults.append(f"source_dir is {shown(source_dir)}; expected a folder, or s3://bucket/key.tar.gz")
    elif not Path(source_dir).is_dir():
        faults.append(f"source_dir: {source_dir} isn't a folder on this machine; check the path")
    elif not (Path(source_dir) / entry_point).is_file():
        faults.append(f"entry_point: {entry_point} isn't in source_dir {source_dir}; give its path inside it")
    return faults


def _dependencies(s: Settings, _: Target) -> list[str]:
    if s.dependencies and (s.source_dir or "").startswith("s3://"):
        return ["dependencies can't be added to an archive on S3; put them into it"]
    if s.git_config is not None:
        return []  # they are the repository's
    missing = [d for d in s.dependencies if not Path(d).exists()]
    return [f"dependencies: {d} doesn't exist on this machine; check the path" for d in missing]


def _role(s: Settings, target: Target) -> list[str]:
    if not target.can.needs_role or roles.is_arn(s.role):
        return []
    if not s.role:
        return [f"role is missing; the {target.name} engine needs the ARN of an IAM role"]
    by_name = target.can.resolves_names
    if by_name and roles.is_name(s.role):
        return []
    name = ", or a role's name" if by_name else ""
    return [f"role is {shown(s.role)}; expected its ARN, arn:aws:iam::<account>:role/<name>{name}"]


def _image(s: Settings, target: Target) -> list[str]:
    if target.name == "local" and s.image_uri:
        return [f"image_uri is {shown(s.image_uri)}, but the local engine runs no containers; leave it out"]
    if not target.can.needs_image or s.image_uri or target.can.resolves_names:
        return []
    version = f"; framework_version {s.framework_version!r} names no image by itself" if s.framework_version else ""
    return [f"image_uri is missing; the {target.name} engine runs a container image{version}: give its URI"]


def _watchers_here(s: Settings, target: Target) -> list[str]:
    """Debugger, profiler and compiler are AWS's; switching one off is fine anywhere."""
    asked = [n for n in _WATCHERS if n != "disable_profiler" and getattr(s, n)]
    asked += ["disable_profiler"] if s.disable_profiler is False else []
    where = "is for ml.* instance types: it's a service of SageMaker's; leave it out"
    return [] if target.cloud else [f"{n} {where}" for n in asked]


def _hook(s: Settings, _: Target) -> list[str]:
    """v2 leaves the hook out silently."""
    several = sum(g.instance_count for g in s.groups) > 1 or s.distribution
    if not s.debugger_hook_config or not s.checkpoint_local_path or not several:
        return []
    return ["debugger_hook_config can't go with checkpoint_local_path on several hosts, as AWS says; leave one out"]


def _profiler(s: Settings, _: Target) -> list[str]:
    if not s.disable_profiler:
        return []
    faults = ["rules has a ProfilerRule, which disable_profiler=True forbids; leave one out"] * bool(s.profiler_rules)
    if s.profiler_config and not s.profiler_config.disable_profiler:
        faults.append("profiler_config and disable_profiler=True contradict each other; leave one out")
    return faults


def _code_location(s: Settings, target: Target) -> list[str]:
    if s.code_location is None or target.cloud:
        return []
    return [f"code_location is for ml.* instance types: the {target.name} engine keeps code itself; leave it out"]


def _uri(name: str, s: Settings, _: Target) -> list[str]:
    value = getattr(s, name)
    return [] if value is None else uri_faults(value, name)


def _reachable(name: str, s: Settings, target: Target) -> list[str]:
    value = getattr(s, name)
    return [] if value is None or uri_faults(value, name) else scheme_faults(value, name, target.can)


def _checkpoint_here(s: Settings, target: Target) -> list[str]:
    if target.name in ("local", "docker") and (s.checkpoint_s3_uri or "").startswith("s3://"):
        return [
            f"checkpoint_s3_uri: the {target.name} engine keeps checkpoints in a folder; write file:///absolute/path"
        ]
    return []


def _metrics(s: Settings, _: Target) -> list[str]:
    return definition_faults([(m.Name, m.Regex) for m in s.metric_definitions])


_WATCHERS = ("debugger_hook_config", "rules", "profiler_config", "disable_profiler", "compiler_config")
_URIS = ("output_path", "checkpoint_s3_uri", "model_uri", "code_location")
_WHERE = ("instance_type", "instance_groups", "engine")
_RULES: tuple[tuple[tuple[str, ...], Rule], ...] = (
    (("instance_groups",), _groups),
    (("use_spot_instances", "max_wait", "max_run", "keep_alive_period_in_seconds"), _spot),
    (("use_spot_instances", *_WHERE), _spot_here),
    (("max_run", *_WHERE), _max_run),
    (("checkpoint_local_path", "checkpoint_s3_uri"), _checkpoint),
    (("subnets", "security_group_ids"), _vpc),
    (("training_repository_access_mode", "training_repository_credentials_provider_arn"), _registry),
    (("entry_point", "source_dir", "image_uri", "git_config"), _code),
    (("dependencies", "source_dir"), _dependencies),
    (("metric_definitions",), _metrics),
    ((*_WATCHERS, *_WHERE), _watchers_here),
    (("debugger_hook_config", "checkpoint_local_path", "checkpoint_s3_uri", *_WHERE), _hook),
    (("profiler_config", "disable_profiler", "rules"), _profiler),
    (("code_location", *_WHERE), _code_location),
    (("role", *_WHERE), _role),
    (("image_uri", *_WHERE), _image),
    *(((name,), partial(_uri, name)) for name in _URIS),
    *(((name, *_WHERE), partial(_reachable, name)) for name in _URIS),
    (("checkpoint_s3_uri", *_WHERE), _checkpoint_here),
)
