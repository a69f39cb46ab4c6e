"""Channels: what fit() takes, what is refused with which words, and what becomes of it in the request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hdp.estimator import Estimator, ShuffleConfig, SpecError, TrainingInput
from hdp.estimator.engines.base import Capabilities

from .conftest import MemoryEngine


def faults_of_input(*args: Any, **kwargs: Any) -> tuple[str, ...]:
    with pytest.raises(SpecError) as raised:
        TrainingInput(*args, **kwargs)
    return raised.value.faults


def faults_of_plan(inputs: object, engine: MemoryEngine, **arguments: Any) -> tuple[str, ...]:
    estimator = Estimator(entry_point="train.py", engine=engine, **arguments)
    with pytest.raises(SpecError) as raised:
        estimator.fit(inputs)
    assert engine.calls == []
    return raised.value.faults


def channels_of(inputs: object, engine: MemoryEngine, **arguments: Any) -> list[dict[str, Any]]:
    plan = Estimator(entry_point="train.py", engine=engine, **arguments).plan(inputs)
    return list(plan.request.training_job["InputDataConfig"])


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        (
            {"input_mode": "Fastfile"},
            "input_mode: 'Fastfile' isn't one of File, FastFile, Pipe; did you mean 'FastFile'?",
        ),
        (
            {"input_mode": "FastFile", "s3_data_type": "AugmentedManifestFile", "attribute_names": ["a"]},
            "this input: s3_data_type 'AugmentedManifestFile' needs input_mode='Pipe', not 'FastFile'",
        ),
        (
            {"input_mode": "File", "compression": "Gzip"},
            "this input: compression='Gzip' needs input_mode='Pipe', not 'File'; leave it out",
        ),
        (
            {"input_mode": "FastFile", "record_wrapping": "RecordIO"},
            "this input: record_wrapping='RecordIO' needs input_mode='Pipe', not 'FastFile'; leave it out",
        ),
        (
            {"input_mode": "Pipe", "s3_data_type": "AugmentedManifestFile"},
            "this input: s3_data_type 'AugmentedManifestFile' needs attribute_names, in the order to read them",
        ),
        (
            {"attribute_names": ["a"]},
            "this input: attribute_names are for s3_data_type 'AugmentedManifestFile' only",
        ),
        (
            {"distribution": "ShardedByS3key"},
            "distribution: 'ShardedByS3key' isn't one of FullyReplicated, ShardedByS3Key; "
            "did you mean 'ShardedByS3Key'?",
        ),
        ({"instance_groups": "a"}, "instance_groups is 'a' (str); expected a list"),
        ({"target_attribute_name": "y"}, "target_attribute_name: CreateTrainingJob has no field for it; leave it out"),
        (
            {"shuffle_config": {"seed": 7}},
            "shuffle_config: {'seed': 7} (dict) isn't a ShuffleConfig; write ShuffleConfig(seed=7)",
        ),
        ({"content_type": "x" * 257}, "content_type has 257 characters; at most 256"),
        ({"attribute_names": ["a"] * 17}, "attribute_names has 17 items; at most 16"),
    ],
)
def test_a_bad_input_is_refused_alone(fields: dict[str, Any], fault: str) -> None:
    """One bad field: this one line."""
    assert faults_of_input("s3://bucket/data/", **fields) == (fault,)


def test_none_is_v2s_default() -> None:
    """Every argument of v2 given as None, the distribution among them: as if nothing was given."""
    names = ["compression", "content_type", "record_wrapping", "s3_data_type", "instance_groups", "input_mode"]
    names += ["attribute_names", "target_attribute_name", "shuffle_config", "hub_access_config", "model_access_config"]
    made = TrainingInput("s3://bucket/data/", distribution=None, **dict.fromkeys(names))
    assert made == TrainingInput("s3://bucket/data/", distribution="FullyReplicated", s3_data_type="S3Prefix")


def test_a_misspelt_field_is_refused_as_none_too() -> None:
    """inputmode=None."""
    assert faults_of_input("s3://bucket/data/", inputmode=None)[0].startswith("inputmode is unknown; did you mean")


def test_an_unknown_field_names_the_nearest() -> None:
    """inputmode -> input_mode."""
    assert faults_of_input("s3://bucket/data/", inputmode="File")[0].startswith(
        "inputmode is unknown; did you mean 'input_mode'?"
    )


@pytest.mark.parametrize(
    ("uri", "fault"),
    [
        ("s3://", "s3_data: 's3://' names no bucket; write s3://bucket/key"),
        ("s3:///key", "s3_data: 's3:///key' names no bucket; write s3://bucket/key"),
        ("https://x/y", "s3_data: 'https://x/y' has an unknown scheme; expected s3:// or file://"),
        ("/data/x", "s3_data: '/data/x' is a bare path; write 'file:///data/x' or 's3://bucket/key'"),
        ("s3://b/" + "k" * 1018, "s3_data: the URI has 1025 characters; at most 1024"),
    ],
)
def test_a_bad_uri_is_refused(uri: str, fault: str) -> None:
    """One bad URI: this one line."""
    assert faults_of_input(uri) == (fault,)


def test_a_relative_file_uri_gets_its_absolute_spelling(project: Path) -> None:
    """file://data is relative: the fault has file:///.../data."""
    assert faults_of_input("file://data") == (f"s3_data: 'file://data' isn't absolute; write 'file://{project}/data'",)


