"""Argument sets: the same lines make an estimator of SageMaker's SDK v2 and one of ours.

`x` holds the classes: of ``sagemaker`` where `record.py` runs, of ``hdp.estimator`` in the test. This file imports
neither. Estimators are made in a folder that has ``train.py`` and ``src/`` with ``train.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

ROLE = "arn:aws:iam::123456789012:role/Trainer"
IMAGE = "123456789012.dkr.ecr.us-west-2.amazonaws.com/train:1"
ARCHIVE = "s3://bucket/code/sourcedir.tar.gz"
BUCKET = "s3://bucket/"
#: What v2 sends unasked, in nearly every case; see `differences.py`.
UNASKED = ("debugger unasked", "profiler unasked")

Make = Callable[[Any], tuple[Any, Any]]


@dataclass(frozen=True)
class Case:
    """One argument set: `make` returns the estimator and the inputs of its fit()."""

    name: str
    make: Make
    differs: tuple[str, ...] = UNASKED
    """Names of the rows of `differences.py` that it needs: all of these, and no others."""
    region: str = "us-west-2"
    fit: dict[str, Any] = field(default_factory=dict)
    """More arguments of fit()."""


CASES: dict[str, Case] = {}


def case(**more: Any) -> Callable[[Make], Make]:
    """Add the function to `CASES`, under its own name. also: differences beside `UNASKED`."""
    also = more.pop("also", ())

    def add(make: Make) -> Make:
        made = Case(make.__name__, make, **{"differs": (*UNASKED, *also), **more})
        CASES[made.name] = made
        return make

    return add


def pytorch(x: Any, **more: Any) -> Any:
    """A PyTorch estimator on GPUs, with code that is on S3 already."""
    base = {
        "entry_point": "train.py",
        "source_dir": ARCHIVE,
        "role": ROLE,
        "instance_count": 2,
        "instance_type": "ml.p4d.24xlarge",
        "framework_version": "2.2.0",
        "py_version": "py310",
        "output_path": BUCKET,
    }
    given = {k: v for k, v in {**base, **more}.items() if v is not None}
    return x.PyTorch(**given)


def tensorflow(x: Any, **more: Any) -> Any:
    """The same for TensorFlow."""
    base = {"framework_version": "2.11", "py_version": "py39"}
    base |= {"entry_point": "train.py", "source_dir": ARCHIVE, "role": ROLE, "instance_count": 2}
    base |= {"instance_type": "ml.p4d.24xlarge", "output_path": BUCKET}
    given = {k: v for k, v in {**base, **more}.items() if v is not None}
    return x.TensorFlow(**given)


def generic(x: Any, **more: Any) -> Any:
    """An estimator for an image with its own program, on CPUs."""
    base = {"image_uri": IMAGE, "role": ROLE, "instance_count": 1, "instance_type": "ml.m5.xlarge"}
    return x.Estimator(**{**base, "output_path": BUCKET, **more})


def first_example(x: Any, distribution: dict[str, Any]) -> tuple[Any, Any]:
    """The article on data distribution: 4 hosts of 8 GPUs that stream CIFAR-10. It says 2.9.1; v2 knows 2.9.2 only."""
    estimator = x.TensorFlow(
        entry_point="train.py",
        role=ROLE,
        instance_type="ml.p4d.24xlarge",
        instance_count=4,
        framework_version="2.9.2" if x.is_v2 else "2.9.1",
        py_version="py39",
        distribution=distribution,
    )
    return estimator, x.TrainingInput("s3://datasets/cifar10-tfrecord/", input_mode="FastFile")


_OFFLINE = ("code archive", "default bucket")


@case(also=(*_OFFLINE, "default bucket of model_dir"))
def example_smdistributed(x: Any) -> tuple[Any, Any]:
    return first_example(x, {"smdistributed": {"dataparallel": {"enabled": True}}})


@case(also=_OFFLINE)
def example_horovod(x: Any) -> tuple[Any, Any]:
    return first_example(x, {"mpi": {"enabled": True, "processes_per_host": 8}})


@case(also=("code archive",))
def example_efficientnet(x: Any) -> tuple[Any, Any]:
    """The article on EfficientNet: PyTorch with the data parallel library, 2 hosts of 8 GPUs."""
    estimator = x.PyTorch(
        entry_point="train.py",
        source_dir="src",
        role=ROLE,
        instance_count=2,
        instance_type="ml.p4d.24xlarge",
        framework_version="1.12.1",
        py_version="py38",
        output_path=BUCKET,
        base_job_name="efficientnet",
        distribution={"smdistributed": {"dataparallel": {"enabled": True}}},
        hyperparameters={"arch": "efficientnet-b4", "batch-size": 128, "amp": True},
        metric_definitions=[{"Name": "train_loss", "Regex": "loss=([0-9.]+)"}],
    )
    return estimator, {"training": "s3://datasets/imagenet/train/", "validation": "s3://datasets/imagenet/val/"}


@case()
def no_distribution(x: Any) -> tuple[Any, Any]:
    return pytorch(x, instance_count=1), "s3://bucket/data/"


@case()
def torch_distributed(x: Any) -> tuple[Any, Any]:
    return pytorch(x, distribution={"torch_distributed": {"enabled": True}}), None


@case()
def mpi_with_options(x: Any) -> tuple[Any, Any]:
    options = {"enabled": True, "processes_per_host": 4, "custom_mpi_options": "-x NCCL_DEBUG=INFO --verbose"}
    return pytorch(x, distribution={"mpi": options}), None


@case()
def mpi_without_a_number(x: Any) -> tuple[Any, Any]:
    return tensorflow(x, distribution={"mpi": {"enabled": True}}), None


@case(also=("strategy that is off",))
def mpi_that_is_off(x: Any) -> tuple[Any, Any]:
    return pytorch(x, distribution={"mpi": {"enabled": False}}), None


@case()
def smdistributed_with_options(x: Any) -> tuple[Any, Any]:
    options = {"enabled": True, "custom_mpi_options": "-x NCCL_DEBUG=VERSION"}
    return pytorch(x, distribution={"smdistributed": {"dataparallel": options}}), None


@case()
def smdistributed_under_torchrun(x: Any) -> tuple[Any, Any]:
    """What v2 wants on p5: the library's backend, ranks started by torchrun."""
    both = {"torch_distributed": {"enabled": True}, "smdistributed": {"dataparallel": {"enabled": True}}}
    return pytorch(x, instance_type="ml.p5.48xlarge", distribution=both), None


