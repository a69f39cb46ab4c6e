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

``"instance_groups": [...]`` beside the strategy says on which of the estimator's groups the ranks run; with several,
processes_per_host may be a number for each: ``{"large": 8, "small": 2}``.

Every strategy is a strict model: unknown keys, truthy texts and impossible numbers are refused.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator

from hdp.contract import mpi
from hdp.contract.launch import Kind, LaunchSpec
from hdp.contract.redact import redact_mpi_options
from hdp.estimator.faults import Strict, of_validation, seen, shown
from hdp.estimator.groups import InstanceGroup, numbers, of_distribution, unlike
from hdp.estimator.spelling import did_you_mean

#: More than any machine has cores today; a larger number is a slip.
MAX_PROCESSES_PER_HOST = 1024

ProcessesPerHost = Annotated[int | None, Field(ge=1, le=MAX_PROCESSES_PER_HOST)]


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


_STRATEGIES: Mapping[str, tuple[Kind, type[Strategy]]] = {
    "hdp": ("hdp", Hdp),
    "mpi": ("mpi", Mpi),
    "torch_distributed": ("torch_distributed", TorchDistributed),
    "horovod": ("horovod", Horovod),
    "smdistributed": ("smdistributed", DataParallel),
    "multi_worker_mirrored_strategy": ("multi_worker_mirrored_strategy", MultiWorkerMirrored),
    "apart": ("apart", Apart),
}
_REFUSED = {
    "pytorchddp": "use {'hdp': {'enabled': True}} or {'torch_distributed': {'enabled': True}}; "
    "DistributedDataParallel runs under both",
    "parameter_server": "it isn't maintained any more; use {'hdp': {'enabled': True}} or "
    "{'multi_worker_mirrored_strategy': {'enabled': True}}",
    "pytorchxla": "use {'torch_distributed': {'enabled': True}}",
    "modelparallel": "it is closed and AWS-only; use {'hdp': {'enabled': True}} or torch's FSDP under it",
}


def parse(distribution: object, groups: Sequence[InstanceGroup] | None = ()) -> tuple[LaunchSpec, list[str]]:
    """The launch that `distribution` (a dictionary, or None) asks for, and the faults found in it.

    groups: the estimator's instance_groups; None: they have faults, so nothing is said about which has ranks.
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
        launch, found = _strategy(name, options)
        faults += found
        if launch:
            launches[str(name)] = launch
    if len(launches) > 1:
        names = " and ".join(repr(n) for n in launches)
        faults.append(f"distribution enables {names}; one job has one launcher: keep one of them")
    launch = next(iter(launches.values()), LaunchSpec())
    if groups is None or (faults and not launches):
        return launch, faults
    chosen, found = of_distribution(distribution.get("instance_groups"), groups, bool(launches))
    if not found:
        found = unlike(launch.processes_by_group, chosen, f"distribution.{next(iter(launches), '')}")
    return replace(launch, groups=chosen), faults + found


def _strategy(name: object, options: object) -> tuple[LaunchSpec | None, list[str]]:
    """One entry of the dictionary. The launch is None where it is off or faulty."""
    if name in _REFUSED:
        return None, [f"distribution.{name} isn't supported: {_REFUSED[str(name)]}"]
    if name not in _STRATEGIES:
        known = ", ".join(_STRATEGIES)
        return None, [f"distribution.{name} is unknown{did_you_mean(name, _STRATEGIES)} (known: {known})"]
    where = f"distribution.{name}"
    if name == "smdistributed":
        options, faults = _dataparallel(options)
        if faults:
            return None, faults
        where += ".dataparallel"
    if not isinstance(options, Mapping):
        return None, [f"{where} is {seen(options)}; expected a dictionary: {_shape(str(name))}"]
    return _validated(str(name), options, where)


def _dataparallel(options: object) -> tuple[object, list[str]]:
    """What is under ``smdistributed.dataparallel``, and the faults beside it."""
    if not isinstance(options, Mapping):
        return None, [f"distribution.smdistributed is {seen(options)}; expected {_shape('smdistributed')}"]
    if not options:
        return None, [f"distribution.smdistributed is empty; expected {_shape('smdistributed')}"]
    faults = []
    for key in options:
        if key in _REFUSED:
            faults.append(f"distribution.smdistributed.{key} isn't supported: {_REFUSED[key]}")
        elif key != "dataparallel":
            hint = did_you_mean(key, ["dataparallel"])
            faults.append(f"distribution.smdistributed.{key} is unknown{hint}; expected {_shape('smdistributed')}")
    return options.get("dataparallel"), faults


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
    fields = strategy.model_dump(exclude={"enabled"})
    options = {k: fields.pop(k) for k in ("wire_dtype",) if k in fields}
    options = {k: v for k, v in options.items() if v != type(strategy).model_fields[k].default}
    launch = LaunchSpec(kind=kind, options=options, processes_by_group=by_group, **fields)
    return (launch if strategy.enabled else None), []


def _shape(name: str) -> str:
    """The smallest right dictionary for `name`, as the user would type it."""
    inner = {"dataparallel": {"enabled": True}} if name == "smdistributed" else {"enabled": True}
    return repr({name: inner})