def test_a_text_becomes_the_channel_training(project: Path, engine: MemoryEngine) -> None:
    """As in v2: a lone URI is the channel "training", with v2's defaults and no mode of its own."""
    assert channels_of("s3://bucket/data/", engine) == [
        {
            "ChannelName": "training",
            "DataSource": {
                "S3DataSource": {
                    "S3DataType": "S3Prefix",
                    "S3Uri": "s3://bucket/data/",
                    "S3DataDistributionType": "FullyReplicated",
                }
            },
        }
    ]


def test_every_field_of_an_input_reaches_the_request(project: Path, engine: MemoryEngine) -> None:
    """All fields given: the API's names and values."""
    given = TrainingInput(
        "s3://bucket/manifest",
        "ShardedByS3Key",
        compression="Gzip",
        content_type="application/x-recordio",
        record_wrapping="RecordIO",
        s3_data_type="AugmentedManifestFile",
        input_mode="Pipe",
        attribute_names=["image", "label"],
        shuffle_config=ShuffleConfig(7),
    )
    assert channels_of({"train": given}, engine) == [
        {
            "ChannelName": "train",
            "DataSource": {
                "S3DataSource": {
                    "S3DataType": "AugmentedManifestFile",
                    "S3Uri": "s3://bucket/manifest",
                    "S3DataDistributionType": "ShardedByS3Key",
                    "AttributeNames": ["image", "label"],
                }
            },
            "ContentType": "application/x-recordio",
            "CompressionType": "Gzip",
            "RecordWrapperType": "RecordIO",
            "InputMode": "Pipe",
            "ShuffleConfig": {"Seed": 7},
        }
    ]


def test_a_lone_input_sets_the_mode_of_the_job(project: Path, engine: MemoryEngine) -> None:
    """As in v2: TrainingInput's mode wins over the estimator's when it is the only channel without a name."""
    job = Estimator(entry_point="train.py", engine=engine).plan(TrainingInput("s3://b/x/", input_mode="FastFile"))
    assert job.request.training_job["AlgorithmSpecification"]["TrainingInputMode"] == "FastFile"


def test_a_named_input_does_not_set_the_mode_of_the_job(project: Path, engine: MemoryEngine) -> None:
    """As in v2: in a dictionary the mode stays the channel's own."""
    inputs = {"train": TrainingInput("s3://b/x/", input_mode="FastFile")}
    job = Estimator(entry_point="train.py", engine=engine).plan(inputs)
    assert job.request.training_job["AlgorithmSpecification"]["TrainingInputMode"] == "File"


