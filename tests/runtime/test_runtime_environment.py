"""Contract files -> TrainingEnvironment -> SM_* variables; the agent's settings."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hdp.contract import hyperparameters as hp
from hdp.contract.errors import ContractError
from hdp.contract.files import Layout, write_json
from hdp.contract.secret import read_secret
from hdp.runtime.environment import TrainingEnvironment, count_gpus, load
from hdp.runtime.settings import load_settings
from hdp.runtime.variables import sm_variables

#: The toolkit's list (5.1.4), without SM_HP_* and SM_CHANNEL_*.
TOOLKIT = re.findall(
    r"\w+",
    """
HOSTS CURRENT_HOST CURRENT_INSTANCE_TYPE CURRENT_INSTANCE_GROUP CURRENT_INSTANCE_GROUP_HOSTS INSTANCE_GROUPS
INSTANCE_GROUPS_DICT DISTRIBUTION_INSTANCE_GROUPS IS_HETERO NETWORK_INTERFACE_NAME HPS USER_ENTRY_POINT USER_ARGS
FRAMEWORK_PARAMS FRAMEWORK_MODULE RESOURCE_CONFIG INPUT_DATA_CONFIG INPUT_DIR INPUT_CONFIG_DIR OUTPUT_DIR
OUTPUT_DATA_DIR OUTPUT_INTERMEDIATE_DIR MODEL_DIR MODULE_DIR MODULE_NAME CHANNELS
NUM_GPUS NUM_CPUS NUM_NEURONS LOG_LEVEL TRAINING_ENV
""",
)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """The contract files of algo-2 of two hosts in two groups, with a channel "my-data"."""
    layout = Layout(tmp_path)
    layout.config.mkdir(parents=True)
    values = {"batch-size": 32, "lr": 0.1, "sagemaker_program": "src/train.py", "sagemaker_job_name": "job-1"}
    write_json(layout.hyperparameters, {k: hp.encode(v) for k, v in values.items()})
    groups = [
        {"instance_group_name": "cpu", "instance_type": "ml.c5.xlarge", "hosts": ["algo-1"]},
        {"instance_group_name": "gpu", "instance_type": "ml.p4d.24xlarge", "hosts": ["algo-2"]},
    ]
    write_json(
        layout.resourceconfig,
        {
            "current_host": "algo-2",
            "hosts": ["algo-1", "algo-2"],
            "network_interface_name": "eth0",
            "current_instance_type": "ml.p4d.24xlarge",
            "current_group_name": "gpu",
            "instance_groups": groups,
        },
    )
    write_json(layout.inputdataconfig, {"my-data": {"TrainingInputMode": "File"}})
    return layout


def environment(layout: Layout) -> TrainingEnvironment:
    return load(layout, {}, layout.root / "dev")


def test_every_variable_of_the_toolkit_is_there(layout: Layout) -> None:
    """Each name that the toolkit sets."""
    assert {f"SM_{n}" for n in TOOLKIT} - set(sm_variables(environment(layout))) == set()


def test_values_of_the_host(layout: Layout) -> None:
    """algo-2 in group gpu."""
    got = sm_variables(environment(layout))
    assert json.loads(got["SM_HOSTS"]) == ["algo-1", "algo-2"]
    assert got["SM_CURRENT_HOST"] == "algo-2"
    assert got["SM_CURRENT_INSTANCE_GROUP"] == "gpu"
    assert json.loads(got["SM_CURRENT_INSTANCE_GROUP_HOSTS"]) == ["algo-2"]
    assert json.loads(got["SM_INSTANCE_GROUPS"]) == ["cpu", "gpu"]
    assert got["SM_IS_HETERO"] == "true"
    assert got["SM_NETWORK_INTERFACE_NAME"] == "eth0"
    assert got["SM_MODULE_NAME"] == "train"
    assert json.loads(got["SM_TRAINING_ENV"])["hyperparameters"] == {"batch-size": 32, "lr": 0.1}


def with_distribution(layout: Layout, *groups: str) -> TrainingEnvironment:
    parameters = {"sagemaker_hdp_enabled": True, "sagemaker_distribution_instance_groups": list(groups)}
    write_json(layout.hyperparameters, {k: hp.encode(v) for k, v in parameters.items()})
    return environment(layout)


@pytest.mark.parametrize(
    ("groups", "members", "listed", "local_size"),
    [
        (["cpu"], ["algo-1"], ["cpu"], 0),
        (["gpu"], ["algo-2"], ["gpu"], 1),
        (["gpu", "cpu"], ["algo-1", "algo-2"], ["gpu", "cpu"], 1),
        ([], ["algo-1", "algo-2"], ["cpu", "gpu"], 1),
    ],
)
def test_ranks_are_on_hosts_of_the_distributions_groups(
    layout: Layout, groups: list[str], members: list[str], listed: list[str], local_size: int
) -> None:
    """On algo-2 of the group gpu: the hosts with ranks, and what the toolkit's variables say of them."""
    env = with_distribution(layout, *groups)
    assert (list(env.members), env.local_size) == (members, local_size)
    got = sm_variables(env)
    assert json.loads(got["SM_DISTRIBUTION_INSTANCE_GROUPS"]) == listed
    assert json.loads(got["SM_INSTANCE_GROUPS_DICT"])["gpu"]["hosts"] == ["algo-2"]
    told = json.loads(got["SM_TRAINING_ENV"])
    assert (told["distribution_hosts"], told["hosts"]) == (members, ["algo-1", "algo-2"])
    assert (told["master_hostname"], told["is_master"]) == (members[0], members[0] == "algo-2")


