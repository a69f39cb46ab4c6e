"""Options, refusals, addresses, environment, GPUs: what is decided before anything starts."""

from __future__ import annotations

import json
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from engine_support import request

from hdp.contract.errors import EngineError
from hdp.estimator.engines.local import addresses, gpus, isolation, options, refusals, trees
from hdp.estimator.engines.local.addresses import Block, Ports
from hdp.estimator.engines.local.hostns import Support


def test_options_have_defaults() -> None:
    assert options.parse({}) == (
        {
            "stop_timeout_seconds": 120,
            "start_timeout_seconds": 600,
            "python": sys.executable,
            "namespaces": "auto",
            "instance_types": None,
            "run_carried": False,
            "network": None,
        },
        (),
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"stop_timeout": 5}, "engine_options.stop_timeout is unknown; did you mean 'stop_timeout_seconds'?"),
        ({"namespaces": "yes"}, "engine_options.namespaces: 'yes' isn't one of auto, off, required"),
        ({"stop_timeout_seconds": -1}, "engine_options.stop_timeout_seconds is -1; expected 0 or more"),
        ({"stop_timeout_seconds": "5"}, "engine_options.stop_timeout_seconds is '5' (str); expected a whole number"),
        ({"python": "no-such-python"}, "no executable 'no-such-python' is on this machine"),
    ],
)  # fmt: skip
def test_bad_options_are_refused(given: dict[str, object], said: str) -> None:
    _, faults = options.parse(given)
    assert len(faults) == 1 and said in faults[0]


def test_all_faults_of_options_come_together() -> None:
    _, faults = options.parse({"stop_timeout_seconds": -1, "python": "no-such-python", "netwrk": 1})
    assert len(faults) == 3


def channel(**more: object) -> dict[str, object]:
    return {"ChannelName": "train", "DataSource": {"S3DataSource": {"S3Uri": "s3://b/p"}}, **more}


def mode(name: str) -> dict[str, object]:
    return {"AlgorithmSpecification": {"TrainingInputMode": name}}


def group(name: str, count: int, kind: str = "local") -> dict[str, object]:
    return {"InstanceGroupName": name, "InstanceType": kind, "InstanceCount": count}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"InputDataConfig": [channel(InputMode="Stream")]}, "'train': input_mode='Stream': expected one of File"),
        ({**mode("Stream"), "InputDataConfig": [channel()]}, "input_mode='Stream'"),
        ({"InputDataConfig": [channel(DataSource={"S3DataSource": {"S3Uri": "/a"}})]}, "'/a' can't be read"),
        ({"OutputDataConfig": {"S3OutputPath": "gs://b"}}, "output_path='gs://b': expected file:///a/path or s3://"),
        ({"OutputDataConfig": {"S3OutputPath": "file://host/x"}}, "output_path='file://host/x'"),
        ({"CheckpointConfig": {"S3Uri": "s3://b/c"}}, "checkpoint_s3_uri='s3://b/c'"),
        ({"CheckpointConfig": {"S3Uri": "file:///c", "LocalPath": "/x"}}, "checkpoint_local_path='/x'"),
        ({"ResourceConfig": {"InstanceType": "local", "InstanceCount": 251}}, "instance_count=251"),
        ({"ResourceConfig": {"InstanceType": "local_gpu", "InstanceCount": 2}}, "1 NVIDIA device(s) can be used here"),
        (
            {"ResourceConfig": {"InstanceGroups": [group("a", 200), group("b", 51)]}},
            "instance_groups: instance_count=251: the local engine runs 1 to 250 hosts",
        ),
        (
            {"ResourceConfig": {"InstanceGroups": [group("a", 1, "local_gpu"), group("b", 1, "local_gpu")]}},
            "instance_groups: instance_type=\"local_gpu\" with 2 host(s): 1 NVIDIA device(s) can be used here",
        ),
        (
            {"ResourceConfig": {"InstanceGroups": [group("a", 1), group("b", 1, "ml.c5.xlarge")]}},
            "instance_groups: instance_type='ml.c5.xlarge': the local engine serves \"local\" and \"local_gpu\"",
        ),
        ({"TrainingJobName": "bad_name"}, "job_name='bad_name'"),
        (
            {"HyperParameters": {"sagemaker_parameter_server_enabled": "true"}},
            "sagemaker_parameter_server_enabled: only AWS's own containers serve it",
        ),
        (
            {"InputDataConfig": [channel(DataSource={"FileSystemDataSource": {"FileSystemId": "fs-01234567"}})]},
            "channel 'train': the local engine mounts no EFS or FSx",
        ),
    ],
)  # fmt: skip
def test_what_this_version_cannot_run_is_refused(more: dict[str, object], said: str) -> None:
    faults = refusals.faults({**request("digits").training_job, **more}, usable_gpus=1)
    assert len(faults) == 1 and said in faults[0]


