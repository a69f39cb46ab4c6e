"""The `distribution` dictionary: which launcher starts the ranks and how many a host gets.

::

    {"hdp": {"enabled": True, "processes_per_host": 2}}
    {"mpi": {"enabled": True, "processes_per_host": 8, "custom_mpi_options": "-x NCCL_DEBUG=INFO"}}
    {"torch_distributed": {"enabled": True, "processes_per_host": 8}}
    {"horovod": {"enabled": True, "processes_per_host": 8}}
    {"smdistributed": {"dataparallel": {"enabled": True}}}
    {"multi_worker_mirrored_strategy": {"enabled": True}}
    {"apart": {"enabled": True, "processes_per_host": 8}}
    {} or None

On SageMaker also what only AWS's containers serve: ``{"smdistributed": {"modelparallel": {...}}}`` beside ``mpi`` or
``torch_distributed``, ``parameter_server``, ``pytorchxla``, ``pytorchddp`` (another name of ``smdistributed``).

``"instance_groups": [...]`` beside the strategy says on which of the estimator's groups the ranks run; with several,
processes_per_host may be a number for each: ``{"large": 8, "small": 2}``.

Every strategy is a strict model: unknown keys, truthy texts and impossible numbers are refused.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, field_validator

from hdp.contract import mpi
from hdp.contract.launch import Kind, LaunchSpec, data_parallel, model_parallel
from hdp.contract.redact import redact_mpi_options
from hdp.estimator.faults import Strict, of_validation, seen, shown
from hdp.estimator.groups import InstanceGroup, numbers, of_distribution, unlike
from hdp.estimator.spelling import did_you_mean

#: More than any machine has cores today; a larger number is a slip.
MAX_PROCESSES_PER_HOST = 1024

ProcessesPerHost = Annotated[int | None, Field(ge=1, le=MAX_PROCESSES_PER_HOST)]


def _parameters(value: object) -> object:
    """A dictionary, or what the JSON file of that name holds."""
    if not isinstance(value, (str, os.PathLike)):
        return value
    try:
        return json.loads(Path(value).read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise ValueError(f"{shown(value)} can't be read as a file of JSON: {exc}; give a dictionary") from exc


class Strategy(Strict):
    """What every strategy has. ``enabled`` must be said, and be a real bool."""

    enabled: bool


class Hdp(Strategy):
    """hdp's own launcher and collectives. processes_per_host: None is one a GPU, else one a host.

    wire_dtype: what sums of float32 travel as between hosts; "bfloat16" or "float16" halve what travels.
    """

    processes_per_host: ProcessesPerHost = None
    wire_dtype: Literal["float32", "bfloat16", "float16"] = "float32"


class TorchDistributed(Strategy):
    """Ranks started as torchrun starts them."""

    processes_per_host: ProcessesPerHost = None


class Horovod(Strategy):
    """Horovod without MPI: its gloo controller, with ranks that our agents start. With MPI, use ``mpi``."""

    processes_per_host: ProcessesPerHost = None


class Apart(Strategy):
    """Processes that know nothing of each other, each a world of one rank: the same work without communication.

    What they write below SM_MODEL_DIR, SM_OUTPUT_DATA_DIR and SM_CHECKPOINT_DIR is in folders of their own there.
    """

    processes_per_host: ProcessesPerHost = None


class MultiWorkerMirrored(Strategy):
    """TensorFlow's MultiWorkerMirroredStrategy: one process a host, described by TF_CONFIG. Its traffic isn't ours."""


class DataParallel(Strategy):
    """SageMaker's data parallel library, served by hdp here. custom_mpi_options: extra mpirun options."""

    custom_mpi_options: str = ""

    @field_validator("custom_mpi_options")
    @classmethod
    def _splittable(cls, text: str) -> str:
        try:
            shlex.split(text)
        except ValueError as exc:
            hidden = shown(redact_mpi_options(text))
            raise ValueError(f"{hidden} can't be split into arguments: {exc}; check its quotes") from exc
        return text


class ModelParallel(Strategy):
    """SageMaker's model parallel library, under ``mpi`` or ``torch_distributed``. parameters: its own, or a file."""

    parameters: Annotated[dict[str, Any], BeforeValidator(_parameters)] = Field(default_factory=dict)


