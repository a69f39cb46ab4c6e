"""Hosts of several kinds: what is refused, and the request that v2 would send."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hdp.estimator import Estimator, InstanceGroup, Plan, PyTorch, SpecError, TensorFlow, TrainingInput
from hdp.estimator.engines.base import Capabilities

from .conftest import IMAGE, ROLE, MemoryEngine

ARCHIVE = "s3://bucket/code/sourcedir.tar.gz"
FEEDERS = InstanceGroup("feeders", "ml.c5.9xlarge", 2)
TRAINERS = InstanceGroup("trainers", "ml.p4d.24xlarge", 1)
BOTH = [FEEDERS, TRAINERS]
HDP: dict[str, Any] = {"hdp": {"enabled": True}}


def estimator(**arguments: Any) -> PyTorch:
    base: dict[str, Any] = {"source_dir": ARCHIVE, "role": ROLE, "image_uri": IMAGE, "output_path": "s3://bucket/out"}
    return PyTorch("train.py", **{**base, "instance_groups": BOTH, **arguments})


def faults_of(**arguments: Any) -> tuple[str, ...]:
    with pytest.raises(SpecError) as raised:
        estimator(**arguments)
    return raised.value.faults


@pytest.mark.parametrize("named", [[TRAINERS], ["trainers"]])
def test_golden_request_of_two_groups(named: list[object], project: Path) -> None:
    """A group by its object, as in v2, or by its name: v2's resources, and the name as a hyperparameter."""
    distribution = {"mpi": {"enabled": True, "processes_per_host": 8}, "instance_groups": named}
    job = estimator(distribution=distribution, volume_size=100).plan(job_name="job-1").request.training_job
    assert job["ResourceConfig"] == {
        "InstanceGroups": [
            {"InstanceGroupName": "feeders", "InstanceType": "ml.c5.9xlarge", "InstanceCount": 2},
            {"InstanceGroupName": "trainers", "InstanceType": "ml.p4d.24xlarge", "InstanceCount": 1},
        ],
        "VolumeSizeInGB": 100,
    }
    assert {k: v for k, v in job["HyperParameters"].items() if "mpi" in k or "groups" in k} == {
        "sagemaker_mpi_enabled": "true",
        "sagemaker_mpi_num_of_processes_per_host": "8",
        "sagemaker_mpi_custom_mpi_options": '""',
        "sagemaker_distribution_instance_groups": '["trainers"]',
    }


def test_a_lone_group_is_the_distributions(project: Path) -> None:
    """As in v2: it needn't be named."""
    job = estimator(instance_groups=[TRAINERS], distribution=HDP).plan().request.training_job
    assert job["HyperParameters"]["sagemaker_distribution_instance_groups"] == '["trainers"]'


def test_groups_without_a_distribution(project: Path) -> None:
    """No hyperparameter of a launcher."""
    job = estimator().plan().request.training_job
    assert not [name for name in job["HyperParameters"] if "distribution" in name]


def test_the_type_that_smddp_is_told_is_the_ranks(project: Path) -> None:
    """Not that of the first group."""
    distribution = {"smdistributed": {"dataparallel": {"enabled": True}}, "instance_groups": ["trainers"]}
    job = estimator(distribution=distribution).plan().request.training_job
    assert job["HyperParameters"]["sagemaker_instance_type"] == '"ml.p4d.24xlarge"'


def test_channels_name_their_groups(project: Path) -> None:
    """In the API's field; the channels that the request adds have every group, since all must have some."""
    inputs = {"raw": TrainingInput("s3://b/raw/", instance_groups=[FEEDERS]), "labels": TrainingInput("s3://b/labels/")}
    inputs["labels"] = TrainingInput("s3://b/labels/", instance_groups=["trainers"])
    one = estimator(enable_network_isolation=True, model_uri="s3://b/model/")
    channels = one.plan(inputs).request.training_job["InputDataConfig"]
    assert {c["ChannelName"]: c["DataSource"]["S3DataSource"]["InstanceGroupNames"] for c in channels} == {
        "raw": ["feeders"],
        "labels": ["trainers"],
        "model": ["feeders", "trainers"],
        "code": ["feeders", "trainers"],
    }
    channels = one.plan("s3://b/raw/").request.training_job["InputDataConfig"]
    assert not [c for c in channels if "InstanceGroupNames" in c["DataSource"]["S3DataSource"]]


