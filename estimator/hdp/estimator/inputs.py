"""Input channels: what `fit(inputs)` takes, checked by the rules of the three input modes.

The rules (SageMaker's service model): manifests of attributes (AugmentedManifestFile) are for Pipe only, so are Gzip
and RecordIO; a channel's own input_mode wins over the estimator's. A channel's name becomes a folder and a variable
(``SM_CHANNEL_MY_DATA``), so names must stay apart there too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, ValidationError

from hdp.contract.env import shell_safe
from hdp.contract.errors import SpecError
from hdp.contract.files import is_channel_name
from hdp.contract.uris import local_path, scheme
from hdp.estimator import groups
from hdp.estimator.engines.base import Capabilities
from hdp.estimator.faults import Strict, of_validation, seen, shown
from hdp.estimator.filesystems import FileSystemInput
from hdp.estimator.groups import MOST_GROUPS

InputMode = Literal["File", "FastFile", "Pipe"]
INPUT_MODES: tuple[str, ...] = get_args(InputMode)

DEFAULT_CHANNEL = "training"
MAX_CHANNELS = 20
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
MAX_URI_CHARS = 1024
#: Folder names that launchers, v2 and v3 use for themselves.
RESERVED_CHANNELS = ("code", "model", "sm_drivers")

#: v2's arguments of a TrainingInput that this version doesn't have, and what to do instead.
_NOT_HERE: Mapping[str, str] = {
    "target_attribute_name": "CreateTrainingJob has no field for it; leave it out",
}
_AUGMENTED = "AugmentedManifestFile"


class ShuffleConfig(Strict):
    """Shuffles what a Pipe channel streams, by `seed`, anew each epoch. In other modes the script chooses the order."""

    seed: int = Field(ge=-(2**63), lt=2**63)

    def __init__(self, seed: int) -> None:
        try:
            super().__init__(**{"seed": seed})
        except ValidationError as exc:
            raise SpecError(of_validation(exc, ShuffleConfig, ""), "ShuffleConfig") from exc


def _shuffle_config(value: object) -> object:
    if value is not None and not isinstance(value, ShuffleConfig):
        raise ValueError(f"{seen(value)} isn't a ShuffleConfig; write ShuffleConfig(seed=7)")
    return value


_Names = Annotated[tuple[str, ...], Field(max_length=MOST_GROUPS, strict=False)]


class TrainingInput(Strict):
    """One input channel.

    s3_data: ``s3://bucket/prefix``, or ``file:///absolute/path`` where the engine reads this machine's files.
    distribution: "FullyReplicated" (every host gets all) or "ShardedByS3Key" (every host gets its share of objects).
    input_mode: "File" (copied before the start), "FastFile" (read on demand), "Pipe"; None: the estimator's.
    compression: "Gzip", record_wrapping: "RecordIO"; Pipe only.
    s3_data_type: "S3Prefix", "ManifestFile", or "AugmentedManifestFile" (Pipe only, with attribute_names).
    hub_access_config, model_access_config: of models that need one, as the API spells them: {"AcceptEula": True}.
    instance_groups: groups, or their names, whose hosts get the channel; if one channel has them, all need them.
    None counts as not given, as in v2.

    Raises SpecError that lists every fault.
    """

    s3_data: str
    distribution: Literal["FullyReplicated", "ShardedByS3Key"] = "FullyReplicated"
    compression: Literal["None", "Gzip"] | None = None
    content_type: str | None = Field(None, max_length=256)
    record_wrapping: Literal["None", "RecordIO"] | None = None
    s3_data_type: Literal["S3Prefix", "ManifestFile", "AugmentedManifestFile"] = "S3Prefix"
    instance_groups: Annotated[_Names | None, BeforeValidator(groups.named)] = None
    input_mode: InputMode | None = None
    attribute_names: tuple[str, ...] | None = Field(None, max_length=16, strict=False)
    shuffle_config: Annotated[ShuffleConfig | None, BeforeValidator(_shuffle_config)] = None
    hub_access_config: dict[str, Any] | None = None
    model_access_config: dict[str, Any] | None = None

    def __init__(self, s3_data: str, distribution: str | None = None, **fields: Any) -> None:
        known = {"distribution", *TrainingInput.model_fields, *_NOT_HERE}
        said = {k: v for k, v in {"distribution": distribution, **fields}.items() if v is not None or k not in known}
        refused = [f"{name}: {_NOT_HERE[name]}" for name in said if name in _NOT_HERE]
        try:
            super().__init__(**{"s3_data": s3_data, **{k: v for k, v in said.items() if k not in _NOT_HERE}})
            faults = uri_faults(self.s3_data, "s3_data") + mode_faults(self, self.input_mode, "this input")
        except ValidationError as exc:
            faults = of_validation(exc, TrainingInput, "")
        if faults or refused:
            raise SpecError([*faults, *refused], "TrainingInput")

    def channel(self, name: str) -> dict[str, Any]:
        """This input as one item of CreateTrainingJob's InputDataConfig."""
        source: dict[str, Any] = {
            "S3DataType": self.s3_data_type,
            "S3Uri": self.s3_data,
            "S3DataDistributionType": self.distribution,
        }
        if self.attribute_names:
            source["AttributeNames"] = list(self.attribute_names)
        if self.instance_groups:
            source["InstanceGroupNames"] = list(self.instance_groups)
        access = {"HubAccessConfig": self.hub_access_config, "ModelAccessConfig": self.model_access_config}
        source |= {k: v for k, v in access.items() if v is not None}
        optional = {
            "ContentType": self.content_type,
            "CompressionType": self.compression,
            "RecordWrapperType": self.record_wrapping,
            "InputMode": self.input_mode,
            "ShuffleConfig": {"Seed": self.shuffle_config.seed} if self.shuffle_config else None,
        }
        given = {k: v for k, v in optional.items() if v is not None}
        return {"ChannelName": name, "DataSource": {"S3DataSource": source}, **given}