@case()
def pytorchddp(x: Any) -> tuple[Any, Any]:
    return pytorch(x, distribution={"pytorchddp": {"enabled": True}}), None


@case()
def model_parallel_under_mpi(x: Any) -> tuple[Any, Any]:
    parameters = {"partitions": 2, "microbatches": 4, "pipeline": "interleaved", "optimize": "speed", "ddp": True}
    both = {
        "smdistributed": {"modelparallel": {"enabled": True, "parameters": parameters}},
        "mpi": {"enabled": True, "processes_per_host": 8},
    }
    return pytorch(x, framework_version="1.13.1", py_version="py39", distribution=both), None


@case()
def model_parallel_under_torchrun(x: Any) -> tuple[Any, Any]:
    """Version 2 of the library, which has images of its own."""
    parameters = {"hybrid_shard_degree": 8, "tensor_parallel_degree": 2}
    both = {
        "smdistributed": {"modelparallel": {"enabled": True, "parameters": parameters}},
        "torch_distributed": {"enabled": True},
    }
    return pytorch(x, distribution=both), None


@case()
def model_parallel_with_its_image(x: Any) -> tuple[Any, Any]:
    both = {"smdistributed": {"modelparallel": {"enabled": True}}, "torch_distributed": {"enabled": True}}
    return pytorch(x, framework_version="2.5.1", py_version="py311", distribution=both), None


