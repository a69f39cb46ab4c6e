"""Items of CreateTrainingJob's InputDataConfig, checked, as `ChannelSpec`. Pure.

What the runtime can't provide, or a mode can't do, is refused here, by name, before a byte is copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hdp.contract.errors import ChannelError
from hdp.contract.files import is_channel_name

MODES = ("File", "FastFile", "Pipe")
DATA_TYPES = ("S3Prefix", "ManifestFile", "AugmentedManifestFile")


@dataclass(frozen=True)
class ChannelSpec:
    """One channel."""

    name: str
    uri: str
    """``s3://bucket/prefix`` or ``file:///folder``; of the manifest where `manifest`."""
    mode: str = "File"
    """One of `MODES`."""
    manifest: bool = False
    sharded: bool = False
    """ShardedByS3Key: each host gets its share of the objects."""
    instance_groups: tuple[str, ...] = ()
    """Only hosts of these groups get the channel; empty: all hosts."""
    attributes: tuple[str, ...] = ()
    """The source is an augmented manifest, and these are streamed of each line. Pipe only, as is what follows."""
    gzip: bool = False
    record_io: bool = False
    shuffle_seed: int | None = None


def parse_channels(items: Any, modes: Mapping[str, Mapping[str, Any]]) -> tuple[ChannelSpec, ...]:
    """The channels that `items` (InputDataConfig) lists.

    modes: ``inputdataconfig.json``, for the mode of an item that has none of its own.
    Raises ChannelError for a malformed item, and for one that this version can't provide.
    """
    if not isinstance(items, Sequence) or isinstance(items, str):
        raise ChannelError(f"the list of channels is {items!r}, expected InputDataConfig's list")
    specs = tuple(_parse(item, modes) for item in items)
    names = [s.name for s in specs]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise ChannelError(f"channel {twice[0]!r} is listed twice; each channel needs a name of its own")
    return specs


def _parse(item: Any, modes: Mapping[str, Mapping[str, Any]]) -> ChannelSpec:
    name = item.get("ChannelName") if isinstance(item, Mapping) else None
    if not isinstance(name, str) or not is_channel_name(name):
        raise ChannelError(f"channel name {name!r} isn't allowed; use 1 to 64 of A-Z a-z 0-9 . - _")
    mode = item.get("InputMode") or modes.get(name, {}).get("TrainingInputMode") or "File"
    if mode not in MODES:
        raise ChannelError(f"channel {name!r} has the input mode {mode!r}, expected one of {', '.join(MODES)}")
    spec = _from_source(name, mode, item.get("DataSource") or {})
    return replace(
        spec,
        gzip=_pipe_only(spec, item, "CompressionType", "Gzip"),
        record_io=_pipe_only(spec, item, "RecordWrapperType", "RecordIO"),
        shuffle_seed=(item.get("ShuffleConfig") or {}).get("Seed"),
    )


def _from_source(name: str, mode: str, source: Mapping[str, Any]) -> ChannelSpec:
    if "S3DataSource" not in source:
        kinds = ", ".join(sorted(source)) or "none"
        raise ChannelError(
            f"channel {name!r} has the data source {kinds}; this version's runtime provides S3DataSource only "
            "(s3:// or file://). Copy the data to S3 or to a folder."
        )
    s3 = source["S3DataSource"]
    uri, data_type = str(s3.get("S3Uri", "")), s3.get("S3DataType", "S3Prefix")
    if data_type not in DATA_TYPES:
        raise ChannelError(f"channel {name!r} has S3DataType {data_type!r}; expected one of {', '.join(DATA_TYPES)}")
    if not uri.startswith(("s3://", "file://")):
        raise ChannelError(f"channel {name!r} has S3Uri {uri!r}, expected s3://bucket/prefix or file:///folder")
    distribution = s3.get("S3DataDistributionType", "FullyReplicated")
    if distribution not in ("FullyReplicated", "ShardedByS3Key"):
        raise ChannelError(
            f"channel {name!r} has S3DataDistributionType {distribution!r}, expected FullyReplicated or ShardedByS3Key"
        )
    groups = tuple(s3.get("InstanceGroupNames") or ())
    return ChannelSpec(
        name, uri, mode, data_type == "ManifestFile", distribution == "ShardedByS3Key", groups,
        _attributes(name, mode, data_type, tuple(s3.get("AttributeNames") or ())),
    )  # fmt: skip


def _attributes(name: str, mode: str, data_type: str, attributes: tuple[str, ...]) -> tuple[str, ...]:
    augmented = data_type == "AugmentedManifestFile"
    if augmented and mode != "Pipe":
        raise ChannelError(
            f"channel {name!r} has an augmented manifest and the input mode {mode}; only Pipe streams attributes. Use "
            "input_mode='Pipe'"
        )
    if augmented != bool(attributes):
        raise ChannelError(
            f"channel {name!r} has S3DataType {data_type} and AttributeNames {list(attributes)}; an augmented manifest "
            "needs attributes, and nothing else has them"
        )
    return attributes


def _pipe_only(spec: ChannelSpec, item: Mapping[str, Any], key: str, known: str) -> bool:
    value = item.get(key) or "None"
    if value not in ("None", known):
        raise ChannelError(f"channel {spec.name!r} has {key} {value!r}, expected {known} or None")
    if value == known and spec.mode != "Pipe":
        raise ChannelError(
            f"channel {spec.name!r} has {key} {value!r}, which belongs to Pipe mode; in {spec.mode} mode the files "
            f"arrive as they are. Leave {key} out."
        )
    return bool(value == known)