def test_a_good_request_has_no_faults() -> None:
    more: dict[str, object] = {"InputDataConfig": [channel()], "CheckpointConfig": {"S3Uri": "file:///c"}}
    assert refusals.faults(request("digits", 4, None, **more).training_job, usable_gpus=0) == []


def test_an_address_block_has_one_free_address_a_host() -> None:
    block = addresses.choose(3, taken=())
    assert [address.rpartition(".")[2] for address in block.addresses] == ["1", "2", "3"]
    assert len({address.rpartition(".")[0] for address in block.addresses}) == 1
    assert (block.ports.control, block.ports.server) == (Ports().control, Ports().server)
    assert 20000 <= block.ports.master < 32000
    assert len(set(addresses.tensorflow_ports(block))) == 3, "TensorFlow listens at every address of the machine"


def test_a_port_that_is_listened_on_is_not_free() -> None:
    """Somebody listens on the control port of the block's second host. Expected: the block isn't free."""
    block = addresses.choose(2, taken=())
    assert addresses.is_free(block)
    with socket.create_server((block.addresses[1], block.ports.control)):
        assert not addresses.is_free(block)


def test_a_port_that_tensorflow_would_not_get_is_not_free() -> None:
    """Somebody listens at another address, on the port of the second host's worker. Expected: the block isn't free."""
    block = addresses.choose(2, taken=())
    assert addresses.is_free(block)
    with socket.create_server(("127.0.0.1", addresses.tensorflow_ports(block)[1])):
        assert not addresses.is_free(block)


def test_other_ports_are_taken_where_the_fixed_ones_are_occupied_everywhere() -> None:
    """Somebody listens on 0.0.0.0 and the server port. Expected: a block with other ports."""
    with socket.create_server(("0.0.0.0", 0)) as occupied:
        fixed = Ports(server=occupied.getsockname()[1])
        assert addresses.choose(1, taken=(), fixed=fixed).ports.server != fixed.server


def test_no_block_is_an_error_that_says_what_to_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "is_free", lambda block: False)
    with pytest.raises(EngineError, match=r"no free block of 2 loopback addresses.*ss -ltn"):
        addresses.choose(2, taken=())


def settings(**more: object) -> trees.AgentSettings:
    block = Block(("127.1.2.1", "127.1.2.2"), Ports(1, 2, 3, 6, 4))
    plain = trees.AgentSettings(
        "digits",
        "algo-1",
        Path("/j/secret"),
        Path("/opt/ml"),
        Path("/t/algo-1"),
        ("algo-1", "algo-2"),
        block,
        "lo",
        (),
        20,
        60,
        False,
    )
    return replace(plain, **more)  # type: ignore[arg-type]  # a test's shorthand


def test_what_the_agent_is_told() -> None:
    told = trees.agent_environment(settings(), {}, {})
    assert json.loads(told.pop("HDP_HOST_ADDRESSES")) == {"algo-1": "127.1.2.1", "algo-2": "127.1.2.2"}
    assert told == {
        "SAGEMAKER_BASE_DIR": "/opt/ml",
        "HDP_SECRET_FILE": "/j/secret",
        "HDP_RUN_DIR": "/t/algo-1",
        "HDP_CONTROL_PORT": "1",
        "HDP_SERVER_PORT": "2",
        "HDP_MASTER_PORT": "3",
        "HDP_HOROVOD_PORT": "6",
        "HDP_TENSORFLOW_PORTS": "4,5",
        "HDP_STOP_TIMEOUT_SECONDS": "20",
        "HDP_START_TIMEOUT_SECONDS": "60",
        "HDP_LOG_TIMESTAMPS": "1",
        "HDP_DIE_WITH_PARENT": "1",
        "TRAINING_JOB_NAME": "digits",
        "CUDA_VISIBLE_DEVICES": "",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "MPIR_CVAR_ALLREDUCE_DEVICE_COLLECTIVE": "0",
    }


def test_mpich_is_kept_to_the_hosts_own_network() -> None:
    """It would find out that they share a machine, and leave the network out."""
    told = trees.agent_environment(settings(interface="eth0"), {"UCX_TLS": "all"}, {})
    assert (told["UCX_NET_DEVICES"], told["UCX_TLS"]) == ("eth0", "all"), "the user's own wish goes before ours"
    assert trees.agent_environment(settings(interface="eth0"), {}, {})["UCX_TLS"] == "tcp,self"


def test_encryption_is_told_where_the_request_asks_for_it() -> None:
    assert trees.agent_environment(settings(encrypt=True), {"HDP_ENCRYPT": "0"}, {})["HDP_ENCRYPT"] == "1"
    assert trees.agent_environment(settings(), {"HDP_ENCRYPT": "1"}, {})["HDP_ENCRYPT"] == "1", "the user's own wish"


def test_the_users_variables_go_over_the_clients_and_ours_over_both() -> None:
    inherited = {"PATH": "/bin", "A": "client", "HDP_SECRET_FILE": "client"}
    told = trees.agent_environment(settings(), {"A": "user", "HDP_SECRET_FILE": "user"}, inherited)
    assert (told["PATH"], told["A"], told["HDP_SECRET_FILE"]) == ("/bin", "user", "/j/secret")


