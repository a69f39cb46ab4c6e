"""What channels count, as values: bytes, requests, first byte, seconds waited."""

from __future__ import annotations

import json
import threading
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from hdp.contract import outcome
from hdp.contract.channels import ChannelStatistics, from_json, to_json
from hdp.contract.files import Layout, write_json
from hdp.runtime.channels.fastfile.stats import Stats
from hdp.runtime.channels.pipe import PipeChannel
from hdp.runtime.channels.provide import Channels
from hdp.runtime.environment import load

FULL = ChannelStatistics("algo-1", "train", "FastFile", 3, 30, 0.5, 40, 5, 1, 0, 30, 0.01, 0.2, 2, 3, 5, 3, 1, 99, 1)


def channels(root: Path, uri: str, mode: str = "File") -> Channels:
    """The channel train of host algo-1, not started yet."""
    layout = Layout(root)
    layout.config.mkdir(parents=True)
    source = {"S3DataSource": {"S3Uri": uri}}
    write_json(layout.resourceconfig, {"hosts": ["algo-1"], "current_host": "algo-1"})
    write_json(layout.inputdataconfig, {"train": {"TrainingInputMode": mode}})
    write_json(
        layout.channel_sources, {"channels": [{"ChannelName": "train", "DataSource": source, "InputMode": mode}]}
    )
    return Channels(load(layout, {}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files of 10,000, 20,000 and 30,000 bytes."""
    base = tmp_path / "source"
    base.mkdir()
    for i in (1, 2, 3):
        (base / str(i)).write_bytes(bytes([i]) * 10_000 * i)
    return base


def test_a_copied_folder_counts_files_and_bytes(folder: Path, tmp_path: Path) -> None:
    provided = channels(tmp_path / "host", f"file://{folder}")
    assert provided.statistics() == []
    provided.start()
    (counted,) = provided.statistics()
    provided.stop()
    assert counted.seconds > 0
    assert replace(counted, seconds=0.0) == ChannelStatistics("algo-1", "train", "File", 3, 60_000, 0.0, 60_000, 3)


def test_a_download_counts_its_requests(s3: Any, tmp_path: Path) -> None:
    """One object of 9 MiB, in parts of 8; one small one; an empty one needs no request."""
    for key, size in (("p/large", 9 << 20), ("p/small", 10), ("p/empty", 0)):
        s3.put_object(Bucket="data", Key=key, Body=bytes(size))
    provided = channels(tmp_path / "host", "s3://data/p/")
    provided.start()
    (counted,) = provided.statistics()
    assert (counted.files, counted.size_bytes, counted.fetched_bytes) == (3, (9 << 20) + 10, (9 << 20) + 10)
    assert (counted.requests, counted.retries, counted.read_bytes) == (3, 0, None)


def test_a_stream_counts_epochs_and_what_was_read(folder: Path, tmp_path: Path) -> None:
    """Two epochs are read whole, the third only opened by nobody."""
    provided = channels(tmp_path / "host", f"file://{folder}", "Pipe")
    provided.start()
    (before,) = provided.statistics()
    assert (before.mode, before.epochs, before.read_bytes, before.first_byte_seconds) == ("Pipe", 0, 0, None)
    for epoch in range(2):
        assert len((tmp_path / "host/input/data" / f"train_{epoch}").read_bytes()) == 60_000
    provided.stop()
    (counted,) = provided.statistics()
    assert (counted.epochs, counted.read_bytes, counted.requests) == (2, 120_000, 6)
    assert counted.fetched_bytes == 120_000
    assert counted.first_byte_seconds is not None and 0 < counted.first_byte_seconds < 30
    assert counted.waited_seconds is not None and 0 < counted.waited_seconds < 30


def test_a_slow_source_is_what_a_stream_waited_for(tmp_path: Path) -> None:
    """The source needs 0.2 s for each of two pieces; the reader none."""
    wait = threading.Event()

    def contents(_epoch: int) -> Any:
        for piece in (b"a", b"b"):
            wait.wait(0.2)
            yield piece

    channel = PipeChannel("train", tmp_path / "train", contents, lambda: None)
    channel.start()
    assert (tmp_path / "train_0").read_bytes() == b"ab"
    channel.stop()
    numbers = channel.numbers()
    assert 0.35 < float(numbers["waited_seconds"] or 0) < 5
    assert 0.15 < float(numbers["first_byte_seconds"] or 0) < 5


def test_only_the_first_read_is_the_first() -> None:
    stats = Stats()
    assert "first_byte_seconds" not in stats.snapshot()
    stats.answered(0.5)
    stats.answered(0.1)
    assert stats.snapshot()["first_byte_seconds"] == 0.5


def test_statistics_travel_in_the_hosts_report() -> None:
    report = outcome.HostReport("algo-1", channels=(FULL,))
    assert outcome.from_json(json.loads(json.dumps(outcome.to_json(report)))) == report
    older = {name: value for name, value in outcome.to_json(report).items() if name != "channels"}
    assert outcome.from_json(older).channels == ()


def test_what_another_version_counts_is_left_out() -> None:
    assert from_json({**to_json(FULL), "invented_later": 3}) == FULL
    assert len(to_json(FULL)) == len(fields(ChannelStatistics))
