"""The contract files of a training host as one frozen value, `TrainingEnvironment`.

Source of the files' shapes: SageMaker's training toolkit 5.1.4 and the API's service model. What the script sees of
it (the ``SM_*`` variables) is made by `hdp.runtime.variables`.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hdp.contract import hyperparameters as hp
from hdp.contract.delivery import RUNTIME_CHANNEL, SECRET_CHANNEL
from hdp.contract.errors import ContractError
from hdp.contract.files import Layout, is_channel_name, read_json
from hdp.contract.launch import LaunchSpec, from_hyperparameters

#: Channels that are no business of the script's.
_OURS = (RUNTIME_CHANNEL, SECRET_CHANNEL)
_GPU_DEVICE = re.compile(r"nvidia[0-9]+")


@dataclass(frozen=True)
class Resources:
    """Who is in the job, from ``resourceconfig.json``. All that is needed to reach the other hosts."""

    hosts: tuple[str, ...]
    current_host: str
    network_interface: str = ""
    instance_type: str = ""
    instance_group: str = ""
    instance_groups: tuple[Mapping[str, Any], ...] = ()
    raw: Mapping[str, Any] = field(default_factory=dict)

    @property
    def node_rank(self) -> int:
        """Index of this host in `hosts`."""
        return self.hosts.index(self.current_host)

    def group_hosts(self, group: str) -> tuple[str, ...]:
        """Hosts of the instance group `group`; empty where it is unknown."""
        found = [g for g in self.instance_groups if g.get("instance_group_name") == group]
        return tuple(found[0].get("hosts", ())) if found else ()


@dataclass(frozen=True)
class TrainingEnvironment:
    """All that a host knows about its job."""

    layout: Layout
    resources: Resources
    hyperparameters: Mapping[str, Any]
    """Decoded, the launcher's own ones too."""
    launch: LaunchSpec
    input_data_config: Mapping[str, Mapping[str, Any]]
    num_gpus: int
    num_cpus: int
    job_name: str = ""

    @property
    def user_hyperparameters(self) -> dict[str, Any]:
        """What the user passed: without the launcher's own."""
        return {k: v for k, v in self.hyperparameters.items() if not k.startswith(hp.RESERVED_PREFIX)}

    @property
    def framework_parameters(self) -> dict[str, Any]:
        """The launcher's own hyperparameters."""
        return {k: v for k, v in self.hyperparameters.items() if k.startswith(hp.RESERVED_PREFIX)}

    @property
    def channels(self) -> tuple[str, ...]:
        """Channel names, sorted."""
        return tuple(sorted(self.input_data_config))

    @property
    def entry_point(self) -> str:
        """The script, relative to the code folder; empty where none is set."""
        return str(self.hyperparameters.get("sagemaker_program") or "")

    @property
    def submit_directory(self) -> str:
        """URI or path of the code archive; empty where the code is in place already."""
        return str(self.hyperparameters.get("sagemaker_submit_directory") or "")

    @property
    def log_level(self) -> int:
        """Level of the runtime's own log, as in `logging`."""
        level = self.hyperparameters.get("sagemaker_container_log_level", logging.INFO)
        return int(level) if str(level).isdigit() else logging.INFO

    @property
    def argv(self) -> list[str]:
        """The script's arguments."""
        return hp.to_argv(self.user_hyperparameters)

    @property
    def members(self) -> tuple[str, ...]:
        """The hosts with ranks: all, or those of the instance groups that the distribution names."""
        named = {host for group in self.launch.groups for host in self.resources.group_hosts(group)}
        return tuple(h for h in self.resources.hosts if h in named) if self.launch.groups else self.resources.hosts

    @property
    def local_size(self) -> int:
        """Ranks on this host."""
        return self.launch.ranks_on(self.num_gpus, self.resources.instance_group)