@case(differs=("profiler unasked",))
def parameter_server(x: Any) -> tuple[Any, Any]:
    return tensorflow(x, instance_type="ml.c5.xlarge", distribution={"parameter_server": {"enabled": True}}), None


@case()
def multi_worker_mirrored(x: Any) -> tuple[Any, Any]:
    return tensorflow(x, distribution={"multi_worker_mirrored_strategy": {"enabled": True}}), None


@case(differs=())
def pytorchxla(x: Any) -> tuple[Any, Any]:
    """The Training Compiler, whose guide says to switch debugger and profiler off."""
    estimator = pytorch(
        x,
        framework_version="1.13.1",
        py_version="py39",
        distribution={"pytorchxla": {"enabled": True}},
        compiler_config=x.TrainingCompilerConfig(),
        debugger_hook_config=False,
        disable_profiler=True,
    )
    return estimator, None


@case()
def compiler_alone(x: Any) -> tuple[Any, Any]:
    config = x.TrainingCompilerConfig(enabled=True, debug=True)
    return pytorch(x, instance_count=1, framework_version="1.13", py_version="py39", compiler_config=config), None


@case(also=("ours alone", "hdp comes along"))
def a_strategy_that_v2_ignores(x: Any) -> tuple[Any, Any]:
    # An image whose glibc nobody knows: whatever core of hdp is here may travel to it.
    strategy = {"horovod": {"enabled": True, "processes_per_host": 8}}
    return pytorch(x, framework_version="2.6.0", py_version="py312", distribution=strategy), None


def groups(x: Any) -> list[Any]:
    return [x.InstanceGroup("gpus", "ml.p4d.24xlarge", 2), x.InstanceGroup("cpus", "ml.c5.18xlarge", 3)]


@case()
def instance_groups(x: Any) -> tuple[Any, Any]:
    both = groups(x)
    estimator = pytorch(
        x,
        instance_count=None,
        instance_type=None,
        instance_groups=both,
        distribution={"mpi": {"enabled": True, "processes_per_host": 8}, "instance_groups": [both[0]]},
    )
    data = x.TrainingInput("s3://bucket/data/", instance_groups=["gpus"])
    return estimator, {"train": data, "raw": x.TrainingInput("s3://bucket/raw/", instance_groups=["cpus", "gpus"])}


@case(also=("instance type of groups",))
def instance_groups_smdistributed(x: Any) -> tuple[Any, Any]:
    both = groups(x)
    strategy = {"smdistributed": {"dataparallel": {"enabled": True}}, "instance_groups": [both[0]]}
    return (
        pytorch(x, instance_count=None, instance_type=None, instance_groups=both, distribution=strategy),
        None,
    )


@case(also=("groups of torch_distributed",))
def instance_groups_torch_distributed(x: Any) -> tuple[Any, Any]:
    both = groups(x)
    strategy = {"torch_distributed": {"enabled": True}, "instance_groups": [both[0]]}
    return (
        pytorch(x, instance_count=None, instance_type=None, instance_groups=both, distribution=strategy),
        None,
    )


@case()
def one_instance_group(x: Any) -> tuple[Any, Any]:
    """A lone group needn't be named in the distribution."""
    group = x.InstanceGroup("all", "ml.g5.12xlarge", 4)
    strategy = {"mpi": {"enabled": True}}
    return (
        tensorflow(x, instance_count=None, instance_type=None, instance_groups=[group], distribution=strategy),
        None,
    )


@case()
def instance_groups_without_distribution(x: Any) -> tuple[Any, Any]:
    return pytorch(x, instance_count=None, instance_type=None, instance_groups=groups(x)), None


