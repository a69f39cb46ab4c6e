"""Which image a job runs in: the user's, or one looked up by the versions of the framework. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from hdp.contract.launch import LaunchSpec
from hdp.estimator import images, instances
from hdp.estimator.engines.docker.images import default_image
from hdp.estimator.rules import Target
from hdp.estimator.settings import Settings

#: Stands for an image in the plan of a job whose region isn't known here.
IMAGE_STAND_IN = "stand-in-for-the-missing-image-uri"
#: The last minor of each framework whose images have Amazon's data parallel library (v2's tables).
_LAST_WITH_LIBRARY = {"tensorflow": (2, 11), "pytorch": (2, 2)}


@dataclass(frozen=True)
class Choice:
    """The image of a job."""

    uri: str | None = None
    """None: the engine needs none."""
    rule_evaluator: str = IMAGE_STAND_IN
    """The image of Debugger's own rules, where the job has some."""
    notes: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()


def choose(s: Settings, framework: str | None, launch: LaunchSpec, target: Target, region: str | None) -> Choice:
    """The image of a job with these settings. framework: of the estimator's class. region: None where none is known."""
    evaluator, faults = _evaluator(s, region if target.cloud else None)
    faults += (*_p5_faults(s, launch), *_cpu_faults(s, launch)) if target.cloud else ()
    if s.image_uri or not (target.can.needs_image or target.name == "docker"):
        return Choice(s.image_uri, evaluator, faults=faults)
    if target.name == "docker":
        return Choice(default_image(framework, launch.kind), evaluator, faults=faults)
    if not target.cloud:
        return Choice()
    try:
        uri, notes = _looked_up(s, framework, launch, region)
    except ValueError as exc:
        return Choice(IMAGE_STAND_IN, evaluator, (), (*faults, str(exc)))
    return Choice(uri, evaluator, notes, (*faults, *_library_faults(s, framework, launch)))


def _looked_up(
    s: Settings, framework: str | None, launch: LaunchSpec, region: str | None
) -> tuple[str, tuple[str, ...]]:
    """The image's URI, and what to say of it. Raises ValueError with the fault's line."""
    if framework is None:
        raise ValueError("image_uri is missing; the sagemaker engine runs a container image: give its URI")
    if s.framework_version is None:
        also = " (py_version alone names no image)" if s.py_version else ""
        raise ValueError(f"framework_version is missing{also}; give it and py_version, or image_uri")
    table = _table(s, framework, launch)
    kind = _instance_type(s)
    images.processor_of(kind)
    found = images.find(table, s.framework_version, s.py_version)
    notes = (found.note,) if found.note else ()
    if region is None:
        if table == "pytorch-smp":
            images.smp_cuda(found.tag, kind)
        return IMAGE_STAND_IN, (*notes, f"the image depends on the region; {IMAGE_STAND_IN} stands for it")
    uri = images.uri(table, found, kind, region)
    return uri, (*notes, f"image, by {images.tables(table).source}: {uri}")


def _table(s: Settings, framework: str, launch: LaunchSpec) -> str:
    """Which of the tables has the image, as in v2."""
    if framework == "pytorch" and launch.model_parallel and launch.kind == "torch_distributed":
        return "pytorch-smp"
    return "pytorch-training-compiler" if framework == "pytorch" and s.compiler_config else framework


def _instance_type(s: Settings) -> str:
    """The type that decides; of several, the first with GPUs, as in v2."""
    kinds = [g.instance_type for g in s.groups]
    return next((k for k in kinds if images.family_of(k)[:1] in ("g", "p")), kinds[0])


def _p5_faults(s: Settings, launch: LaunchSpec) -> tuple[str, ...]:
    """v2's own rule."""
    kind = next((g.instance_type for g in s.groups if "p5.48xlarge" in g.instance_type), None)
    if kind is None or launch.kind != "smdistributed":
        return ()
    also = "'torch_distributed': {'enabled': True}"
    return (f"distribution.smdistributed: on {kind} Amazon's library needs torchrun: add {also} beside it",)


def _cpu_faults(s: Settings, launch: LaunchSpec) -> tuple[str, ...]:
    """Amazon's library reduces on GPUs alone; v2 has a list of four types, this refuses those that surely have none."""
    kinds = [g.instance_type for g in s.groups]
    if not launch.data_parallel or any(instances.gpus(kind) != 0 for kind in kinds):
        return ()
    return (
        f"distribution.smdistributed: Amazon's library needs GPUs, and {kinds[0]} has none; choose a type such as "
        "ml.p4d.24xlarge, or use {'hdp': {'enabled': True}}",
    )


def _library_faults(s: Settings, framework: str | None, launch: LaunchSpec) -> tuple[str, ...]:
    """Whether the image has the library that the distribution asks for."""
    last = _LAST_WITH_LIBRARY.get(framework or "")
    minor = tuple(int(p) for p in (s.framework_version or "0").split(".")[:2] if p.isdecimal())
    if last is None or minor <= last or not launch.data_parallel:
        return ()
    known = ".".join(map(str, last))
    return (
        f"distribution.smdistributed: Amazon's library isn't in the {framework} images after {known}, and "
        f"framework_version is {s.framework_version!r}; use {{'hdp': {{'enabled': True}}}}, or give image_uri",
    )


def _evaluator(s: Settings, region: str | None) -> tuple[str, tuple[str, ...]]:
    if region is None or all(rule.image_uri for rule in s.rules):
        return IMAGE_STAND_IN, ()
    try:
        return images.rule_evaluator(region), ()
    except ValueError as exc:
        return IMAGE_STAND_IN, (str(exc),)
