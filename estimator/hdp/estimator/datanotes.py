"""What can be said of the channels' data for free, that is of folders on this machine: no network call, no long walk.

`hdp lint-input` says the same, and more, of what is on S3.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from hdp.contract import advice
from hdp.contract.uris import local_path
from hdp.estimator.inputs import Inputs, TrainingInput
from hdp.estimator.plan import World

#: A walk takes some 10 microseconds a file here.
_MOST_FILES = 20_000


def notes_of(inputs: Inputs, input_mode: str, world: World) -> list[str]:
    """A line for each thing that is worth a thought. input_mode: the estimator's."""
    lines = []
    for name, channel in inputs.channels:
        if not isinstance(channel, TrainingInput):
            continue
        mode = channel.input_mode or inputs.single_mode or input_mode
        lines += [f"inputs[{name!r}]: {line}" for line in (*_one_reader(mode, world), *_data(channel, mode, world))]
    return lines


def _one_reader(mode: str, world: World) -> list[str]:
    ranks = max(world.sizes, default=0)
    if mode != "Pipe" or ranks < 2:
        return []
    return [
        f"each byte of a FIFO reaches one reader only, and there are {ranks} ranks a host; give each a channel of its "
        "own, or let one read for all"
    ]


def _data(channel: TrainingInput, mode: str, world: World) -> list[str]:
    if not channel.s3_data.startswith("file://") or channel.s3_data_type != "S3Prefix":
        return []
    sizes = list(islice(_sizes(local_path(channel.s3_data)), _MOST_FILES + 1))
    if not sizes or len(sizes) > _MOST_FILES:
        return []
    groups = channel.instance_groups or ()
    hosts = sum(not groups or host.group in groups for host in world.cluster.hosts)
    sharded, records = channel.distribution == "ShardedByS3Key", channel.record_wrapping == "RecordIO"
    return advice.before(advice.Shape.of(sizes), mode, max(hosts, 1), sharded=sharded, record_io=records)


def _sizes(path: Path) -> Iterator[int]:
    """Of the files below `path`, or of the file. What can't be read is left out here."""
    if path.is_file():
        yield path.stat().st_size
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                yield Path(folder, name).stat().st_size