@case()
def private_network(x: Any) -> tuple[Any, Any]:
    estimator = pytorch(
        x,
        subnets=["subnet-11111111", "subnet-22222222"],
        security_group_ids=["sg-11111111"],
        volume_size=200,
        volume_kms_key="arn:aws:kms:us-west-2:123456789012:key/volume",
        output_kms_key="arn:aws:kms:us-west-2:123456789012:key/output",
        encrypt_inter_container_traffic=True,
        disable_output_compression=True,
    )
    return estimator, {"train": "s3://bucket/data/"}


@case(also=("code channel",))
def network_isolation(x: Any) -> tuple[Any, Any]:
    return pytorch(x, enable_network_isolation=True), {"train": "s3://bucket/data/"}


@case()
def spot_with_checkpoints(x: Any) -> tuple[Any, Any]:
    estimator = pytorch(
        x,
        use_spot_instances=True,
        max_run=3600,
        max_wait=7200,
        checkpoint_s3_uri="s3://bucket/checkpoints/",
        max_retry_attempts=5,
    )
    return estimator, None


@case(differs=("profiler unasked",))
def checkpoints_in_their_folder(x: Any) -> tuple[Any, Any]:
    """v2 leaves its debugger out where hosts checkpoint together."""
    where = {"checkpoint_s3_uri": "s3://bucket/checkpoints/", "checkpoint_local_path": "/opt/ml/checkpoints"}
    return tensorflow(x, distribution={"mpi": {"enabled": True}}, **where), None


@case()
def warm_pool(x: Any) -> tuple[Any, Any]:
    return generic(x, keep_alive_period_in_seconds=1800), None


@case()
def records(x: Any) -> tuple[Any, Any]:
    estimator = pytorch(
        x,
        tags=[{"Key": "team", "Value": "vision"}, {"Key": "cost-centre", "Value": "7"}],
        metric_definitions=[{"Name": "loss", "Regex": "loss=(.*?);"}, {"Name": "top1", "Regex": "top1=(.*?);"}],
        enable_sagemaker_metrics=False,
        environment={"NCCL_DEBUG": "INFO", "LEVEL": "debug"},
        container_log_level=10,
    )
    return estimator, None


@case(fit={"experiment_config": {"ExperimentName": "digits", "TrialName": "t1", "TrialComponentDisplayName": "run"}})
def an_experiment(x: Any) -> tuple[Any, Any]:
    return generic(x, tags={"team": "vision"}), None


@case()
def debugging_on_the_host(x: Any) -> tuple[Any, Any]:
    return pytorch(x, enable_remote_debug=True, enable_session_tag_chaining=True, enable_infra_check=True), None


@case()
def private_registry(x: Any) -> tuple[Any, Any]:
    estimator = generic(
        x,
        image_uri="registry.example.com/team/train:2",
        container_entry_point=["python", "/opt/train.py"],
        container_arguments=["--epochs", "3"],
        training_repository_access_mode="Vpc",
        training_repository_credentials_provider_arn="arn:aws:lambda:us-west-2:123456789012:function:login",
        subnets=["subnet-11111111"],
        security_group_ids=["sg-11111111"],
    )
    return estimator, None


@case()
def training_plan(x: Any) -> tuple[Any, Any]:
    plan = "arn:aws:sagemaker:us-west-2:123456789012:training-plan/reserved"
    placement = {
        "EnableMultipleJobs": True,
        "PlacementSpecifications": [{"UltraServerId": "ultra-1", "InstanceCount": 2}],
    }
    return pytorch(x, training_plan=plan, instance_placement_config=placement), None


@case()
def pretrained_model(x: Any) -> tuple[Any, Any]:
    estimator = generic(x, model_uri="s3://bucket/models/base.tar.gz", model_channel_name="base")
    return estimator, {"train": "s3://bucket/data/"}