CASES: list[tuple[str, dict[str, Any], str]] = [
    (
        "no group named",
        {"distribution": HDP},
        "distribution.instance_groups is missing: say on which of the groups 'feeders', 'trainers' ranks run, e.g. "
        "['feeders']",
    ),
    (
        "misspelt group",
        {"distribution": {**HDP, "instance_groups": ["trainer"]}},
        "distribution.instance_groups: 'trainer' isn't one of the estimator's instance_groups ('feeders', 'trainers'); "
        "did you mean 'trainers'?",
    ),
    (
        "another group of that name",
        {"distribution": {**HDP, "instance_groups": [InstanceGroup("trainers", "ml.p4d.24xlarge", 4)]}},
        "distribution.instance_groups: InstanceGroup(instance_group_name='trainers', instance_type='ml.p4d.24xlarge', "
        "instance_count=4) differs from the estimator's group of that name; give the same one",
    ),
    (
        "a text for the list",
        {"distribution": {**HDP, "instance_groups": "trainers"}},
        "distribution.instance_groups is 'trainers' (str); expected a list of groups or of their names",
    ),
    (
        "a number in the list",
        {"distribution": {**HDP, "instance_groups": [2]}},
        "distribution.instance_groups has 2 (int); expected an InstanceGroup or the name of one",
    ),
    (
        "a group twice",
        {"distribution": {**HDP, "instance_groups": ["trainers", TRAINERS]}},
        "distribution.instance_groups has 'trainers' twice; once is enough",
    ),
    (
        "two groups on SageMaker",
        {"distribution": {**HDP, "instance_groups": BOTH}},
        "distribution.instance_groups names 'feeders', 'trainers'; on SageMaker a distribution has one group: "
        "choose one",
    ),
    (
        "numbers for one group",
        {
            "distribution": {
                "hdp": {"enabled": True, "processes_per_host": {"trainers": 8}},
                "instance_groups": ["trainers"],
            }
        },
        "distribution.hdp.processes_per_host is {'trainers': 8}; expected one number: several are for a distribution "
        "that names several instance_groups",
    ),
    (
        "a number that isn't one",
        {
            "distribution": {
                "hdp": {"enabled": True, "processes_per_host": {"trainers": 0}},
                "instance_groups": ["trainers"],
            }
        },
        "distribution.hdp.processes_per_host['trainers'] is 0 (int); expected a whole number from 1 to 1024",
    ),
    (
        "no strategy",
        {"distribution": {"hdp": {"enabled": False}, "instance_groups": ["trainers"]}},
        "distribution.instance_groups is for a strategy, and none is enabled; leave it out, or enable one",
    ),
    (
        "no groups to name",
        {"instance_groups": None, "instance_type": "ml.c5.9xlarge", "distribution": {**HDP, "instance_groups": ["a"]}},
        "distribution.instance_groups: there is no group 'a': the estimator has no instance_groups; give it "
        "[InstanceGroup('gpu', 'ml.p4d.24xlarge', 2), ...]",
    ),
    (
        "a count beside groups",
        {"instance_count": 2},
        "instance_count can't go with instance_groups, whose groups have their own; leave one out",
    ),
    (
        "a type beside groups",
        {"instance_type": "ml.c5.9xlarge"},
        "instance_type can't go with instance_groups, whose groups have their own; leave one out",
    ),
    (
        "a name twice",
        {"instance_groups": [FEEDERS, InstanceGroup("feeders", "ml.c5.xlarge", 1)]},
        "instance_groups: 'feeders' is the name of 2 groups; give each its own",
    ),
    (
        "no list",
        {"instance_groups": FEEDERS},
        "instance_groups: InstanceGroup(instance_group_name='feeders', instance_type='ml.c5.9xlarge', "
        "instance_count=2) (InstanceGroup) isn't a list of groups; write "
        "[InstanceGroup('gpu', 'ml.p4d.24xlarge', 2), ...]",
    ),
    (
        "a dictionary for a group",
        {"instance_groups": [{"instance_type": "x"}]},
        "instance_groups: {'instance_type': 'x'} (dict) isn't an InstanceGroup; write "
        "InstanceGroup('gpu', 'ml.p4d.24xlarge', 2)",
    ),
    (
        "too many",
        {"instance_groups": [InstanceGroup(f"g{i}", "ml.c5.xlarge", 1) for i in range(6)]},
        "instance_groups has 6 items; at most 5",
    ),
    (
        "two engines",
        {"instance_groups": [InstanceGroup("a", "local", 1), TRAINERS]},
        "instance_groups: 'local' runs on the local engine and 'ml.p4d.24xlarge' runs on the sagemaker engine; a job "
        "has one engine: choose types of one of them",
    ),
    (
        "unknown type",
        {"instance_groups": [InstanceGroup("a", "lokal", 1)]},
        "instance_groups: instance_type='lokal' is unknown; did you mean 'local'?; expected "
        '"local", "local_gpu" (this machine), "docker", or an Amazon type such as "ml.p4d.24xlarge"',
    ),
]


