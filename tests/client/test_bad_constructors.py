"""Every bad argument is refused at construction, in words that say what to do, before anything is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hdp.estimator import Estimator, PyTorch, SpecError, TensorFlow
from hdp.estimator.engines.base import Capabilities

from .conftest import IMAGE, ROLE, MemoryEngine

CLOUD = {"instance_type": "ml.p4d.24xlarge", "role": ROLE, "image_uri": IMAGE}

CASES: list[tuple[str, dict[str, Any], str]] = [
    ("misspelt argument", {"instnace_type": "x"}, "instnace_type is unknown; did you mean 'instance_type'?"),
    (
        "processes_per_host misspelt",
        {"distribution": {"hdp": {"enabled": True, "process_per_host": 2}}},
        "distribution.hdp.process_per_host is unknown; did you mean 'processes_per_host'? "
        "(known: enabled, processes_per_host, wire_dtype)",
    ),
    (
        "enabled as text",
        {"distribution": {"hdp": {"enabled": "false"}}},
        "distribution.hdp.enabled is 'false' (str); expected True or False",
    ),
    (
        "enabled missing",
        {"distribution": {"hdp": {"processes_per_host": 2}}},
        "distribution.hdp.enabled is missing; say True or False",
    ),
    (
        "strategy as bool",
        {"distribution": {"mpi": True}},
        "distribution.mpi is True (bool); expected a dictionary: {'mpi': {'enabled': True}}",
    ),
    (
        "dataparallel as bool",
        {"distribution": {"smdistributed": {"dataparallel": True}}},
        "distribution.smdistributed.dataparallel is True (bool); expected a dictionary: "
        "{'smdistributed': {'dataparallel': {'enabled': True}}}",
    ),
    (
        "negative processes",
        {"distribution": {"hdp": {"enabled": True, "processes_per_host": -3}}},
        "distribution.hdp.processes_per_host is -3; expected 1 or more",
    ),
    (
        "unknown wire dtype",
        {"distribution": {"hdp": {"enabled": True, "wire_dtype": "int8"}}},
        "distribution.hdp.wire_dtype: 'int8' isn't one of float32, bfloat16, float16",
    ),
    (
        "no processes",
        {"distribution": {"hdp": {"enabled": True, "processes_per_host": 0}}},
        "distribution.hdp.processes_per_host is 0; expected 1 or more",
    ),
    (
        "half processes",
        {"distribution": {"hdp": {"enabled": True, "processes_per_host": 2.5}}},
        "distribution.hdp.processes_per_host is 2.5 (float); expected a whole number",
    ),
    (
        "processes as bool",
        {"distribution": {"hdp": {"enabled": True, "processes_per_host": True}}},
        "distribution.hdp.processes_per_host is True (bool); expected a whole number",
    ),
    (
        "two strategies",
        {"distribution": {"mpi": {"enabled": True}, "hdp": {"enabled": True}}},
        "distribution enables 'mpi' and 'hdp'; one job has one launcher: keep one of them",
    ),
    (
        "unknown strategy",
        {"distribution": {"hpd": {"enabled": True}}},
        "distribution.hpd is unknown; did you mean 'hdp'? "
        "(known: hdp, mpi, torch_distributed, horovod, smdistributed, multi_worker_mirrored_strategy, apart)",
    ),
    (
        "hosts among mpirun's options",
        {"distribution": {"mpi": {"enabled": True, "custom_mpi_options": "-H a:1"}}},
        "distribution.mpi.custom_mpi_options: '-H a:1' can't be used: --host: the job's hosts are known only when it "
        "starts; leave it out",
    ),
    (
        "a secret among mpirun's options, and hosts",
        {"distribution": {"mpi": {"enabled": True, "custom_mpi_options": "-x MY_TOKEN=abc -H a:1"}}},
        "distribution.mpi.custom_mpi_options: '-x MY_TOKEN=*** -H a:1' can't be used: --host: the job's hosts",
    ),
    (
        "program among mpirun's options",
        {"distribution": {"mpi": {"enabled": True, "custom_mpi_options": "train.py"}}},
        "distribution.mpi.custom_mpi_options: 'train.py' stands where an option was expected",
    ),
    (
        "pytorchddp",
        {"distribution": {"pytorchddp": {"enabled": True}}},
        "distribution.pytorchddp isn't supported: use {'hdp': {'enabled': True}} or "
        "{'torch_distributed': {'enabled': True}}; DistributedDataParallel runs under both",
    ),
    (
        "parameter_server",
        {"distribution": {"parameter_server": {"enabled": True}}},
        "distribution.parameter_server isn't supported: it isn't maintained any more; use "
        "{'hdp': {'enabled': True}} or {'multi_worker_mirrored_strategy': {'enabled': True}}",
    ),
    (
        "distribution as text",
        {"distribution": "hdp"},
        "distribution is 'hdp' (str); expected a dictionary like {'hdp': {'enabled': True}}",
    ),
    (
        "2,501 characters",
        {"hyperparameters": {"note": "x" * 2499}},
        "hyperparameters['note'] has 2501 characters as JSON; at most 2500 (SageMaker's limit): "
        "put it in a file of source_dir, or in an input channel",
    ),
    (
        "reserved hyperparameter",
        {"hyperparameters": {"sagemaker_program": "x"}},
        "hyperparameters['sagemaker_program']: names that start with 'sagemaker_' are the launcher's own; "
        "choose another name",
    ),
    (
        "NaN",
        {"hyperparameters": {"lr": float("nan")}},
        "hyperparameters['lr'] is nan, which JSON can't say; send it as text, e.g. 'nan'",
    ),
    (
        "spot without max_wait",
        {**CLOUD, "use_spot_instances": True},
        "use_spot_instances needs max_wait, in seconds, of at least max_run (86400); give it",
    ),
    (
        "max_wait too short",
        {**CLOUD, "use_spot_instances": True, "max_run": 100, "max_wait": 99},
        "max_wait is 99, less than max_run (100); it includes the run: raise it",
    ),
    (
        "max_wait without spot",
        {**CLOUD, "max_wait": 100000},
        "max_wait is for use_spot_instances=True only; leave it out",
    ),
    (
        "spot on this machine",
        {"use_spot_instances": True, "max_wait": 86400},
        "use_spot_instances is for ml.* instance types, not 'local'; leave it out",
    ),
    (
        "spot as text",
        {**CLOUD, "use_spot_instances": "false"},
        "use_spot_instances is 'false' (str); expected True or False",
    ),
    (
        "unknown instance type",
        {"instance_type": "loca"},
        "instance_type='loca' is unknown; did you mean 'local'?",
    ),
    (
        "instance type that Amazon lacks",
        {**CLOUD, "instance_type": "ml.p4d.24xlrge"},
        "ResourceConfig.InstanceType: 'ml.p4d.24xlrge' isn't one of the ",
    ),
    ("no hosts", {"instance_count": 0}, "instance_count is 0; expected 1 or more"),
    ("hosts as bool", {"instance_count": True}, "instance_count is True (bool); expected a whole number"),
    (
        "mode misspelt",
        {"input_mode": "Fastfile"},
        "input_mode: 'Fastfile' isn't one of File, FastFile, Pipe; did you mean 'FastFile'?",
    ),
    (
        "checkpoint folder without URI",
        {**CLOUD, "checkpoint_local_path": "/opt/ml/checkpoints"},
        "checkpoint_local_path needs checkpoint_s3_uri, where checkpoints are kept: give it (s3://bucket/prefix)",
    ),
    ("subnets alone", {"subnets": ["subnet-1"]}, "subnets needs security_group_ids too; give both or none"),
    (
        "security groups alone",
        {"security_group_ids": ["sg-1"]},
        "security_group_ids needs subnets too; give both or none",
    ),
    ("51 tags", {"tags": {f"k{i}": "v" for i in range(51)}}, "Tags has 51 items; at most 50"),
    (
        "variable name",
        {"environment": {"1A": "x"}},
        "environment['1A']: a variable's name has letters, digits and '_' only, and begins with no digit",
    ),
    ("variable as number", {"environment": {"A": 1}}, "environment['A'] is 1 (int); expected text"),
    ("variable's name as number", {"environment": {1: "x"}}, "environment[1]: the name is 1 (int); expected text"),
    ("long variable", {"environment": {"A": "x" * 513}}, "environment['A'] has 513 characters; at most 512"),
    (
        "long name of a variable",
        {"environment": {"A" * 513: ""}},
        f"environment['{'A' * 196}...]: the name has 513 characters; at most 512",
    ),
    ("NUL in a variable", {"environment": {"A": "a\0b"}}, "environment['A'] holds a NUL character, which no variable"),
    ("no text in a variable", {"environment": {"A": "\ud800"}}, "environment['A'] isn't valid Unicode text"),
    (
        "101 variables",
        {"environment": {f"A{i}": "x" for i in range(101)}},
        "environment has 101 variables; at most 100",
    ),
    (
        "environment as a list",
        {"environment": ["A=1"]},
        "environment is ['A=1'] (list); expected a dictionary of names",
    ),
    (
        "type without ml.",
        {**CLOUD, "instance_type": "p4d.24xlarge"},
        "instance_type='p4d.24xlarge' is unknown; did you mean 'ml.p4d.24xlarge'?",
    ),
    (
        "type in capitals",
        {**CLOUD, "instance_type": "ML.P4D.24XLARGE"},
        "instance_type='ML.P4D.24XLARGE' is unknown; did you mean 'ml.p4d.24xlarge'?",
    ),
    (
        "more than 28 days",
        {**CLOUD, "max_run": 2_419_201},
        "max_run is 2419201; on SageMaker at most 2419200 seconds (28 days)",
    ),
    ("a number without end", {"max_run": 10**5000}, "max_run is <a int that can't be shown>; expected 2147483647 or"),
    ("more hosts than there are", {"instance_count": 10**9}, "instance_count is 1000000000; expected 10000 or less"),
    (
        "line break in a URI",
        {"output_path": "s3://bucket/a\nb"},
        "output_path: 's3://bucket/a\\nb' holds a line break or another control character; take it out",
    ),
    (
        "empty smdistributed",
        {"distribution": {"smdistributed": {}}},
        "distribution.smdistributed is empty; expected {'smdistributed': {'dataparallel': {'enabled': True}}}",
    ),
    (
        "dataparallel None",
        {"distribution": {"smdistributed": {"dataparallel": None}}},
        "distribution.smdistributed.dataparallel is None; expected a dictionary: "
        "{'smdistributed': {'dataparallel': {'enabled': True}}}",
    ),
    (
        "dataparallel empty",
        {"distribution": {"smdistributed": {"dataparallel": {}}}},
        "distribution.smdistributed.dataparallel.enabled is missing; say True or False: "
        "{'smdistributed': {'dataparallel': {'enabled': True}}}",
    ),
    *(
        (
            f"empty {kind}",
            {"distribution": {kind: {}}},
            f"distribution.{kind}.enabled is missing; say True or False: {{'{kind}': {{'enabled': True}}}}",
        )
        for kind in ("hdp", "mpi", "torch_distributed", "multi_worker_mirrored_strategy")
    ),
    *(
        (
            f"{kind} None",
            {"distribution": {kind: None}},
            f"distribution.{kind} is None; expected a dictionary: {{'{kind}': {{'enabled': True}}}}",
        )
        for kind in ("hdp", "mpi", "torch_distributed", "multi_worker_mirrored_strategy")
    ),
    ("misspelt and None", {"instnace_type": None}, "instnace_type is unknown; did you mean 'instance_type'?"),
    ("debugger on", {"debugger_hook_config": True}, "debugger_hook_config is for ml.* instance types: it's a"),
    ("profiler on", {"disable_profiler": False}, "disable_profiler is for ml.* instance types: it's a service"),
    ("role missing", {**CLOUD, "role": None}, "role is missing; the sagemaker engine needs the ARN of an IAM role"),
    (
        "role that is no name",
        {**CLOUD, "role": "my trainer"},
        "role is 'my trainer'; expected its ARN, arn:aws:iam::<account>:role/<name>, or a role's name",
    ),
    (
        "role's ARN with a space",
        {**CLOUD, "role": f"{ROLE} 2"},
        f"role is '{ROLE} 2'; expected its ARN",
    ),
    (
        "image on this machine",
        {"image_uri": IMAGE},
        f"image_uri is '{IMAGE}', but the local engine runs no containers; leave it out",
    ),
    ("script missing", {"entry_point": "trian.py"}, "entry_point: trian.py isn't a file on this machine; check"),
    ("no script", {"entry_point": None}, "entry_point is missing; give the training script's path"),
    ("not a script", {"entry_point": "train"}, "entry_point is 'train'; expected a .py or .sh file"),
    (
        "script outside",
        {"entry_point": "../train.py", "source_dir": "data"},
        "entry_point: ../train.py must be a path inside source_dir, e.g. 'train.py'",
    ),
    (
        "script not in folder",
        {"source_dir": "data"},
        "entry_point: train.py isn't in source_dir data; give its path inside it",
    ),
    (
        "archive that is none",
        {**CLOUD, "source_dir": "s3://bucket/prefix/"},
        "source_dir is 's3://bucket/prefix/'; expected a folder, or s3://bucket/key.tar.gz",
    ),
    (
        "output as a bare path",
        {"output_path": "/tmp/out"},
        "output_path: '/tmp/out' is a bare path; write 'file:///tmp/out' or 's3://bucket/key'",
    ),
    (
        "output on this machine from the cloud",
        {**CLOUD, "output_path": "file:///tmp/out"},
        "output_path: 'file:///tmp/out' can't be used by this engine; expected s3://",
    ),
    ("debugger", {"rules": ["a rule"]}, "rules: 'a rule' (str) isn't a Rule or a ProfilerRule; write Rule"),
    (
        "session",
        {"sagemaker_session": object()},
        "sagemaker_session isn't an argument here: hdp keeps no session; choose account and region with "
        "boto_session, AWS_PROFILE, AWS_REGION",
    ),
    (
        "Amazon's library without GPUs",
        {
            **CLOUD,
            "instance_type": "ml.m5.xlarge",
            "distribution": {"smdistributed": {"dataparallel": {"enabled": True}}},
        },
        "distribution.smdistributed: Amazon's library needs GPUs, and ml.m5.xlarge has none; choose a type such as "
        "ml.p4d.24xlarge, or use {'hdp': {'enabled': True}}",
    ),
    (
        "no session of boto3",
        {**CLOUD, "boto_session": "research"},
        "boto_session is 'research' (str); expected a boto3.Session, e.g. boto3.Session(profile_name='research', ",
    ),
    (
        "a tag of Amazon's",
        {**CLOUD, "tags": {"aws:team": "x"}},
        "tags[0].Key: 'aws:team' begins with 'aws:', which Amazon keeps for itself; choose another key",
    ),
    (
        "version on the plain class",
        {"framework_version": "2.9"},
        "framework_version isn't an argument here: it belongs to PyTorch and TensorFlow; leave it out, or use one",
    ),
    ("31 attempts", {"max_retry_attempts": 31}, "max_retry_attempts is 31; expected 30 or less"),
    ("unknown engine", {"engine": "locl"}, "no engine is called 'locl'; did you mean 'local'? (known: "),
    (
        "engine option",
        {"engine_options": {"pyton": "python3"}},
        "engine_options.pyton is unknown; did you mean 'python'?",
    ),
    (
        "engine option's name as number",
        {"engine_options": {1: 2}},
        "engine_options[1]: that key isn't text; use one of the known names (known: stop_timeout_seconds, ",
    ),
]


@pytest.mark.parametrize(("arguments", "message"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_a_bad_argument_is_refused_alone_and_in_words(
    arguments: dict[str, Any], message: str, project: Path, home: Path
) -> None:
    """One bad thing in a good call: exactly one fault, with this text; no folder of the engine appears."""
    with pytest.raises(SpecError) as raised:
        Estimator(**{"entry_point": "train.py", **arguments})
    assert len(raised.value.faults) == 1, raised.value
    assert raised.value.faults[0].startswith(message)
    assert not home.exists()


def test_all_faults_of_a_call_come_in_one_error(project: Path, home: Path) -> None:
    """Eight things wrong in one call: eight lines, each once, in one SpecError that counts them."""
    with pytest.raises(SpecError) as raised:
        PyTorch(
            "trian.py",
            instnace_type="ml.p4d.24xlarge",  # type: ignore[call-arg]
            instance_count=0,
            distribution={"mpi": True},
            hyperparameters={"big": "x" * 2500, "": 1},
            environment={"1A": "x"},
            tags={str(i): "x" for i in range(51)},
        )
    starts = [
        "instnace_type is unknown; did you mean 'instance_type'?",
        "instance_count is 0",
        "environment['1A']: a variable's name",
        "distribution.mpi is True",
        "hyperparameters['big'] has 2502 characters",
        "hyperparameters['']: the name is empty",
        "entry_point: trian.py isn't a file",
        "Tags has 51 items",
    ]
    assert len(raised.value.faults) == len(starts)
    for fault, start in zip(raised.value.faults, starts, strict=True):
        assert fault.startswith(start)
    assert str(raised.value).startswith("8 faults in PyTorch(...); nothing was started:\n  - instnace_type")
    assert not home.exists()


def test_faults_stay_in_our_words_beside_others(project: Path, home: Path) -> None:
    """An unknown instance_type, a bare output_path, a variable that is a number and one with a bad name: four lines."""
    with pytest.raises(SpecError) as raised:
        Estimator(
            entry_point="train.py",
            instance_type="loca",
            output_path="/tmp/out",
            environment={"A": 1, "1B": "x"},  # type: ignore[dict-item]
        )
    assert [fault.partition(";")[0] for fault in raised.value.faults] == [
        "environment['A'] is 1 (int)",
        "environment['1B']: a variable's name has letters, digits and '_' only, and begins with no digit",
        "instance_type='loca' is unknown",
        "output_path: '/tmp/out' is a bare path",
    ]


def test_an_engine_that_needs_an_image_asks_for_it(project: Path) -> None:
    """Of an engine that is there: image_uri is missing, and a version names no image by itself."""
    engine = MemoryEngine(Capabilities(needs_image=True))
    with pytest.raises(SpecError, match=r"framework_version '2\.9' names no image by itself: give its URI"):
        TensorFlow("train.py", framework_version="2.9", engine=engine)


def test_an_engine_that_is_there_takes_no_name_of_a_role(project: Path) -> None:
    """Nothing resolves it: the fault says what an ARN looks like, and doesn't offer a name."""
    with pytest.raises(SpecError, match=r"role is 'Trainer'; expected its ARN, arn:aws:iam::<account>:role/<name>$"):
        Estimator(entry_point="train.py", role="Trainer", engine=MemoryEngine(Capabilities(needs_role=True)))