@case()
def file_systems(x: Any) -> tuple[Any, Any]:
    lustre = x.FileSystemInput("fs-0123456789abcdef0", "FSxLustre", "/fsx/data", content_type="text/csv")
    efs = x.FileSystemInput("fs-01234567", "EFS", "/data", file_system_access_mode="rw")
    estimator = pytorch(x, subnets=["subnet-11111111"], security_group_ids=["sg-11111111"])
    return estimator, {"lustre": lustre, "efs": efs, "s3": "s3://bucket/more/"}


@case()
def one_file_system(x: Any) -> tuple[Any, Any]:
    estimator = generic(x, subnets=["subnet-11111111"], security_group_ids=["sg-11111111"])
    return estimator, x.FileSystemInput("fs-01234567", "EFS", "/data")


@case()
def channels_of_every_kind(x: Any) -> tuple[Any, Any]:
    channels = {
        "augmented": x.TrainingInput(
            "s3://bucket/labels.manifest",
            s3_data_type="AugmentedManifestFile",
            attribute_names=["source-ref", "label"],
            record_wrapping="RecordIO",
            input_mode="Pipe",
            shuffle_config=x.ShuffleConfig(7),
            content_type="application/x-recordio",
        ),
        "zipped": x.TrainingInput("s3://bucket/zipped/", compression="Gzip", input_mode="Pipe"),
        "listed": x.TrainingInput("s3://bucket/list.manifest", s3_data_type="ManifestFile", input_mode="File"),
        "shared": x.TrainingInput("s3://bucket/shards/", distribution="ShardedByS3Key", input_mode="FastFile"),
    }
    return generic(x, input_mode="Pipe"), channels


@case()
def one_piped_input(x: Any) -> tuple[Any, Any]:
    """A lone input's mode becomes the job's."""
    return generic(x), x.TrainingInput("s3://bucket/data/", input_mode="Pipe")


@case()
def hub_content(x: Any) -> tuple[Any, Any]:
    arn = "arn:aws:sagemaker:us-west-2:123456789012:hub-content/hub/Model/base/1"
    base = x.TrainingInput(
        "s3://bucket/base/", hub_access_config={"HubContentArn": arn}, model_access_config={"AcceptEula": True}
    )
    return generic(x), {"base": base}


@case()
def tensorboard(x: Any) -> tuple[Any, Any]:
    where = x.TensorBoardOutputConfig("s3://bucket/board/", container_local_output_path="/opt/ml/board")
    return pytorch(x, tensorboard_output_config=where), None


@case(differs=("profiler unasked",))
def debugger(x: Any) -> tuple[Any, Any]:
    built_in = {
        "DebugRuleConfiguration": {
            "RuleConfigurationName": "VanishingGradient",
            "RuleParameters": {"rule_to_invoke": "VanishingGradient"},
        },
        "CollectionConfigurations": [
            {"CollectionName": "gradients", "CollectionParameters": {"save_interval": "500"}},
        ],
    }
    own = x.Rule.custom(
        name="Own",
        image_uri=IMAGE,
        instance_type="ml.t3.medium",
        volume_size_in_gb=30,
        source="s3://bucket/rules/own.py",
        rule_to_invoke="Own",
        rule_parameters={"threshold": "20.0"},
        s3_output_path="s3://bucket/rules/out/",
        container_local_output_path="/opt/ml/processing/out",
        other_trials_s3_input_paths=["s3://bucket/other/"],
    )
    hook = x.DebuggerHookConfig(
        s3_output_path="s3://bucket/tensors/",
        container_local_output_path="/opt/ml/tensors",
        hook_parameters={"save_interval": "100"},
        collection_configs=[x.CollectionConfig(name="losses", parameters={"save_interval": "10"})],
    )
    rules = [x.Rule.sagemaker(built_in, rule_parameters={"threshold": "0.001"}), own]
    return pytorch(x, debugger_hook_config=hook, rules=rules), None