@dataclass(frozen=True)
class Inputs:
    """The channels of one job."""

    channels: tuple[tuple[str, TrainingInput | FileSystemInput], ...] = ()
    single_mode: InputMode | None = None
    """input_mode of a lone TrainingInput; it becomes the job's, as in v2."""

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """The instance groups that each channel names, of those that can."""
        return {n: channel.instance_groups or () for n, channel in self.channels if isinstance(channel, TrainingInput)}

    @property
    def file_systems(self) -> tuple[str, ...]:
        """Names of the channels that are file systems."""
        return tuple(name for name, channel in self.channels if isinstance(channel, FileSystemInput))


def parse(inputs: object, input_mode: str, where: Capabilities) -> tuple[Inputs, list[str], list[str]]:
    """The channels that `inputs` asks for, the faults, and the notes (lines that aren't faults).

    inputs: None, a URI (the channel "training"), a TrainingInput, a FileSystemInput, or a dictionary of names to them.
    input_mode: the estimator's. where: what the engine can provide.
    """
    named, faults = _named(inputs)
    channels: list[tuple[str, TrainingInput | FileSystemInput]] = []
    for name, value in named:
        channel, found = _channel(name, value)
        if channel:
            channels.append((str(name), channel))
            found += _engine_faults(str(name), channel, input_mode, where)
        faults += found
    objects = [(name, channel) for name, channel in channels if isinstance(channel, TrainingInput)]
    modes = {name: channel.input_mode or input_mode for name, channel in objects}
    faults += _name_faults([name for name, _ in named]) + _fifo_faults(modes)
    mode = inputs.input_mode if isinstance(inputs, TrainingInput) else None
    notes = [line for name, channel in objects for line in _notes(name, channel, modes[name])]
    return Inputs(tuple(channels), mode), faults, notes


def unreachable(inputs: Inputs, subnets: Sequence[str]) -> list[str]:
    """The faults of file systems without a network that reaches them. subnets: the estimator's."""
    return [
        f"inputs[{name!r}]: a file system is reached through its VPC; give the estimator subnets and security_group_ids"
        for name in inputs.file_systems
        if not subnets
    ]


def mode_faults(channel: TrainingInput, mode: str | None, where: str) -> list[str]:
    """What `channel` asks for and its mode can't do. Mode None: not known yet, checked at fit."""
    faults = []
    augmented = channel.s3_data_type == _AUGMENTED
    if mode not in (None, "Pipe"):
        if augmented:
            faults.append(f"{where}: s3_data_type 'AugmentedManifestFile' needs input_mode='Pipe', not {mode!r}")
        if channel.compression == "Gzip":
            faults.append(f"{where}: compression='Gzip' needs input_mode='Pipe', not {mode!r}; leave it out")
        if channel.record_wrapping == "RecordIO":
            faults.append(f"{where}: record_wrapping='RecordIO' needs input_mode='Pipe', not {mode!r}; leave it out")
    if augmented and not channel.attribute_names:
        faults.append(f"{where}: s3_data_type 'AugmentedManifestFile' needs attribute_names, in the order to read them")
    if channel.attribute_names and not augmented:
        faults.append(f"{where}: attribute_names are for s3_data_type 'AugmentedManifestFile' only")
    return faults


def uri_faults(uri: str, where: str) -> list[str]:
    """What is wrong with an S3 or file URI, a line each."""
    if len(uri) > MAX_URI_CHARS:
        return [f"{where}: the URI has {len(uri)} characters; at most {MAX_URI_CHARS}"]
    if _CONTROL.search(uri):
        return [f"{where}: {shown(uri)} holds a line break or another control character; take it out"]
    if uri.startswith("s3://"):
        return [] if re.match(r"s3://[^/]+", uri) else [f"{where}: {shown(uri)} names no bucket; write s3://bucket/key"]
    if uri.startswith("file://"):
        absolute = uri.startswith("file:///") and ".." not in uri.split("/")
        return [] if absolute else [f"{where}: {shown(uri)} isn't absolute; write {_file_uri(uri[7:])!r}"]
    if scheme(uri):
        return [f"{where}: {shown(uri)} has an unknown scheme; expected s3:// or file://"]
    return [f"{where}: {shown(uri)} is a bare path; write {_file_uri(uri)!r} or 's3://bucket/key'"]