@pytest.mark.parametrize(
    "arguments",
    [
        {"debugger_hook_config": False},
        {"disable_profiler": True},
        {"rules": []},
        {"rules": None},
        {"profiler_config": None},
        {"instance_groups": []},
        {"enable_network_isolation": False},
        {"encrypt_inter_container_traffic": False},
        {"use_spot_instances": False},
        {"sagemaker_session": None},
        {"role": "anything"},
        {"role": "any thing at all"},
        {"environment": {}},
    ],
)
def test_what_is_off_here_can_be_switched_off(arguments: dict[str, Any], project: Path, engine: MemoryEngine) -> None:
    """Calls written for v2: no fault, and the same request as without the argument."""
    plain = Estimator(entry_point="train.py", engine=engine).plan(job_name="a").request
    assert Estimator(entry_point="train.py", engine=engine, **arguments).plan(job_name="a").request == plain


def test_28_days_are_fine(project: Path) -> None:
    """The limit itself on ml.*; longer on this machine."""
    assert Estimator(entry_point="train.py", **{**CLOUD, "max_run": 2_419_200}).settings.max_run == 2_419_200
    assert Estimator(entry_point="train.py", max_run=10**9).settings.max_run == 10**9


def test_an_object_that_is_no_engine_is_refused(project: Path) -> None:
    """engine=3: the fault says what was expected."""
    with pytest.raises(SpecError, match=r"engine is 3 \(int\); expected a name or an engine"):
        Estimator(entry_point="train.py", engine=3)  # type: ignore[arg-type]


def test_an_engine_that_needs_a_role_asks_for_it(project: Path) -> None:
    """Capabilities.needs_role of any engine, not only SageMaker's."""
    engine = MemoryEngine(Capabilities(needs_role=True))
    with pytest.raises(SpecError, match="role is missing; the memory engine needs the ARN"):
        Estimator(entry_point="train.py", engine=engine)


def test_local_needs_no_role(project: Path, engine: MemoryEngine) -> None:
    """Without a role the request has the documented stand-in."""
    plan = Estimator(entry_point="train.py", engine=engine).plan()
    assert plan.request.training_job["RoleArn"] == "arn:aws:iam::000000000000:role/local"