def test_a_channel_without_a_mode_is_checked_against_the_estimators(project: Path, engine: MemoryEngine) -> None:
    """Gzip under the estimator's mode File: refused at fit; under Pipe: fine."""
    inputs = {"train": TrainingInput("s3://b/x/", compression="Gzip")}
    assert faults_of_plan(inputs, engine) == (
        "inputs['train']: compression='Gzip' needs input_mode='Pipe', not 'File'; leave it out",
    )
    assert channels_of(inputs, engine, input_mode="Pipe")[0]["CompressionType"] == "Gzip"


@pytest.mark.parametrize(
    ("names", "fault"),
    [
        (
            ["my-data", "my_data"],
            "inputs: channels 'my-data' and 'my_data' share the variable SM_CHANNEL_MY_DATA; rename one of them",
        ),
        (["train", "Train"], "inputs: channels 'train' and 'Train' share the variable SM_CHANNEL_TRAIN; rename one"),
        (["code"], "inputs['code']: 'code' is reserved for the launcher; choose another name, e.g. 'my-code'"),
        (["model"], "inputs['model']: 'model' is reserved for the launcher"),
        (["sm_drivers"], "inputs['sm_drivers']: 'sm_drivers' is reserved for the launcher"),
        (["a/b"], "inputs['a/b']: a channel's name has letters, digits, '.', '_' and '-' only; it becomes a folder"),
        ([".."], "inputs['..']: a channel's name has letters"),
        (["x" * 65], f"inputs['{'x' * 65}']: the channel's name has 65 characters; at most 64"),
        ([f"c{i}" for i in range(21)], "inputs has 21 channels; at most 20"),
        ([3], "inputs[3]: the channel's name is 3 (int); expected text"),
    ],
)
def test_a_bad_channel_name_is_refused(names: list[Any], fault: str, project: Path, engine: MemoryEngine) -> None:
    """Channel names become folders and variables: one line, and nothing uploaded."""
    faults = faults_of_plan(dict.fromkeys(names, "s3://bucket/data/"), engine)
    assert len(faults) == 1
    assert faults[0].startswith(fault)


def test_a_bare_path_gets_the_right_spelling(project: Path, engine: MemoryEngine) -> None:
    """inputs="data": the fault shows the file:// URI of that very folder."""
    assert faults_of_plan("data", engine) == (
        f"inputs['training']: 'data' is a bare path; write 'file://{project}/data' or 's3://bucket/key'",
    )


def test_local_data_must_exist(project: Path, engine: MemoryEngine) -> None:
    """file:///nowhere: refused before the start."""
    assert faults_of_plan("file:///nowhere/x", engine) == (
        "inputs['training']: 'file:///nowhere/x' doesn't exist on this machine; check the path",
    )


def test_a_folder_with_a_space_is_found_in_both_spellings(project: Path, engine: MemoryEngine) -> None:
    """file URIs may be percent-encoded or not; the URI is passed on as it was given."""
    (project / "my data").mkdir()
    for uri in (f"file://{project}/my data", f"file://{project}/my%20data"):
        assert channels_of(uri, engine)[0]["DataSource"]["S3DataSource"]["S3Uri"] == uri


def test_an_engine_without_a_mode_refuses_it(project: Path) -> None:
    """The engine provides File only; a channel asks for FastFile."""
    engine = MemoryEngine(Capabilities(input_modes=("File",)))
    assert faults_of_plan({"train": TrainingInput("s3://b/x/", input_mode="FastFile")}, engine) == (
        "inputs['train']: this engine can't provide input_mode 'FastFile'; use 'File'",
    )


def test_the_local_engine_has_all_modes(project: Path, home: Path) -> None:
    """Three channels in three modes are planned for this machine."""
    modes = {"a": "File", "b": "FastFile", "c": "Pipe"}
    channels = {name: TrainingInput("s3://b/x/", input_mode=mode) for name, mode in modes.items()}
    plan = Estimator(entry_point="train.py").plan(channels)
    assert {c["ChannelName"]: c["InputMode"] for c in plan.request.training_job["InputDataConfig"]} == modes


