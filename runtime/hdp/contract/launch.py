"""How the choice of `distribution` travels to the hosts: as ``sagemaker_*`` hyperparameters, in v2's own names.

For ``mpi``, ``torch_distributed``, ``smdistributed`` and ``multi_worker_mirrored_strategy`` the names are those that
SageMaker's containers read, so a request that we build also runs in them. ``hdp``, ``horovod`` (without MPI) and
``apart`` (processes that know nothing of each other) add names of the same kind. ``parameter_server`` and
``pytorchxla`` are those of SageMaker's containers alone: no runtime of ours starts them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal[
    "none",
    "hdp",
    "mpi",
    "torch_distributed",
    "horovod",
    "smdistributed",
    "multi_worker_mirrored_strategy",
    "apart",
    "parameter_server",
    "pytorchxla",
]

_ENABLED: dict[str, Kind] = {
    "sagemaker_hdp_enabled": "hdp",
    "sagemaker_mpi_enabled": "mpi",
    "sagemaker_torch_distributed_enabled": "torch_distributed",
    "sagemaker_hdp_horovod_enabled": "horovod",
    "sagemaker_hdp_apart_enabled": "apart",
    "sagemaker_distributed_dataparallel_enabled": "smdistributed",
    "sagemaker_multi_worker_mirrored_strategy_enabled": "multi_worker_mirrored_strategy",
    "sagemaker_parameter_server_enabled": "parameter_server",
    "sagemaker_pytorch_xla_multi_worker_enabled": "pytorchxla",
}
_PROCESSES: dict[Kind, str] = {
    "hdp": "sagemaker_hdp_processes_per_host",
    "mpi": "sagemaker_mpi_num_of_processes_per_host",
    "torch_distributed": "sagemaker_torch_distributed_processes_per_host",
    "smdistributed": "sagemaker_hdp_processes_per_host",
    "horovod": "sagemaker_hdp_processes_per_host",
    "apart": "sagemaker_hdp_processes_per_host",
}
_MPI_OPTIONS: dict[Kind, str] = {
    "mpi": "sagemaker_mpi_custom_mpi_options",
    "smdistributed": "sagemaker_distributed_dataparallel_custom_mpi_options",
}
_HDP_OPTIONS = "sagemaker_hdp_options"
_GROUPS = "sagemaker_distribution_instance_groups"
_BY_GROUP = "sagemaker_hdp_processes_by_group"
#: Parameters of Amazon's model parallel library.
MODEL_PARALLEL = "mp_parameters"
#: What asks for a launcher or a library that only AWS's containers have.
AMAZONS = ("sagemaker_parameter_server_enabled", "sagemaker_pytorch_xla_multi_worker_enabled", MODEL_PARALLEL)


@dataclass(frozen=True)
class LaunchSpec:
    """Which launcher starts the ranks, how many on each host (None: one a GPU, else one), and on which hosts."""

    kind: Kind = "none"
    processes_per_host: int | None = None
    custom_mpi_options: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    """The instance groups whose hosts have ranks; empty: every host has."""
    processes_by_group: dict[str, int] = field(default_factory=dict)
    """Ranks on each host of a group, where the groups differ."""
    library: dict[str, Any] = field(default_factory=dict)
    """Hyperparameters of a library of Amazon's that the ranks use; see `data_parallel` and `model_parallel`."""

    @property
    def data_parallel(self) -> bool:
        """Whether ranks use Amazon's data parallel library, where AWS's containers serve it."""
        return self.kind == "smdistributed" or self.library.get("sagemaker_distributed_dataparallel_enabled") is True

    @property
    def model_parallel(self) -> bool:
        """Whether ranks use Amazon's model parallel library."""
        return self.library.get("sagemaker_distributed_dataparallel_enabled") is False

    def ranks_on(self, gpus: int, group: str = "") -> int:
        """Ranks that a host of the instance group `group` with `gpus` GPUs gets."""
        if self.groups and group not in self.groups:
            return 0
        if self.kind in ("none", "multi_worker_mirrored_strategy", "parameter_server"):
            return 1
        return self.processes_by_group.get(group) or self.processes_per_host or max(gpus, 1)


def to_hyperparameters(spec: LaunchSpec) -> dict[str, Any]:
    """The hyperparameters, not yet encoded, that tell a container about `spec`."""
    names = {kind: name for name, kind in _ENABLED.items()}
    if spec.kind == "none":
        return {}
    out: dict[str, Any] = {names[spec.kind]: True}
    if spec.processes_per_host is not None and spec.kind in _PROCESSES:
        out[_PROCESSES[spec.kind]] = spec.processes_per_host
    if spec.kind in _MPI_OPTIONS:
        out[_MPI_OPTIONS[spec.kind]] = spec.custom_mpi_options
    if spec.options:
        out[_HDP_OPTIONS] = spec.options
    if spec.groups:
        out[_GROUPS] = list(spec.groups)
    if spec.processes_by_group:
        out[_BY_GROUP] = spec.processes_by_group
    return {**spec.library, **out}


def data_parallel(custom_mpi_options: str) -> dict[str, Any]:
    """`LaunchSpec.library` for Amazon's data parallel library under another launcher."""
    return to_hyperparameters(LaunchSpec("smdistributed", custom_mpi_options=custom_mpi_options))


def model_parallel(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """`LaunchSpec.library` for Amazon's model parallel library."""
    off = {"sagemaker_distributed_dataparallel_enabled": False}
    return {MODEL_PARALLEL: dict(parameters), **off} if parameters else off


def from_hyperparameters(values: Mapping[str, Any]) -> LaunchSpec:
    """Inverse of `to_hyperparameters`, from decoded hyperparameters; but for `library`, which only Amazon reads."""
    kinds = [kind for name, kind in _ENABLED.items() if values.get(name) is True]
    kind: Kind = kinds[0] if kinds else "none"
    processes = values.get(_PROCESSES.get(kind, ""))
    return LaunchSpec(
        kind=kind,
        processes_per_host=int(processes) if processes is not None else None,
        custom_mpi_options=str(values.get(_MPI_OPTIONS.get(kind, ""), "")),
        options=_as_dict(values.get(_HDP_OPTIONS, {})),
        groups=_as_names(values.get(_GROUPS, [])) if kind != "none" else (),
        processes_by_group={name: int(n) for name, n in _as_dict(values.get(_BY_GROUP, {})).items()},
    )


def tf_config(workers: Sequence[str], index: int) -> str:
    """TF_CONFIG of the worker with this index. workers: ``host:port`` of each."""
    return json.dumps({"cluster": {"worker": list(workers)}, "task": {"type": "worker", "index": index}})


def _as_names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"{_GROUPS} is {value!r}, expected a list of names")
    return tuple(value)


def _as_dict(value: Any) -> dict[str, Any]:
    parsed = json.loads(value) if isinstance(value, str) else value
    return dict(parsed)
