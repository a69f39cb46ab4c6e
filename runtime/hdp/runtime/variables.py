"""`TrainingEnvironment` -> the ``SM_*`` variables that a training script reads. Pure.

The list is that of SageMaker's training toolkit 5.1.4 and of the v3 drivers. Two differences, both on purpose:

- The toolkit only upper-cases names, and ``SM_HP_BATCH-SIZE`` or ``SM_CHANNEL_MY-DATA`` can't be used from a shell.
  Such a variable is there under its toolkit name, for scripts that read it, and under a safe one: ``SM_HP_BATCH_SIZE``.
- Lists and dicts are JSON, where the toolkit prints Python.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from hdp.contract import hyperparameters as hp
from hdp.contract.env import shell_safe
from hdp.runtime.environment import TrainingEnvironment


def sm_variables(env: TrainingEnvironment) -> dict[str, str]:
    """Every ``SM_*`` variable of the job, without what differs by rank."""
    values = {**_job(env), **_paths(env), **_host(env)}
    values["SM_TRAINING_ENV"] = _json(_training_env(env))
    parameters = {k: hp.text(v) for k, v in env.user_hyperparameters.items()}
    channels = {c: str(env.layout.channel(c)) for c in env.channels}
    return {**values, **_named("SM_HP_", parameters), **_named("SM_CHANNEL_", channels)}


def _named(prefix: str, values: Mapping[str, str]) -> dict[str, str]:
    safe = {prefix + shell_safe(k): v for k, v in sorted(values.items())}
    exact = {prefix + k.upper(): v for k, v in sorted(values.items()) if "=" not in k and "\0" not in k}
    return {k: v.replace("\0", "") for k, v in {**safe, **exact}.items()}


def _job(env: TrainingEnvironment) -> dict[str, str]:
    program = PurePosixPath(env.entry_point)
    return {
        "SM_HPS": _json(hp.plain(env.user_hyperparameters)),
        "SM_USER_ENTRY_POINT": env.entry_point,
        "SM_ENTRY_SCRIPT": env.entry_point,
        "SM_USER_ARGS": _json(env.argv),
        "SM_FRAMEWORK_PARAMS": _json(hp.plain(env.framework_parameters)),
        "SM_FRAMEWORK_MODULE": "",
        "SM_MODULE_DIR": env.submit_directory or str(env.layout.code),
        "SM_MODULE_NAME": program.stem if env.entry_point else "",
        "SM_CHANNELS": _json(list(env.channels)),
        "SM_INPUT_DATA_CONFIG": _json(env.input_data_config),
        "SM_LOG_LEVEL": str(env.log_level),
    }


def _paths(env: TrainingEnvironment) -> dict[str, str]:
    layout = env.layout
    paths = {
        "SM_INPUT_DIR": layout.root / "input",
        "SM_INPUT_CONFIG_DIR": layout.config,
        "SM_INPUT_DATA_DIR": layout.data,
        "SM_OUTPUT_DIR": layout.output,
        "SM_OUTPUT_DATA_DIR": layout.output_data,
        "SM_OUTPUT_INTERMEDIATE_DIR": layout.output / "intermediate",
        "SM_OUTPUT_FAILURE": layout.failure,
        "SM_MODEL_DIR": layout.model,
        "SM_SOURCE_DIR": layout.code,
        "SM_CHECKPOINT_DIR": layout.checkpoints,
    }
    return {k: str(v) for k, v in paths.items()}


def _host(env: TrainingEnvironment) -> dict[str, str]:
    resources = env.resources
    groups = {g.get("instance_group_name", ""): g for g in resources.instance_groups}
    values = {
        "SM_HOSTS": _json(list(resources.hosts)),
        "SM_HOST_COUNT": str(len(resources.hosts)),
        "SM_CURRENT_HOST": resources.current_host,
        "SM_CURRENT_HOST_RANK": str(resources.node_rank),
        "SM_CURRENT_INSTANCE_TYPE": resources.instance_type,
        "SM_CURRENT_INSTANCE_GROUP": resources.instance_group,
        "SM_CURRENT_INSTANCE_GROUP_HOSTS": _json(list(resources.group_hosts(resources.instance_group))),
        "SM_INSTANCE_GROUPS": _json(list(groups)),
        "SM_INSTANCE_GROUPS_DICT": _json(groups),
        "SM_DISTRIBUTION_INSTANCE_GROUPS": _json(_distribution_groups(env)),
        "SM_IS_HETERO": _json(len(groups) > 1),
        "SM_NETWORK_INTERFACE_NAME": resources.network_interface,
        "SM_RESOURCE_CONFIG": _json(resources.raw),
        "SM_NUM_GPUS": str(env.num_gpus),
        "SM_NUM_CPUS": str(env.num_cpus),
        "SM_NUM_NEURONS": "0",
    }
    if "topology" in resources.raw:
        values["SM_TOPOLOGY"] = _json(resources.raw["topology"])
    return values


def _distribution_groups(env: TrainingEnvironment) -> list[str]:
    """The groups with ranks; as in the toolkit, all are listed where the distribution names none."""
    if env.launch.groups or env.launch.kind == "none":
        return list(env.launch.groups)
    return [str(g.get("instance_group_name", "")) for g in env.resources.instance_groups]


def _training_env(env: TrainingEnvironment) -> dict[str, Any]:
    """The toolkit's summary of the job as one object."""
    layout, resources = env.layout, env.resources
    return {
        "channel_input_dirs": {c: str(layout.channel(c)) for c in env.channels},
        "current_host": resources.current_host,
        "current_instance_group": resources.instance_group,
        "current_instance_group_hosts": list(resources.group_hosts(resources.instance_group)),
        "current_instance_type": resources.instance_type,
        "distribution_hosts": list(env.members),
        "distribution_instance_groups": _distribution_groups(env),
        "framework_module": None,
        "hosts": list(resources.hosts),
        "hyperparameters": hp.plain(env.user_hyperparameters),
        "input_config_dir": str(layout.config),
        "input_data_config": dict(env.input_data_config),
        "input_dir": str(layout.root / "input"),
        "instance_groups": [g.get("instance_group_name", "") for g in resources.instance_groups],
        "is_hetero": len(resources.instance_groups) > 1,
        "is_master": resources.current_host == env.members[0],
        "job_name": env.job_name,
        "log_level": env.log_level,
        "master_hostname": env.members[0],
        "model_dir": str(layout.model),
        "module_dir": env.submit_directory or str(layout.code),
        "module_name": PurePosixPath(env.entry_point).stem if env.entry_point else "",
        "network_interface_name": resources.network_interface,
        "num_cpus": env.num_cpus,
        "num_gpus": env.num_gpus,
        "num_neurons": 0,
        "output_data_dir": str(layout.output_data),
        "output_dir": str(layout.output),
        "output_intermediate_dir": str(layout.output / "intermediate"),
        "resource_config": dict(resources.raw),
        "user_entry_point": env.entry_point,
    }


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
