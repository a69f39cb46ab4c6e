"""What only SageMaker has: Debugger, profiler, compiler, file systems, experiments. Each slip is refused in words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hdp.estimator import (
    CollectionConfig,
    DebuggerHookConfig,
    FileSystemInput,
    ProfilerConfig,
    ProfilerRule,
    PyTorch,
    Rule,
    SpecError,
    TensorBoardOutputConfig,
    TrainingCompilerConfig,
)

from .conftest import IMAGE, ROLE, MemoryEngine

CLOUD: dict[str, Any] = {"entry_point": "train.py", "role": ROLE, "instance_type": "ml.g5.xlarge", "image_uri": IMAGE}
EFS = FileSystemInput("fs-01234567", "EFS", "/data")


def faults(call: Callable[[], object]) -> tuple[str, ...]:
    with pytest.raises(SpecError) as raised:
        call()
    return tuple(raised.value.faults)


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (lambda: FileSystemInput("0123", "EFS", "/d"), "file_system_id is '0123'; expected the form ^fs-[0-9a-f]{8,}$"),
        (lambda: FileSystemInput("fs-01234567", "efs", "/d"), "file_system_type: 'efs' isn't one of EFS, FSxLustre"),
        (lambda: FileSystemInput("fs-01234567", "EFS", "data"), "directory_path is 'data'; expected the form ^/"),
        (
            lambda: FileSystemInput("fs-01234567", "EFS", "/d", "wr"),
            "file_system_access_mode: 'wr' isn't one of ro, rw",
        ),
        (lambda: CollectionConfig(3), "name is 3 (int); expected text"),  # type: ignore[arg-type]
        (lambda: DebuggerHookConfig(hook_parameters="all"), "hook_parameters is 'all' (str); expected a dictionary"),  # type: ignore[arg-type]
        (lambda: TensorBoardOutputConfig(7), "s3_output_path is 7 (int); expected text"),  # type: ignore[arg-type]
        (
            lambda: ProfilerConfig(system_monitor_interval_millis=300),
            "system_monitor_interval_millis: 300 isn't one of the service's intervals: 100, 200, ",
        ),
        (lambda: TrainingCompilerConfig("yes"), "enabled is 'yes' (str); expected True or False"),  # type: ignore[arg-type]
        (lambda: Rule.sagemaker({}), "base_config is {} (dict); expected a rule's name, e.g. 'VanishingGradient'"),
        (lambda: Rule.sagemaker("Overfit", actions=["stop"]), "actions is unknown; did you mean"),
        (
            lambda: Rule.custom("own", IMAGE, "ml.t3.medium", 10, source="rule.py", rule_to_invoke="R"),
            "source is 'rule.py'; expected s3://bucket/key: hdp uploads no rules",
        ),
        (
            lambda: ProfilerRule.custom("own", IMAGE, "ml.t3.medium", 10, source="s3://b/rule.py"),
            "source and rule_to_invoke go together; give both or none",
        ),
    ],
)
def test_a_slip_is_refused_in_words(make: Callable[[], object], fault: str) -> None:
    """Where the object is made: one fault, the value in it."""
    found = faults(make)
    assert len(found) == 1
    assert found[0].startswith(fault.partition("; did you mean")[0])


def test_a_built_in_rule_needs_its_name_only(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No package of Amazon's for it: the name stands for what v2's rule_configs make of it."""
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    rules = [Rule.sagemaker("Overfit"), ProfilerRule.sagemaker("ProfilerReport")]
    made = PyTorch(**CLOUD, rules=rules).plan().request.training_job
    image = "895741380848.dkr.ecr.us-west-2.amazonaws.com/sagemaker-debugger-rules:latest"
    assert made["DebugRuleConfigurations"] == [
        {
            "RuleConfigurationName": "Overfit",
            "RuleEvaluatorImage": image,
            "RuleParameters": {"rule_to_invoke": "Overfit"},
        }
    ]
    assert made["ProfilerRuleConfigurations"][0]["RuleEvaluatorImage"] == image