def test_a_group_that_is_not_there_is_named(layout: Layout) -> None:
    """The distribution's group, and those that there are."""
    with pytest.raises(ContractError, match=r"in the instance group 'gpus', which has no host here; .* 'cpu', 'gpu'$"):
        with_distribution(layout, "gpus")


def test_names_that_a_shell_cannot_use_come_twice(layout: Layout) -> None:
    """batch-size, my-data: under the toolkit's name and under one that every shell can use."""
    got = sm_variables(environment(layout))
    assert got["SM_HP_BATCH-SIZE"] == got["SM_HP_BATCH_SIZE"] == "32"
    assert got["SM_CHANNEL_MY-DATA"] == got["SM_CHANNEL_MY_DATA"] == str(layout.channel("my-data"))


def test_the_exact_name_wins(layout: Layout) -> None:
    """a-b=1 and a_b=2: SM_HP_A_B is 2, SM_HP_A-B is 1."""
    write_json(layout.hyperparameters, {"a-b": "1", "a_b": "2"})
    got = sm_variables(environment(layout))
    assert (got["SM_HP_A_B"], got["SM_HP_A-B"]) == ("2", "1")


def test_the_launchers_own_hyperparameters_stay_out(layout: Layout) -> None:
    """sagemaker_*: in SM_FRAMEWORK_PARAMS, in neither SM_HPS nor SM_USER_ARGS."""
    got = sm_variables(environment(layout))
    assert set(json.loads(got["SM_HPS"])) == {"batch-size", "lr"}
    assert "sagemaker" not in got["SM_USER_ARGS"]
    assert json.loads(got["SM_FRAMEWORK_PARAMS"])["sagemaker_job_name"] == "job-1"


@pytest.mark.parametrize(
    ("devices", "visible", "expected"),
    [
        (["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"], None, 2),
        (["nvidia0", "nvidia1"], "", 0),
        (["nvidia0", "nvidia1"], "1", 1),
        (["nvidia0", "nvidia1"], "0,-1,1", 1),
        ([], "0,1", 0),
    ],
)
def test_gpus_are_counted(tmp_path: Path, devices: list[str], visible: str | None, expected: int) -> None:
    """Device nodes, and what CUDA_VISIBLE_DEVICES leaves of them."""
    for name in devices:
        (tmp_path / name).touch()
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert count_gpus(tmp_path, environ) == expected


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"hosts": [], "current_host": "a"}, "hosts is [], expected a list of host names"),
        ({"hosts": ["a", "a"], "current_host": "a"}, "hosts has a name twice"),
        ({"hosts": ["a"], "current_host": "b"}, "current_host is 'b', expected one of ['a']"),
    ],
)
def test_a_malformed_resourceconfig_is_named(layout: Layout, config: dict, message: str) -> None:
    """The message has the file and the fault."""
    write_json(layout.resourceconfig, config)
    with pytest.raises(ContractError) as caught:
        environment(layout)
    assert message in str(caught.value)
    assert str(layout.resourceconfig) in str(caught.value)


def test_a_hyperparameter_that_is_not_text_is_named(layout: Layout) -> None:
    """{"epochs": 3} rather than {"epochs": "3"}."""
    write_json(layout.hyperparameters, {"epochs": 3})
    with pytest.raises(ContractError, match="'epochs' is 3, expected JSON in a string"):
        environment(layout)


def test_a_channel_name_that_is_a_path_is_refused(layout: Layout) -> None:
    """ ".." would be the folder above."""
    write_json(layout.inputdataconfig, {"..": {}})
    with pytest.raises(ContractError, match=r"channel name '\.\.' isn't allowed"):
        environment(layout)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("HDP_CONTROL_PORT", "0", "HDP_CONTROL_PORT is '0', expected a port"),
        ("HDP_TENSORFLOW_PORTS", "8890,", "HDP_TENSORFLOW_PORTS is '', expected a port"),
        ("HDP_STOP_TIMEOUT_SECONDS", "-1", "expected zero seconds or more"),
        ("HDP_START_TIMEOUT_SECONDS", "soon", "HDP_START_TIMEOUT_SECONDS is 'soon', expected a number"),
        ("HDP_HOST_ADDRESSES", "[1]", r"HDP_HOST_ADDRESSES is '\[1\]', expected an object"),
    ],
)
def test_a_malformed_setting_is_named(name: str, value: str, message: str) -> None:
    """Variable, value, expectation."""
    with pytest.raises(ContractError, match=message):
        load_settings({name: value})


def test_a_short_secret_is_refused_and_not_shown(tmp_path: Path) -> None:
    """31 bytes: the message has the size, not the content."""
    path = tmp_path / "secret"
    path.write_bytes(b"s" * 31)
    path.chmod(0o600)
    with pytest.raises(ContractError, match="31 bytes") as caught:
        read_secret(path)
    assert "sss" not in str(caught.value)


def test_a_secret_that_others_may_read_is_refused(tmp_path: Path) -> None:
    """Mode 0640: the message has file, mode and remedy."""
    path = tmp_path / "secret"
    path.write_bytes(b"s" * 32)
    path.chmod(0o640)
    with pytest.raises(ContractError, match=r"secret has mode 640: others could read it; use 600"):
        read_secret(path)
