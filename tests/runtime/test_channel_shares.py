"""A sharded channel, host by host, in every mode: which objects each host has."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hdp.contract.files import Layout, write_json
from hdp.runtime.channels.provide import Channels
from hdp.runtime.environment import load

HOSTS = 3
#: Names in an order that isn't theirs.
NAMES = ["7", "3", "9", "0", "5", "1", "8", "2", "6", "4"]
#: Sorted and dealt round robin.
SHARES = [{"0", "3", "6", "9"}, {"1", "4", "7"}, {"2", "5", "8"}]

needs_fuse = pytest.mark.skipif(
    os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK), reason="needs root and /dev/fuse"
)
MODES = ["File", "Pipe", pytest.param("FastFile", marks=needs_fuse)]


def lines_of(root: Path, source: dict[str, Any], mode: str, host: int) -> list[str]:
    """The content of the channel "train" on a host, by lines: an epoch's, or that of its files."""
    layout = Layout(root / mode / str(host))
    layout.config.mkdir(parents=True)
    names = [f"algo-{i + 1}" for i in range(HOSTS)]
    write_json(layout.resourceconfig, {"hosts": names, "current_host": names[host]})
    write_json(layout.inputdataconfig, {"train": {"TrainingInputMode": mode}})
    s3 = {**source, "S3DataDistributionType": "ShardedByS3Key"}
    channel = {"ChannelName": "train", "InputMode": mode, "DataSource": {"S3DataSource": s3}}
    write_json(layout.config / "hdp-channels.json", {"channels": [channel]})
    channels, target = Channels(load(layout, {})), layout.channel("train")
    channels.start()
    try:
        files = [target.with_name("train_0")] if mode == "Pipe" else sorted(target.iterdir())
        return [line for path in files for line in path.read_text().splitlines()]
    finally:
        channels.stop()


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, dict[str, Any]]:
    """A folder of ten files, each with its name as its line; and a manifest that names them in no order."""
    folder = tmp_path / "source"
    folder.mkdir()
    for name in NAMES:
        (folder / name).write_text(f"{name}\n")
    manifest = tmp_path / "list.json"
    manifest.write_text(json.dumps([{"prefix": f"{folder.as_uri()}/"}, *NAMES]))
    return {
        "prefix": {"S3Uri": folder.as_uri()},
        "manifest": {"S3Uri": manifest.as_uri(), "S3DataType": "ManifestFile"},
    }


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["prefix", "manifest"])
def test_a_host_has_the_same_objects_in_every_mode(
    tmp_path: Path, sources: dict[str, dict[str, Any]], kind: str, mode: str
) -> None:
    """3 hosts, 10 objects. Expected: dealt by sorted key, each object to one host, whatever the manifest's order."""
    assert [set(lines_of(tmp_path, sources[kind], mode, host)) for host in range(HOSTS)] == SHARES


def test_a_pipe_streams_a_hosts_share_in_the_manifests_order(
    tmp_path: Path, sources: dict[str, dict[str, Any]]
) -> None:
    """The first host's four."""
    assert lines_of(tmp_path, sources["manifest"], "Pipe", 0) == [n for n in NAMES if n in SHARES[0]]