def test_rules_where_debugger_isnt(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A region without it is refused when the plan is made."""
    monkeypatch.setenv("AWS_REGION", "eu-south-2")
    estimator = PyTorch(**CLOUD, rules=[Rule.sagemaker("Overfit")])
    expected = "rules: Debugger's own rules aren't in the region 'eu-south-2'; give Rule.custom an image_uri"
    assert faults(estimator.plan) == (expected,)


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (
            {"debugger_hook_config": "on"},
            "debugger_hook_config: 'on' (str) isn't a DebuggerHookConfig; write DebuggerHookConfig(...), or False",
        ),
        ({"rules": "Overfit"}, "rules: 'Overfit' (str) isn't a list of rules; write [Rule.sagemaker("),
        ({"profiler_config": {}}, "profiler_config: {} (dict) isn't a ProfilerConfig; write ProfilerConfig(...)"),
        ({"compiler_config": True}, "compiler_config: True (bool) isn't a TrainingCompilerConfig; write"),
        (
            {"disable_profiler": True, "profiler_config": ProfilerConfig()},
            "profiler_config and disable_profiler=True contradict each other; leave one out",
        ),
        (
            {"disable_profiler": True, "rules": [ProfilerRule.sagemaker("ProfilerReport")]},
            "rules has a ProfilerRule, which disable_profiler=True forbids; leave one out",
        ),
        (
            {
                "debugger_hook_config": DebuggerHookConfig(),
                "instance_count": 2,
                "checkpoint_s3_uri": "s3://b/c",
                "checkpoint_local_path": "/opt/ml/checkpoints",
            },
            "debugger_hook_config can't go with checkpoint_local_path on several hosts, as AWS says; leave one out",
        ),
        ({"code_location": "bucket/code"}, "code_location: 'bucket/code' is a bare path; write 'file:///"),
        (
            {"code_location": "file:///code"},
            "code_location: 'file:///code' can't be used by this engine; expected s3://",
        ),
        (
            {"distribution": {"smdistributed": {"modelparallel": {"enabled": True}}}},
            "distribution.smdistributed.modelparallel needs 'mpi' or 'torch_distributed' beside it, enabled",
        ),
        (
            {"distribution": {"smdistributed": {"modelparallel": {"enabled": True, "parameters": "none.json"}}}},
            "distribution.smdistributed.modelparallel.parameters: 'none.json' can't be read as a file of JSON: ",
        ),
        (
            {"distribution": {"smdistributed": {"dataparallel": {"enabled": True}}, "mpi": {"enabled": True}}},
            "distribution enables 'smdistributed' and 'mpi'; one job has one launcher: keep one of them",
        ),
        (
            {
                "distribution": {
                    "smdistributed": {"modelparallel": {"enabled": True}, "dataparallel": {"enabled": True}}
                }
            },
            "distribution.smdistributed has both dataparallel and modelparallel; keep one of them",
        ),
        (
            {"distribution": {"parameter_servers": {"enabled": True}}},
            "distribution.parameter_servers is unknown; did you mean 'parameter_server'? (known: hdp, mpi, ",
        ),
        ({"distribution": {"pytorchxla": True}}, "distribution.pytorchxla is True (bool); expected a dictionary: {"),
    ],
)
def test_what_contradicts_itself_is_refused(arguments: dict[str, Any], fault: str, project: Path) -> None:
    """At the constructor: one fault."""
    found = faults(lambda: PyTorch(**CLOUD, **arguments))
    assert len(found) == 1
    assert found[0].startswith(fault)


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (
            {"rules": [Rule.sagemaker("Overfit")]},
            "rules is for ml.* instance types: it's a service of SageMaker's; leave",
        ),
        ({"profiler_config": ProfilerConfig()}, "profiler_config is for ml.* instance types: it's a service of"),
        (
            {"compiler_config": TrainingCompilerConfig()},
            "compiler_config is for ml.* instance types: it's a service of",
        ),
        (
            {"code_location": "s3://b/code"},
            "code_location is for ml.* instance types: the memory engine keeps code itself",
        ),
        *(
            ({"distribution": {name: {"enabled": True}}}, f"distribution.{name} isn't supported: ")
            for name in ("parameter_server", "pytorchxla", "pytorchddp")
        ),
        (
            {"distribution": {"smdistributed": {"modelparallel": {"enabled": True}}, "mpi": {"enabled": True}}},
            "distribution.smdistributed.modelparallel isn't supported: it is closed and AWS-only; use {'hdp': ",
        ),
    ],
)
def test_what_only_sagemaker_has_is_refused_elsewhere(
    arguments: dict[str, Any], fault: str, project: Path, engine: MemoryEngine
) -> None:
    """On an engine of this machine: one fault, and what to use there where there is something."""
    found = faults(lambda: PyTorch("train.py", engine=engine, **arguments))
    assert len(found) == 1
    assert found[0].startswith(fault)


def test_a_file_system_needs_a_network(project: Path) -> None:
    """On SageMaker it's reached through subnets."""
    expected = "inputs['training']: a file system is reached through its VPC; give the estimator subnets and security_"
    assert faults(lambda: PyTorch(**CLOUD).plan(EFS))[0].startswith(expected)


def test_a_file_system_isnt_mounted_here(project: Path, engine: MemoryEngine) -> None:
    """On this machine the user mounts it."""
    found = faults(lambda: PyTorch("train.py", engine=engine).plan({"a": EFS}))
    assert found[0] == "inputs['a']: this engine mounts no EFS or FSx; mount it, and give file:///its/path"


def test_an_experiment_is_sagemakers(project: Path, engine: MemoryEngine) -> None:
    """Refused elsewhere; and it is a dictionary."""
    elsewhere = faults(lambda: PyTorch("train.py", engine=engine).plan(experiment_config={"ExperimentName": "e"}))
    assert elsewhere == ("experiment_config is for ml.* instance types; leave it out",)
    text: Any = "digits"
    expected = "experiment_config is 'digits' (str); expected a dictionary such as {'ExperimentName': 'digits'}"
    assert faults(lambda: PyTorch(**CLOUD).plan(experiment_config=text)) == (expected,)


def test_an_experiments_key_is_checked(project: Path) -> None:
    """By the service's own model."""
    found = faults(lambda: PyTorch(**CLOUD).plan(experiment_config={"Experiment": "e"}))
    assert found[0].startswith("ExperimentConfig.Experiment is no part of CreateTrainingJob")


def test_parameters_of_the_library_may_be_a_file(project: Path) -> None:
    """As in v2: the path of a JSON file."""
    (project / "mp.json").write_text('{"partitions": 2}')
    both = {
        "smdistributed": {"modelparallel": {"enabled": True, "parameters": "mp.json"}},
        "mpi": {"enabled": True, "processes_per_host": 2},
    }
    made = PyTorch(**CLOUD, distribution=both).plan().request.training_job["HyperParameters"]
    assert made["mp_parameters"] == '{"partitions": 2}'