class Mpi(DataParallel):
    """mpirun over all hosts. custom_mpi_options: replace ours of the same name; the plan shows the command line."""

    processes_per_host: ProcessesPerHost = None

    @field_validator("custom_mpi_options")
    @classmethod
    def _understood(cls, text: str) -> str:
        """What both MPIs would refuse is refused here; each has more options than we know."""
        if wrong := mpi.refused(mpi.parse(text, "openmpi")):
            raise ValueError(f"{shown(redact_mpi_options(text))} can't be used: {'; '.join(wrong)}")
        return text


class ParameterServer(Strategy):
    """TensorFlow's parameter servers, as AWS's containers start them."""


class PytorchXla(Strategy):
    """Ranks of the Training Compiler."""


_STRATEGIES: Mapping[str, tuple[Kind, type[Strategy]]] = {
    "hdp": ("hdp", Hdp),
    "mpi": ("mpi", Mpi),
    "torch_distributed": ("torch_distributed", TorchDistributed),
    "horovod": ("horovod", Horovod),
    "smdistributed": ("smdistributed", DataParallel),
    "multi_worker_mirrored_strategy": ("multi_worker_mirrored_strategy", MultiWorkerMirrored),
    "apart": ("apart", Apart),
    "pytorchddp": ("smdistributed", DataParallel),
    "modelparallel": ("none", ModelParallel),
    "parameter_server": ("parameter_server", ParameterServer),
    "pytorchxla": ("pytorchxla", PytorchXla),
}
#: What only AWS's containers serve, and what to use elsewhere.
_AMAZONS = {
    "pytorchddp": "use {'hdp': {'enabled': True}} or {'torch_distributed': {'enabled': True}}; "
    "DistributedDataParallel runs under both",
    "parameter_server": "it isn't maintained any more; use {'hdp': {'enabled': True}} or "
    "{'multi_worker_mirrored_strategy': {'enabled': True}}",
    "pytorchxla": "use {'torch_distributed': {'enabled': True}}",
    "modelparallel": "it is closed and AWS-only; use {'hdp': {'enabled': True}} or torch's FSDP under it",
}


def parse(
    distribution: object, groups: Sequence[InstanceGroup] | None = (), cloud: bool = False
) -> tuple[LaunchSpec, list[str]]:
    """The launch that `distribution` (a dictionary, or None) asks for, and the faults found in it.

    groups: the estimator's instance_groups; None: they have faults, so nothing is said about which has ranks.
    cloud: whether AWS's own containers may serve it.
    A strategy with ``enabled: False`` counts as absent, after its other keys were checked.
    """
    if distribution is None:
        distribution = {}
    if not isinstance(distribution, Mapping):
        return LaunchSpec(), [f"distribution is {seen(distribution)}; expected a dictionary like {_shape('hdp')}"]
    launches: dict[str, LaunchSpec] = {}
    faults: list[str] = []
    for name, options in distribution.items():
        if name == "instance_groups":
            continue
        launch, found = _strategy(name, options, cloud)
        faults += found
        if launch:
            launches[str(name)] = launch
    launches, found = _combined(launches, cloud)
    faults += found
    launch = next(iter(launches.values()), LaunchSpec())
    if groups is None or (faults and not launches):
        return launch, faults
    chosen, found = of_distribution(distribution.get("instance_groups"), groups, bool(launches))
    if not found:
        found = unlike(launch.processes_by_group, chosen, f"distribution.{next(iter(launches), '')}")
    return replace(launch, groups=chosen), faults + found


def _combined(launches: dict[str, LaunchSpec], cloud: bool) -> tuple[dict[str, LaunchSpec], list[str]]:
    """One launch of those enabled: a launcher, perhaps with a library of Amazon's that its ranks use."""
    library = launches.get("smdistributed")
    hosts = [name for name in launches if name != "smdistributed"]
    if library is None or not cloud or (not hosts and library.kind == "smdistributed"):
        return launches, _several(launches)
    wanted = ("torch_distributed",) if library.kind == "smdistributed" else ("mpi", "torch_distributed")
    if not hosts:
        return {}, ["distribution.smdistributed.modelparallel needs 'mpi' or 'torch_distributed' beside it, enabled"]
    if len(hosts) > 1 or hosts[0] not in wanted:
        return launches, _several(launches)
    own = library.library or data_parallel(library.custom_mpi_options)
    return {hosts[0]: replace(launches[hosts[0]], library=own)}, []