def test_another_jobs_ranks_leave_no_trace() -> None:
    """A client that is itself a rank. Expected: none of its rank variables in the job."""
    inherited = dict.fromkeys(
        ["RANK", "WORLD_SIZE", "MASTER_ADDR", "SM_HOSTS", "TORCHELASTIC_RUN_ID", "HDP_SERVER_SOCKET"], "7"
    )
    told = trees.agent_environment(settings(), {}, inherited)
    assert not set(inherited) & set(told)


def test_contract_files() -> None:
    """Two hosts, one channel with the job's input mode. Expected: SageMaker's shapes."""
    job = request("digits", 2, InputDataConfig=[channel(ContentType="text/csv")]).training_job
    assert trees.resource_config(job, "algo-2") == {
        "current_host": "algo-2",
        "current_instance_type": "local",
        "current_group_name": "homogeneousCluster",
        "hosts": ["algo-1", "algo-2"],
        "instance_groups": [
            {"instance_group_name": "homogeneousCluster", "instance_type": "local", "hosts": ["algo-1", "algo-2"]}
        ],
        "network_interface_name": "lo",
    }
    assert trees.input_data_config(job, "algo-1") == {
        "train": {
            "TrainingInputMode": "File",
            "S3DistributionType": "FullyReplicated",
            "RecordWrapperType": "None",
            "ContentType": "text/csv",
        }
    }


def test_contract_files_of_groups() -> None:
    """1 host of "feeders", then 2 of "trainers", a channel for each. Expected: each host's own group and channel."""
    resources = {"InstanceGroups": [group("feeders", 1), group("trainers", 2, "local_gpu")]}
    sources = [{"S3Uri": "file:///d", "InstanceGroupNames": [name]} for name in ("feeders", "trainers")]
    channels = [{"ChannelName": f"c{i}", "DataSource": {"S3DataSource": source}} for i, source in enumerate(sources)]
    job = request("digits", ResourceConfig=resources, InputDataConfig=channels).training_job
    found = trees.resource_config(job, "algo-3")
    assert (found["current_group_name"], found["current_instance_type"]) == ("trainers", "local_gpu")
    assert found["hosts"] == ["algo-1", "algo-2", "algo-3"]
    assert found["instance_groups"] == [
        {"instance_group_name": "feeders", "instance_type": "local", "hosts": ["algo-1"]},
        {"instance_group_name": "trainers", "instance_type": "local_gpu", "hosts": ["algo-2", "algo-3"]},
    ]
    assert [list(trees.input_data_config(job, host)) for host in found["hosts"]] == [["c0"], ["c1"], ["c1"]]


def test_gpus_go_to_the_groups_that_ask_for_them() -> None:
    """3 GPUs; groups of 1 local_gpu, 2 local and 2 local_gpu hosts. Expected: one a host, by the hosts' order."""
    resources = {"InstanceGroups": [group("a", 1, "local_gpu"), group("b", 2), group("c", 2, "local_gpu")]}
    job = request("digits", ResourceConfig=resources).training_job
    hosts = [f"algo-{i}" for i in range(1, 6)]
    assert [gpus.devices_of(job, host, ("5", "6", "7")) for host in hosts] == [("5",), (), (), ("6",), ("7",)]
    assert gpus.gpus_by_group(job, 7) == {"a": 2, "b": 0, "c": 2}


def test_gpus_are_counted_and_divided(tmp_path: Path) -> None:
    """Five device files and some that are no GPUs, four of them allowed, two hosts. Expected: two each."""
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidia4", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    usable = gpus.usable_gpus({"CUDA_VISIBLE_DEVICES": "4,3,2,1"}, tmp_path)
    job = request("digits", ResourceConfig={"InstanceType": "local_gpu", "InstanceCount": 2}).training_job
    assert gpus.usable_gpus({}, tmp_path) == ("0", "1", "2", "3", "4")
    assert [gpus.devices_of(job, host, usable) for host in ("algo-1", "algo-2")] == [("4", "3"), ("2", "1")]
    assert gpus.devices_of(request("digits").training_job, "algo-1", usable) == ()


@pytest.mark.parametrize(
    ("wanted", "support", "needed", "means"),
    [
        ("auto", Support("root"), "/home/x", "root"),
        ("off", Support("root"), "/home/x", "none"),
        ("auto", Support("none", "EPERM"), "/home/x", "none"),
        ("auto", Support("user"), "/opt/ml/jobs", "none"),
    ],
)
def test_how_hosts_are_kept_apart(wanted: str, support: Support, needed: str, means: str) -> None:
    assert isolation.decide(wanted, support, [Path(needed)], opt_ml_exists=True).means == means


def test_what_is_missing_is_said() -> None:
    said = isolation.differences(Support("none", "unshare: Operation not permitted"), opt_ml_exists=False)
    assert "no mount and UTS namespaces" in said[1] and "(unshare: Operation not permitted)" in said[1]
