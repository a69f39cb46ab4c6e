"""`hdp topology` and `hdp explain`: what they print and refuse. Measuring itself: multirank, multihost."""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_support import request, wait_for_end
from typer.testing import CliRunner, Result

from hdp.contract.errors import EngineError, JobNotFound
from hdp.estimator import outputs
from hdp.estimator.cli import network
from hdp.estimator.cli.app import app
from hdp.estimator.engines.local.engine import LocalEngine

TOPOLOGY = {
    "version": 1,
    "hosts": [
        {
            "name": f"algo-{number}", "address": f"10.0.0.{number}", "ranks": 2, "machine": str(number), "cpus": 8,
            "cpu_model": "a processor", "memory_bytes": 64 << 30, "copy_rate": 8e9, "add_rate": 9e9,
            "numa": [{"cpus": list(range(first, first + 4)), "memory_bytes": 32 << 30} for first in (0, 4)],
        }
        for number in (1, 2)
    ],
    "flows": [{"source": 0, "target": 1, "rate": 119.5e6}, {"source": 1, "target": 0, "rate": 119.5e6}],
    "paths": [{"one": 0, "other": 1, "latency": 6e-5}],
    "barrier": 0.0002,
    "seconds": 0.25,
    "summary": {
        "ranks": 4, "link_rate_bits_per_second": 1e9, "latency_seconds": 6e-5, "hosts_on_a_machine": 1,
    },
}  # fmt: skip


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=True)


def refusal(*arguments: str) -> str:
    """The message of a usage error, without its frame."""
    done = run(*arguments)
    assert done.exit_code == 2, done.output
    return " ".join(re.sub("[│╭╮╰╯─]", " ", done.output).split())


# ---- explain ---------------------------------------------------------------------------------------------------------


def test_explain_says_algorithm_bytes_time_and_what_others_would_take() -> None:
    """64 MiB over 4 x 8 ranks at 1 Gbit/s: 96 MiB on a link, some 0.84 s, and a flat ring's 1.3 times as much."""
    done = run("explain", "allreduce", "64MiB", "--hosts", "4", "--ranks", "8", "--rate", "1gbit")
    assert done.exit_code == 0, done.output
    for part in (
        "allreduce of 64 MiB over 4 hosts x 8 ranks, 1 Gbit/s", "two hops: each host sums its share", "128 of 512 KiB",
        "96 MiB on the busiest link, 1.00 x the least possible", "limited by the link", "flat ring", "two-level ring",
    ):  # fmt: skip
        assert part in done.output


@pytest.mark.parametrize("kind", network.KINDS)
def test_every_collective_is_explained(kind: str) -> None:
    answer = json.loads(run("explain", kind, "1MiB", "--json").output)
    assert answer["plan"]["kind"] == kind
    assert answer["plan"]["seconds"] > 0


def test_explain_takes_a_topology_that_was_saved(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps(TOPOLOGY))
    answer = json.loads(run("explain", "allreduce", "64MiB", "--topology", str(tmp_path / "t.json"), "--json").output)
    assert answer["cluster"]["ranks"] == [2, 2]
    assert answer["plan"]["seconds"] == pytest.approx(0.562, rel=0.02)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["allredce"], "'allredce' is no collective; there are allreduce, reduce"),
        (["allreduce", "64Mi"], "'64Mi' isn't a size; expected e.g. 64KiB, 64MiB"),
        (["allreduce", "1MiB", "--rate", "fast"], "'fast' isn't a rate; expected e.g. 250mbit"),
        (["allreduce", "1MiB", "--rate", "0gbit"], "it must be above 0"),
        (["allreduce", "1MiB", "--latency", "50"], "'50' isn't a time; expected e.g. 50us"),
        (["allreduce", "1MiB", "--hosts", "0"], "Invalid value for '--hosts'"),
        (["allgather", "1MiB", "--wire", "float16"], "only sums travel as float16; allgather doesn't add"),
        (["allreduce", "1MiB", "--wire", "int4"], "expected one of float32, bfloat16, float16"),
        (["allreduce", "1MiB", "--topology", "/nowhere"], "/nowhere is missing"),
        (["allreduce", "1MiB", "--topology", "/nowhere", "--hosts", "2"], "the cluster is described twice"),
    ],
)
def test_explain_refuses_what_it_cannot_read(arguments: list[str], message: str) -> None:
    assert message in refusal("explain", *arguments)


def test_what_only_the_model_can_refuse_is_one_message() -> None:
    """65,536 hosts' pieces of an element each don't fit a slot."""
    done = run("explain", "allgather", "1GiB", "--hosts", "70000", "--ranks", "1")
    assert isinstance(done.exception, EngineError)
    assert "allgather over 70000 ranks needs a larger arena" in str(done.exception)


# ---- topology --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either a job's name, or --hosts to emulate a network"),
        (["job", "--hosts", "2"], "give either a job's name, or --hosts"),
        (["job", "--rate", "1gbit"], "is for --hosts; a job's links are as they are"),
        (["--hosts", "2", "--rate", "quick"], "'quick' isn't a rate"),
    ],
)
def test_topology_refuses_what_it_cannot_read(arguments: list[str], message: str) -> None:
    assert message in refusal("topology", *arguments)


def test_topology_of_a_job_that_there_is_not(engine: LocalEngine) -> None:
    assert isinstance(run("topology", "nobody").exception, JobNotFound)


def test_topology_of_a_job_that_kept_none_says_how_to_get_one(engine: LocalEngine, agent: Callable[[str], str]) -> None:
    engine.submit(request("plain", options={"python": agent("")}))
    wait_for_end(engine, "plain")
    failure = run("topology", "plain").exception
    assert isinstance(failure, EngineError)
    assert "has kept no topology; a job measures it at its start" in str(failure)
    assert 'environment={"HDP_TOPOLOGY": "1"}' in str(failure)


def test_topology_of_a_job_is_shown_from_its_output(engine: LocalEngine, agent: Callable[[str], str]) -> None:
    """What an agent leaves in output/data is found in the archive; shown as text, as JSON, and explained with."""
    text = json.dumps(TOPOLOGY)
    leave = f'(root / "output" / "data" / "hdp-topology.json").write_text({text!r})\n'
    engine.submit(request("kept", options={"python": agent(leave)}))
    wait_for_end(engine, "kept")
    shown = run("topology", "kept").output
    assert "2, 4 ranks" in shown and "1 Gbit/s the slowest, 60 us from server to server" in shown
    assert re.search(r"algo-2 +10\.0\.0\.2 +2 +8 +4 \+ 4 +64 GiB +8\.0 GB/s +1 Gbit/s +1 Gbit/s", shown)
    assert json.loads(run("topology", "kept", "--json").output) == TOPOLOGY
    assert "over 2 hosts x 2 ranks" in run("explain", "allreduce", "--job", "kept").output


def test_an_archive_of_several_hosts_has_it_in_the_first_ones_folder(tmp_path: Path) -> None:
    path = tmp_path / "output.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        data = json.dumps(TOPOLOGY).encode()
        entry = tarfile.TarInfo("algo-1/hdp-topology.json")
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
    assert outputs.topology({"Hdp": {"output_artifacts": path.as_uri()}}) == TOPOLOGY
    with pytest.raises(EngineError, match=r"hdp-topology\.json is in s3://bucket/output\.tar\.gz: download"):
        outputs.topology({"Hdp": {"output_artifacts": "s3://bucket/output.tar.gz"}})