@case(differs=("profiler unasked",))
def rules_alone(x: Any) -> tuple[Any, Any]:
    """A rule brings the hook, with what it needs saved."""
    built_in = {
        "DebugRuleConfiguration": {
            "RuleConfigurationName": "LossNotDecreasing",
            "RuleParameters": {"rule_to_invoke": "LossNotDecreasing"},
        },
        "CollectionConfigurations": [{"CollectionName": "losses", "CollectionParameters": {"save_interval": "500"}}],
    }
    rule = x.Rule.sagemaker(built_in, name="loss", s3_output_path="s3://bucket/rules/")
    return pytorch(x, rules=[rule]), None


@case(differs=("debugger unasked",))
def profiler(x: Any) -> tuple[Any, Any]:
    config = x.ProfilerConfig(s3_output_path="s3://bucket/profile/", system_monitor_interval_millis=500)
    report = SimpleNamespace(
        rule_name="ProfilerReport", rule_parameters={"rule_to_invoke": "ProfilerReport", "opt_out": 1}
    )
    own = x.ProfilerRule.custom(
        name="Own",
        image_uri=IMAGE,
        instance_type="ml.t3.medium",
        volume_size_in_gb=10,
        source="s3://bucket/rules/own.py",
        rule_to_invoke="Own",
        rule_parameters={"threshold": 3},
    )
    return pytorch(x, profiler_config=config, rules=[x.ProfilerRule.sagemaker(report), own]), None


@case(differs=("debugger unasked",))
def profiler_alone(x: Any) -> tuple[Any, Any]:
    return generic(x, profiler_config=x.ProfilerConfig(system_monitor_interval_millis=1000)), None


@case(differs=())
def both_switched_off(x: Any) -> tuple[Any, Any]:
    return pytorch(x, debugger_hook_config=False, disable_profiler=True), None


@case(also=("code archive",))
def code_elsewhere(x: Any) -> tuple[Any, Any]:
    return pytorch(x, source_dir="src", code_location="s3://code/jobs"), None


@case(also=("role by name", *_OFFLINE))
def as_little_as_possible(x: Any) -> tuple[Any, Any]:
    """A role by its name, no output_path, code on this machine."""
    estimator = x.PyTorch(
        entry_point="train.py",
        role="Trainer",
        instance_count=1,
        instance_type="ml.m5.xlarge",
        framework_version="2.8",
        py_version="py312",
    )
    return estimator, None


@case(also=("text beyond ASCII",))
def hyperparameters_of_every_type(x: Any) -> tuple[Any, Any]:
    values = {
        "lr": 0.1,
        "epochs": 3,
        "amp": True,
        "resume": None,
        "note": "it's",
        "version": "1.10",
        "sizes": [1, 2],
        "schedule": {"warmup": 5, "kind": "cosine"},
        "name": "naïve",
    }
    return pytorch(x, hyperparameters=values), None


@case()
def image_with_its_own_program(x: Any) -> tuple[Any, Any]:
    return generic(x, hyperparameters={"depth": 3, "mode": "fast", "eta": 0.2, "silent": True}), "s3://bucket/data/"


@case()
def image_with_a_script(x: Any) -> tuple[Any, Any]:
    return generic(x, entry_point="train.py", source_dir=ARCHIVE, hyperparameters={"depth": 3, "mode": "fast"}), None


@case()
def framework_with_an_image(x: Any) -> tuple[Any, Any]:
    return pytorch(x, framework_version=None, py_version=None, image_uri=IMAGE), None


@case()
def tensorflow_on_cpus(x: Any) -> tuple[Any, Any]:
    estimator = tensorflow(
        x, instance_type="ml.c5.xlarge", framework_version="2.19.0", py_version="py312", model_dir=False
    )
    return estimator, None


@case()
def model_dir_elsewhere(x: Any) -> tuple[Any, Any]:
    return tensorflow(x, model_dir="s3://bucket/models/"), None


@case(region="cn-north-1")
def another_partition(x: Any) -> tuple[Any, Any]:
    return pytorch(x, framework_version="2.6", py_version="py312"), None