@pytest.mark.parametrize(("arguments", "fault"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_bad_groups_are_refused(arguments: dict[str, Any], fault: str, project: Path) -> None:
    """One line, whatever else depends on the groups."""
    assert faults_of(**arguments) == (fault,)


def test_spot_hosts_on_this_machine_name_every_type(project: Path) -> None:
    """local and local_gpu."""
    groups = [InstanceGroup("a", "local", 1), InstanceGroup("b", "local_gpu", 1), InstanceGroup("c", "local", 1)]
    found = faults_of(instance_groups=groups, use_spot_instances=True, max_wait=86400, image_uri=None)
    assert found == ("use_spot_instances is for ml.* instance types, not 'local', 'local_gpu'; leave it out",)


@pytest.mark.parametrize(
    ("group", "faults"),
    [
        (
            ("", "ml.c5.xlarge", 0),
            (
                "instance_group_name: '' can't be a group's name; expected 1 to 64 characters on one line",
                "instance_count is 0; expected 1 or more",
            ),
        ),
        (
            ("a\nb", None, True),
            (
                "instance_group_name: 'a\\nb' can't be a group's name; expected 1 to 64 characters on one line",
                "instance_type is None; expected text",
                "instance_count is True (bool); expected a whole number",
            ),
        ),
    ],
)
def test_a_bad_group_is_refused_alone(group: tuple[Any, Any, Any], faults: tuple[str, ...]) -> None:
    """Every fault of it, in one error."""
    with pytest.raises(SpecError) as raised:
        InstanceGroup(*group)
    assert raised.value.faults == faults


def test_channels_agree_with_the_groups(project: Path) -> None:
    """A group that isn't there, and a channel that names none beside one that does."""
    inputs = {"raw": TrainingInput("s3://b/raw/", instance_groups=["feeder"]), "labels": "s3://b/labels/"}
    with pytest.raises(SpecError) as raised:
        estimator().plan(inputs)
    assert raised.value.faults == (
        "inputs['raw'].instance_groups: 'feeder' isn't one of the estimator's instance_groups ('feeders', 'trainers'); "
        "did you mean 'feeders'?",
        "inputs['labels'].instance_groups is missing, and channel 'raw' has it: if one channel names groups, all must; "
        "for every host write instance_groups=['feeders', 'trainers']",
    )


@pytest.mark.parametrize("cls", [Estimator, PyTorch, TensorFlow])
def test_several_groups_have_ranks_elsewhere(cls: type[Any], project: Path, engine: MemoryEngine) -> None:
    """Not on SageMaker: in the hosts' order, whatever the distribution's."""
    distribution = {**HDP, "instance_groups": ["b", "a"]}
    groups = [InstanceGroup(name, "local", 1) for name in "abc"]
    plan = cls(entry_point="train.py", engine=engine, instance_groups=groups, distribution=distribution).plan()
    assert plan.launch.groups == ("a", "b")


def test_ranks_are_planned_on_the_named_group_only(project: Path) -> None:
    """2 feeders, then 2 trainers of 8 GPUs: 16 ranks, numbered within the group, which meet at its first host."""
    groups = [FEEDERS, InstanceGroup("trainers", "ml.p4d.24xlarge", 2)]
    plan = estimator(instance_groups=groups, distribution={**HDP, "instance_groups": ["trainers"]}).plan()
    assert [(r.host, r.node_rank, r.rank, r.local_rank) for r in plan.ranks] == [
        (f"algo-{3 + rank // 8}", rank // 8, rank, rank % 8) for rank in range(16)
    ]
    assert plan.ranks[15].environment["MASTER_ADDR"] == "algo-3"
    assert plan.ranks[15].environment["GROUP_WORLD_SIZE"] == "2"
    assert [(p.host, p.group, p.argv) for p in plan.others] == [
        (host, "feeders", ("python", "train.py")) for host in ("algo-1", "algo-2")
    ]
    assert plan.to_dict()["others"][0]["host"] == "algo-1"
    assert (
        "ranks run on hosts of trainers only; each host of feeders runs the script once, as a plain process: "
        "SM_CURRENT_INSTANCE_GROUP tells it where it is"
    ) in plan.notes


def test_hosts_with_unequal_numbers_of_ranks_are_planned(project: Path) -> None:
    """1 GPU, none, 2 GPUs, as the engine says by group: each host's ranks follow the last one's."""
    engine = MemoryEngine(Capabilities(gpus_by_group={"a": 1, "b": 0, "c": 2}, uri_schemes=("file", "s3")))
    groups = [InstanceGroup(name, "local", 1) for name in "abc"]
    distribution = {**HDP, "instance_groups": ["a", "b", "c"]}
    plan = PyTorch("train.py", engine=engine, instance_groups=groups, distribution=distribution).plan()
    assert [(r.group, r.rank, r.device, r.environment["LOCAL_WORLD_SIZE"]) for r in plan.ranks] == [
        ("a", 0, "cuda:0", "1"),
        ("b", 1, "cpu", "1"),
        ("c", 2, "cuda:0", "2"),
        ("c", 3, "cuda:1", "2"),
    ]
    assert "no processes_per_host: one rank a GPU, else one a host: 1, 2" in plan.notes


def test_each_group_may_have_its_number_of_ranks(project: Path) -> None:
    """2 hosts of 1 rank, then one of 3; and a group that is left out of the numbers is a fault."""
    engine = MemoryEngine()
    groups = [InstanceGroup("a", "local", 2), InstanceGroup("b", "local", 1), InstanceGroup("c", "local", 1)]

    def plan(numbers: dict[str, int]) -> Plan:
        distribution = {"hdp": {"enabled": True, "processes_per_host": numbers}, "instance_groups": ["a", "b"]}
        return PyTorch("train.py", engine=engine, instance_groups=groups, distribution=distribution).plan()

    made = plan({"b": 3, "a": 1})
    assert [(r.host, r.rank) for r in made.ranks] == [
        ("algo-1", 0),
        ("algo-2", 1),
        *(("algo-3", 2 + i) for i in range(3)),
    ]
    parameters = made.request.training_job["HyperParameters"]
    assert {k: v for k, v in parameters.items() if "process" in k} == {
        "sagemaker_hdp_processes_by_group": '{"b": 3, "a": 1}'
    }
    with pytest.raises(SpecError, match=r"processes_per_host is \{'a': 1\}; expected a number for each of 'a', 'b'"):
        plan({"a": 1})


def test_the_plan_shows_every_host(project: Path) -> None:
    """In the hosts' order, with its group; a plain process has no rank."""
    distribution = {"mpi": {"enabled": True, "processes_per_host": 2}, "instance_groups": ["b"]}
    groups = [InstanceGroup("a", "local", 1), InstanceGroup("b", "local", 1), InstanceGroup("c", "local", 9)]
    engine = MemoryEngine()
    plan = PyTorch("train.py", engine=engine, instance_groups=groups, distribution=distribution).plan(job_name="j")
    shown = str(plan)
    assert shown.startswith("plan of j: engine memory, launcher mpi, 11 hosts, 2 ranks on 1 of them;")
    rows = [line.split() for line in shown.splitlines() if " algo-" in line]
    assert rows[:3] == [
        ["a", "algo-1", "-", "-", "-", "-", "-", "-"],
        ["b", "algo-2", "0", "0", "0", "cpu", "2", "algo-2:7777"],
        ["b", "algo-2", "0", "1", "1", "cpu", "2", "algo-2:7777"],
    ]
    commands = [line.split(maxsplit=3) for line in shown.splitlines() if line.startswith("algo-3 to")]
    assert commands == [["algo-3", "to", "algo-11", "python train.py"]]
    assert "<td>c</td><td>algo-11</td><td>-</td>" in plan._repr_html_()