def test_a_channel_in_the_place_of_a_fifo_is_refused(project: Path, engine: MemoryEngine) -> None:
    """The Pipe channel "train" has the FIFOs train_0, train_1, ...; train_x and other_1 are no trouble."""
    channels = dict.fromkeys(("train_12", "train_x", "other_1"), "s3://b/x/")
    assert faults_of_plan({"train": TrainingInput("s3://b/x/", input_mode="Pipe"), **channels}, engine) == (
        "inputs['train_12']: a Pipe channel has its FIFOs at such names (_0, _1, ..., one an epoch); rename one",
    )


@pytest.mark.parametrize(
    ("fields", "note"),
    [
        (
            {"input_mode": "FastFile", "shuffle_config": ShuffleConfig(7)},
            "shuffle_config changes nothing in FastFile mode, where the script chooses the order; only Pipe has one",
        ),
        (
            {"input_mode": "Pipe", "s3_data_type": "AugmentedManifestFile", "attribute_names": ["a"]},
            "nothing says where an attribute ends; record_wrapping='RecordIO' does",
        ),
    ],
)
def test_what_a_mode_does_to_an_input_is_noted(
    project: Path, engine: MemoryEngine, fields: dict[str, Any], note: str
) -> None:
    """A line in the plan, no fault."""
    plan = Estimator(entry_point="train.py", engine=engine).plan({"train": TrainingInput("s3://b/x/", **fields)})
    assert f"inputs['train']: {note}" in plan.notes


def test_an_engine_that_reads_no_local_files_refuses_them(project: Path) -> None:
    """uri_schemes s3 only."""
    engine = MemoryEngine(Capabilities(uri_schemes=("s3",)))
    assert faults_of_plan(f"file://{project}/data", engine) == (
        f"inputs['training']: 'file://{project}/data' can't be used by this engine; expected s3://",
    )


def test_inputs_of_another_type_are_refused(project: Path, engine: MemoryEngine) -> None:
    """A list of URIs."""
    assert faults_of_plan(["s3://b/x/"], engine) == (
        "inputs is ['s3://b/x/'] (list); expected a URI, a TrainingInput, or a dictionary of channel names to either",
    )


def test_all_faults_of_a_fit_come_in_one_error(project: Path, engine: MemoryEngine) -> None:
    """A bad name, two bad channels, bad wait and logs: a line each, nothing uploaded."""
    estimator = Estimator(entry_point="train.py", engine=engine)
    with pytest.raises(SpecError) as raised:
        estimator.fit({"a": "file:///nowhere", "b": 3}, job_name="bad_name", wait="no", logs="al")  # type: ignore[arg-type]
    starts = ["wait is 'no' (str); expected True or False", "logs is 'al'"]
    starts += ["job_name='bad_name'", "inputs['a']", "inputs['b']"]
    assert [f[: len(s)] for f, s in zip(raised.value.faults, starts, strict=True)] == starts
    assert engine.calls == []


def test_the_engines_faults_come_with_the_others(project: Path, home: Path) -> None:
    """1000 hosts on this machine, a bad name and a missing folder: three lines, no folder of the engine."""
    with pytest.raises(SpecError) as raised:
        Estimator(entry_point="train.py", instance_count=1000).fit("file:///nowhere", job_name="bad_name")
    starts = ["job_name='bad_name'", "inputs['training']: 'file:///nowhere'", "instance_count=1000: the local engine"]
    assert [f[: len(s)] for f, s in zip(raised.value.faults, starts, strict=True)] == starts
    assert not home.exists()


def test_a_prefix_without_slash_is_noted(project: Path, engine: MemoryEngine) -> None:
    """s3://b/train also matches train2/: a note in the plan, no fault; with a slash there is none."""
    estimator = Estimator(entry_point="train.py", engine=engine)
    expected = "inputs['training']: s3://b/train also matches train2/ and the like; end it with '/' for one folder"
    assert expected in estimator.plan("s3://b/train").notes
    assert expected not in estimator.plan("s3://b/train/").notes


def test_an_input_can_not_be_changed() -> None:
    """Models are frozen."""
    with pytest.raises(ValueError, match="frozen"):
        TrainingInput("s3://b/x/").s3_data = "s3://b/y/"