def load_resources(layout: Layout) -> Resources:
    """Read ``resourceconfig.json``. Raises ContractError that names the file and the fault."""
    raw = read_json(layout.resourceconfig)
    hosts, current = raw.get("hosts"), raw.get("current_host")
    if not isinstance(hosts, list) or not hosts or not all(isinstance(h, str) and h for h in hosts):
        raise ContractError(f"{layout.resourceconfig}: hosts is {hosts!r}, expected a list of host names")
    if len(set(hosts)) != len(hosts):
        raise ContractError(f"{layout.resourceconfig}: hosts has a name twice: {hosts!r}")
    if not isinstance(current, str) or current not in hosts:
        raise ContractError(f"{layout.resourceconfig}: current_host is {current!r}, expected one of {hosts!r}")
    return Resources(
        hosts=tuple(hosts),
        current_host=current,
        network_interface=str(raw.get("network_interface_name") or ""),
        instance_type=str(raw.get("current_instance_type") or ""),
        instance_group=str(raw.get("current_group_name") or ""),
        instance_groups=tuple(raw.get("instance_groups") or ()),
        raw=raw,
    )


def load(layout: Layout, environ: Mapping[str, str], dev: Path = Path("/dev")) -> TrainingEnvironment:
    """Read the contract files below `layout`. Raises ContractError that names the file and the fault."""
    parameters, resources = _hyperparameters(layout), load_resources(layout)
    try:
        launch = from_hyperparameters(parameters)
    except (TypeError, ValueError) as exc:
        raise ContractError(f"{layout.hyperparameters}: the launcher's settings can't be read: {exc}") from exc
    _check_groups(layout, launch, resources)
    return TrainingEnvironment(
        layout=layout,
        resources=resources,
        hyperparameters=parameters,
        launch=launch,
        input_data_config=_input_data_config(layout),
        num_gpus=count_gpus(dev, environ),
        num_cpus=len(os.sched_getaffinity(0)),
        job_name=environ.get("TRAINING_JOB_NAME") or str(parameters.get("sagemaker_job_name") or ""),
    )


def _check_groups(layout: Layout, launch: LaunchSpec, resources: Resources) -> None:
    for group in launch.groups:
        if not resources.group_hosts(group):
            have = ", ".join(repr(g.get("instance_group_name")) for g in resources.instance_groups) or "none"
            raise ContractError(
                f"{layout.resourceconfig}: the distribution wants ranks in the instance group {group!r}, which has no "
                f"host here; the job's groups: {have}"
            )


def count_gpus(dev: Path, environ: Mapping[str, str]) -> int:
    """GPUs that a rank on this host may use: device nodes ``nvidia<N>``, fewer if CUDA_VISIBLE_DEVICES says so."""
    devices = sum(1 for entry in dev.iterdir() if _GPU_DEVICE.fullmatch(entry.name)) if dev.is_dir() else 0
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if devices == 0 or visible is None:
        return devices
    count = 0
    for entry in visible.split(","):
        if not entry.strip() or entry.strip().startswith("-"):
            break  # CUDA ignores everything from the first invalid entry on
        count += 1
    return count


def _hyperparameters(layout: Layout) -> dict[str, Any]:
    if not layout.hyperparameters.exists():
        return {}
    raw = read_json(layout.hyperparameters)
    wrong = sorted(k for k, v in raw.items() if not isinstance(v, str))
    if wrong:
        raise ContractError(
            f"{layout.hyperparameters}: {wrong[0]!r} is {json.dumps(raw[wrong[0]])[:80]}, expected JSON in a string"
        )
    return {k: hp.decode(v) for k, v in raw.items()}


def _input_data_config(layout: Layout) -> dict[str, Mapping[str, Any]]:
    if not layout.inputdataconfig.exists():
        return {}
    raw = read_json(layout.inputdataconfig)
    for name, value in raw.items():
        if not is_channel_name(name):
            raise ContractError(
                f"{layout.inputdataconfig}: channel name {name!r} isn't allowed; use 1 to 64 of A-Z a-z 0-9 . - _"
            )
        if not isinstance(value, dict):
            raise ContractError(f"{layout.inputdataconfig}: channel {name!r} is {value!r}, expected an object")
    return {name: value for name, value in raw.items() if name not in _OURS}