def scheme_faults(uri: str, where: str, engine: Capabilities) -> list[str]:
    """Whether the engine can use the scheme of `uri`."""
    if scheme(uri) in engine.uri_schemes or scheme(uri) not in ("s3", "file"):
        return []
    have = " or ".join(f"{s}://" for s in engine.uri_schemes)
    return [f"{where}: {shown(uri)} can't be used by this engine; expected {have}"]


def _named(inputs: object) -> tuple[list[tuple[object, object]], list[str]]:
    """Name and value of each channel."""
    if inputs is None:
        return [], []
    if isinstance(inputs, (str, TrainingInput, FileSystemInput)):
        return [(DEFAULT_CHANNEL, inputs)], []
    if isinstance(inputs, Mapping):
        return list(inputs.items()), []
    return [], [
        f"inputs is {seen(inputs)}; expected a URI, a TrainingInput, or a dictionary of channel names to either"
    ]


def _channel(name: object, value: object) -> tuple[TrainingInput | FileSystemInput | None, list[str]]:
    where = f"inputs[{name!r}]"
    if isinstance(value, (TrainingInput, FileSystemInput)):
        return value, []
    if not isinstance(value, str):
        return None, [f"{where} is {seen(value)}; expected a URI or a TrainingInput"]
    faults = uri_faults(value, where)
    return (None if faults else TrainingInput(value)), faults


def _engine_faults(
    name: str, channel: TrainingInput | FileSystemInput, usual_mode: str, engine: Capabilities
) -> list[str]:
    """What this engine can't provide, and local data that isn't there. usual_mode: the estimator's."""
    where = f"inputs[{name!r}]"
    if isinstance(channel, FileSystemInput):
        here = "file" in engine.uri_schemes
        return [f"{where}: this engine mounts no EFS or FSx; mount it, and give file:///its/path"] if here else []
    mode, uri = channel.input_mode or usual_mode, channel.s3_data
    faults = mode_faults(channel, mode, where) if channel.input_mode is None else []
    if mode in INPUT_MODES and mode not in engine.input_modes:
        have = " or ".join(repr(m) for m in engine.input_modes)
        faults.append(f"{where}: this engine can't provide input_mode {mode!r}; use {have}")
    unusable = scheme_faults(uri, where, engine)
    if not unusable and uri.startswith("file:///") and not local_path(uri).exists():
        unusable = [f"{where}: {shown(uri)} doesn't exist on this machine; check the path"]
    return faults + unusable


def _name_faults(names: Sequence[object]) -> list[str]:
    faults = [f"inputs has {len(names)} channels; at most {MAX_CHANNELS}"] if len(names) > MAX_CHANNELS else []
    variables: dict[str, str] = {}
    for name in names:
        fault = _name_fault(name)
        if fault:
            faults.append(fault)
            continue
        variable = shell_safe(str(name))
        other = variables.setdefault(variable, str(name))
        if other != name:
            faults.append(
                f"inputs: channels {other!r} and {name!r} share the variable SM_CHANNEL_{variable}; rename one of them"
            )
    return faults


def _fifo_faults(modes: Mapping[str, str]) -> list[str]:
    """Channels whose folder would be where a Pipe channel has the FIFO of some epoch."""
    piped = [re.compile(re.escape(name) + r"_\d+") for name, mode in modes.items() if mode == "Pipe"]
    return [
        f"inputs[{name!r}]: a Pipe channel has its FIFOs at such names (_0, _1, ..., one an epoch); rename one"
        for name in modes
        if any(fifo.fullmatch(name) for fifo in piped)
    ]


def _name_fault(name: object) -> str | None:
    where = f"inputs[{shown(name)}]"
    if not isinstance(name, str):
        return f"{where}: the channel's name is {seen(name)}; expected text"
    if len(name) > 64:
        return f"{where}: the channel's name has {len(name)} characters; at most 64"
    if not is_channel_name(name):
        return f"{where}: a channel's name has letters, digits, '.', '_' and '-' only; it becomes a folder"
    if name.lower() in RESERVED_CHANNELS:
        return f"{where}: {name!r} is reserved for the launcher; choose another name, e.g. 'my-{name}'"
    return None


def _notes(name: str, channel: TrainingInput, mode: str) -> list[str]:
    notes = []
    last = channel.s3_data.rpartition("/")[2]
    prefix = re.match(r"s3://[^/]+/.+[^/]$", channel.s3_data)
    if channel.s3_data_type == "S3Prefix" and prefix and "." not in last:
        notes.append(
            f"inputs[{name!r}]: {channel.s3_data} also matches {last}2/ and the like; end it with '/' for one folder"
        )
    if channel.shuffle_config and mode != "Pipe":
        notes.append(
            f"inputs[{name!r}]: shuffle_config changes nothing in {mode} mode, where the script chooses the order; "
            "only Pipe has one"
        )
    if channel.s3_data_type == _AUGMENTED and channel.record_wrapping != "RecordIO":
        notes.append(f"inputs[{name!r}]: nothing says where an attribute ends; record_wrapping='RecordIO' does")
    return notes


def _file_uri(path: str) -> str:
    return Path(path).expanduser().absolute().as_uri()