def _several(launches: Mapping[str, LaunchSpec]) -> list[str]:
    if len(launches) < 2:
        return []
    names = " and ".join(repr(n) for n in launches)
    return [f"distribution enables {names}; one job has one launcher: keep one of them"]


def _strategy(name: object, options: object, cloud: bool) -> tuple[LaunchSpec | None, list[str]]:
    """One entry of the dictionary. The launch is None where it is off or faulty."""
    if name in _AMAZONS and not cloud:
        return None, [f"distribution.{name} isn't supported: {_AMAZONS[str(name)]}"]
    known = [n for n in _STRATEGIES if n != "modelparallel" and (cloud or n not in _AMAZONS)]
    if name not in known:
        return None, [f"distribution.{name} is unknown{did_you_mean(name, known)} (known: {', '.join(known)})"]
    where = f"distribution.{name}"
    if name == "smdistributed":
        name, options, faults = _library(options, cloud)
        if faults:
            return None, faults
        where += ".modelparallel" if name == "modelparallel" else ".dataparallel"
    if not isinstance(options, Mapping):
        return None, [f"{where} is {seen(options)}; expected a dictionary: {_shape(str(name))}"]
    return _validated(str(name), options, where)


def _library(options: object, cloud: bool) -> tuple[str, object, list[str]]:
    """Which strategy is under ``smdistributed``, what it says, and the faults beside it."""
    name = "smdistributed"
    if not isinstance(options, Mapping):
        return name, None, [f"distribution.smdistributed is {seen(options)}; expected {_shape(name)}"]
    if not options:
        return name, None, [f"distribution.smdistributed is empty; expected {_shape(name)}"]
    known = ["dataparallel", *(["modelparallel"] if cloud else [])]
    faults = []
    for key in options:
        if key in _AMAZONS and not cloud:
            faults.append(f"distribution.smdistributed.{key} isn't supported: {_AMAZONS[key]}")
        elif key not in known:
            hint = did_you_mean(key, known)
            faults.append(f"distribution.smdistributed.{key} is unknown{hint}; expected {_shape(name)}")
    if not faults and len(options) > 1:
        faults = ["distribution.smdistributed has both dataparallel and modelparallel; keep one of them"]
    if "modelparallel" in options:
        return "modelparallel", options["modelparallel"], faults
    return name, options.get("dataparallel"), faults


def _validated(name: str, options: Mapping[Any, Any], where: str) -> tuple[LaunchSpec | None, list[str]]:
    kind, model = _STRATEGIES[name]
    keys = [k for k in options if not isinstance(k, str)]
    if keys:
        return None, [f"{where} has the key {seen(keys[0])}; expected text"]
    by_group, wrong = numbers(options.get("processes_per_host"), MAX_PROCESSES_PER_HOST, f"{where}.processes_per_host")
    if by_group or wrong:
        options = {**options, "processes_per_host": None}
    faults = (
        wrong if "enabled" in options else [*wrong, f"{where}.enabled is missing; say True or False: {_shape(name)}"]
    )
    try:
        strategy = model.model_validate({"enabled": False, **options})
    except ValidationError as exc:
        return None, [*faults, *of_validation(exc, model, where)]
    if faults:
        return None, faults
    if isinstance(strategy, ModelParallel):
        spec = LaunchSpec(library=model_parallel(strategy.parameters))
        return (spec if strategy.enabled else None), []
    fields = strategy.model_dump(exclude={"enabled"})
    options = {k: fields.pop(k) for k in ("wire_dtype",) if k in fields}
    options = {k: v for k, v in options.items() if v != type(strategy).model_fields[k].default}
    launch = LaunchSpec(kind=kind, options=options, processes_by_group=by_group, **fields)
    return (launch if strategy.enabled else None), []


def _shape(name: str) -> str:
    """The smallest right dictionary for `name`, as the user would type it."""
    if name in ("smdistributed", "modelparallel"):
        inner = "dataparallel" if name == "smdistributed" else name
        return repr({"smdistributed": {inner: {"enabled": True}}})
    return repr({name: {"enabled": True}})
