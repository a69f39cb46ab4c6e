"""From an estimator's arguments to one checked, frozen value: every fault of the call in one SpecError."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from hdp.contract.errors import EngineError, SpecError
from hdp.contract.launch import LaunchSpec
from hdp.estimator import distribution, hyperparameters, request, rules, settings, validate
from hdp.estimator.engines import registry
from hdp.estimator.engines.base import Capabilities, Engine
from hdp.estimator.faults import seen, shown
from hdp.estimator.groups import too_many
from hdp.estimator.image_choice import choose
from hdp.estimator.rules import Target
from hdp.estimator.settings import Settings
from hdp.estimator.spelling import nearest

_VERBS = ("capabilities", "validate_options", "bundle_uri", "put_bundle", "submit", "describe", "logs", "stop", "list")
#: Arguments whose own rules say more than the walker would.
_RULED = ("role", "output_path", "checkpoint_s3_uri", "checkpoint_local_path", "model_uri")


@dataclass(frozen=True)
class Prepared:
    """An estimator's arguments, checked."""

    settings: Settings
    launch: LaunchSpec
    hyperparameters: Mapping[str, Any]
    target: Target
    engine: Engine
    engine_options: Mapping[str, Any]
    framework: str | None
    """The one that the estimator's class is for."""


def prepare(given: Mapping[str, Any], refused: Mapping[str, str], what: str, framework: str | None = None) -> Prepared:
    """Check `given`, the arguments as the user wrote them. Raises SpecError with every fault.

    refused: arguments that the class `what` doesn't take, and what to do instead. framework: its own.
    """
    s, bad, faults = settings.parse(given, refused)
    groups = None if "instance_groups" in bad else s.instance_groups
    engine, target, found = _engine(s, bad)
    bad |= {"engine", "instance_type", "instance_groups"} if found else frozenset()
    faults += found
    launch, found = distribution.parse(s.distribution, groups, target.cloud)
    faults += found + too_many(launch.groups, target.cloud)
    own = len(request.own_hyperparameters(_provisional(s, launch, {}, target)))
    values, found = hyperparameters.parse(s.hyperparameters, own)
    faults += found
    options, found = _options(s, engine)
    faults += found
    faults += rules.faults_of(s, target, bad)
    if not bad & {"engine", "instance_type", "instance_groups", "image_uri", "framework_version", "py_version"}:
        faults += choose(s, framework, launch, target, None).faults
    faults += _walked(_provisional(s, launch, values, target), target, faults)
    if faults or engine is None:  # where there is no engine, a fault says why
        raise SpecError(faults, what)
    return Prepared(s, launch, values, target, engine, options, framework)


def relaxed_for(target: Target) -> validate.Relaxed:
    """What this engine doesn't ask for. Of an engine that is unknown, because of a fault, nothing is asked."""
    return validate.Relaxed("file" in target.can.uri_schemes, not target.cloud, not target.cloud)


def _engine(s: Settings, bad: frozenset[str]) -> tuple[Engine | None, Target, list[str]]:
    """The engine that serves these settings, if there is one, and the faults found."""
    nowhere = Target("", Capabilities(uri_schemes=("file", "s3")))
    if not isinstance(s.engine, (str, type(None))):
        missing = [v for v in _VERBS if not hasattr(s.engine, v)]
        if missing:
            return None, nowhere, [f"engine is {seen(s.engine)}; expected a name or an engine (it lacks {missing[0]})"]
        own = cast(Engine, s.engine)
        return own, Target(own.name, own.capabilities()), []
    if s.engine is None and bad & {"instance_type", "instance_groups"}:
        return None, nowhere, []
    name, faults = (s.engine, []) if s.engine else _engine_of_all(s)
    if not faults and s.boto_session is not None and name != "sagemaker":
        faults = [f"boto_session is for the sagemaker engine, and this is {name}; leave it out"]
    if faults:
        return None, nowhere, faults
    try:
        return (*_named(name, s.boto_session), [])
    except EngineError as exc:
        return None, nowhere, [str(exc)]


def _engine_of_all(s: Settings) -> tuple[str, list[str]]:
    """Name of the engine that serves every type of host, and the faults found."""
    engines: dict[str, str] = {}
    faults = []
    for group in s.groups:
        try:
            engines.setdefault(_engine_for(group.instance_type), group.instance_type)
        except ValueError as exc:
            faults.append(f"instance_groups: {exc}" if s.instance_groups else str(exc))
    if len(engines) > 1:
        which = " and ".join(f"{kind!r} runs on the {name} engine" for name, kind in engines.items())
        faults.append(f"instance_groups: {which}; a job has one engine: choose types of one of them")
    return next(iter(engines), ""), faults


def _engine_for(instance_type: str) -> str:
    """Name of the engine that serves `instance_type`. Raises ValueError with the fault's text."""
    try:
        return registry.engine_for_instance_type(instance_type)
    except ValueError:
        if "." not in instance_type:
            raise
        near = nearest("ml." + instance_type.lower().removeprefix("ml."), validate.instance_types())
        if near is None:
            raise
        raise ValueError(f"instance_type={shown(instance_type)} is unknown; did you mean {near!r}?") from None


def _named(name: str, boto_session: object) -> tuple[Engine, Target]:
    engine = registry.get_engine(name, **({} if boto_session is None else {"boto_session": boto_session}))
    return engine, Target(name, engine.capabilities())


def _options(s: Settings, engine: Engine | None) -> tuple[Mapping[str, Any], list[str]]:
    if s.engine_options is not None and not isinstance(s.engine_options, Mapping):
        return {}, [f"engine_options is {seen(s.engine_options)}; expected a dictionary"]
    if engine is not None:
        options, faults = engine.validate_options(s.engine_options or {})
        return options, list(faults)
    return {}, []


def _provisional(s: Settings, launch: LaunchSpec, values: Mapping[str, Any], target: Target) -> request.Job:
    """A job with a stand-in for what only `fit` knows."""
    code = request.Code(s.entry_point, "s3://bucket/sourcedir.tar.gz") if s.entry_point else None
    return request.Job(s, "job", launch, values, code=code, engine_name=target.name, region="region")


def _walked(job: request.Job, target: Target, faults: list[str]) -> list[str]:
    """What the service's model refuses, less what `faults` say already."""
    said = {name: None for name in _RULED if any(f.startswith(name) for f in faults)}
    clean = replace(job, settings=job.settings.model_copy(update=said))
    return validate.faults_of(request.build(clean).training_job, relaxed_for(target))
