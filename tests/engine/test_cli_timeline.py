"""`hdp timeline`: where it finds the files of a job, what it merges, what it says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_support import request, wait_for_end
from typer.testing import CliRunner, Result

from hdp.contract.errors import EngineError, JobNotFound
from hdp.estimator.cli.app import app
from hdp.estimator.engines.local.engine import LocalEngine


def span(host: int, rank: int, begin: int, end: int, name: str = "allreduce #1") -> dict[str, Any]:
    args = {"rank": rank, "status": "OK"}
    return {"ph": "X", "pid": host, "tid": rank + 1, "name": name, "ts": begin, "dur": end - begin, "args": args}


def events(host: int, rank: int) -> list[dict[str, Any]]:
    """What rank `rank` on host `host` has written: its names, two operations, the first 1 s after 100 s."""
    return [
        {"ph": "M", "pid": host, "tid": rank + 1, "name": "process_name", "args": {"name": f"algo-{host}"}},
        {"ph": "M", "pid": host, "tid": rank + 1, "name": "thread_name", "args": {"name": f"rank {rank}"}},
        span(host, rank, 100_000_000, 101_000_000 + rank),
        {"ph": "X", "pid": host, "tid": rank + 1, "name": "transfer", "ts": 100_500_000, "dur": 500_000},
        span(host, rank, 101_500_000, 102_500_000, 'barrier "ü" #2'),
    ]


def text_of(written: list[dict[str, Any]]) -> str:
    return "[\n" + ",\n".join(map(json.dumps, written)) + "\n]\n"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["timeline", *arguments], catch_exceptions=True)


def test_a_jobs_files_become_one(engine: LocalEngine, agent: Callable[[str], str], tmp_path: Path) -> None:
    """Each of two hosts leaves the file of a rank in output/data, which is in the output archive when the job ends."""
    texts = {f"algo-{n + 1}": text_of(events(n + 1, n)) for n in (0, 1)}
    leave = f"""
        rank = int(host[-1]) - 1
        (root / "output" / "data" / f"hdp-timeline-rank-{{rank}}.json").write_text({texts!r}[host])
    """
    engine.submit(request("traced", 2, options={"python": agent(leave)}))
    wait_for_end(engine, "traced")
    done = run("traced", "-o", str(tmp_path / "trace.json"))
    assert done.exit_code == 0, done.output
    assert "trace.json: 4 operations, of 2 ranks on 2 hosts, in 2.5 s" in done.output
    assert "ui.perfetto.dev" in done.output
    assert json.loads((tmp_path / "trace.json").read_text()) == {
        "displayTimeUnit": "ms",
        "traceEvents": events(1, 0) + events(2, 1),
    }


@pytest.mark.parametrize("kept", [0.2, 0.5, 0.9])
def test_of_a_killed_process_all_whole_events_are_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: float
) -> None:
    whole, text = events(1, 0), text_of(events(1, 1))
    torn = text[: int(kept * len(text))]
    (tmp_path / "hdp-timeline-rank-0.json").write_text(text_of(whole))
    (tmp_path / "hdp-timeline-rank-1.json").write_text(torn)
    monkeypatch.chdir(tmp_path)
    done = run("--folder", str(tmp_path))
    assert "hdp-timeline-rank-1.json ends within an event" in done.output
    merged = json.loads((tmp_path / "hdp-timeline.json").read_text())["traceEvents"]
    assert merged[: len(whole)] == whole
    assert merged[len(whole) :] == events(1, 1)[: torn.count(",\n")]  # a line's end, and so an event's


def test_a_job_without_one_says_how_to_get_it(engine: LocalEngine, agent: Callable[[str], str]) -> None:
    engine.submit(request("plain", options={"python": agent("")}))
    wait_for_end(engine, "plain")
    failure = run("plain").exception
    assert isinstance(failure, EngineError)
    assert 'job plain has no timeline; a job writes one where it runs with environment={"HDP_TIMELINE": "1"}' in str(
        failure
    )


def test_what_it_refuses(engine: LocalEngine, tmp_path: Path) -> None:
    assert isinstance(run("nobody").exception, JobNotFound)
    assert run().exit_code == run("job", "--folder", str(tmp_path)).exit_code == 2
    failure = run("--folder", str(tmp_path)).exception
    assert isinstance(failure, EngineError)
    assert f"there is no hdp-timeline-*.json in {tmp_path}" in str(failure)
    (tmp_path / "hdp-timeline-rank-0.json").write_text(text_of(events(1, 0)))
    failure = run("--folder", str(tmp_path), "-o", str(tmp_path / "none" / "trace.json")).exception
    assert isinstance(failure, EngineError)
    assert "trace.json can't be written: No such file or directory" in str(failure)
