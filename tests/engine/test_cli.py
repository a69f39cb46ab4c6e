"""The command `hdp` around real jobs."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from engine_support import client_environment, request, wait_for_end, wait_until

from hdp.contract.errors import TrainingJobStopped
from hdp.estimator.cli import main
from hdp.estimator.engines.local import store
from hdp.estimator.engines.local.engine import LocalEngine
from hdp.estimator.engines.local.home import Home
from hdp.estimator.engines.local.state import JobState
from hdp.estimator.job import TrainingJob

Agent = Callable[[str], str]
HELLO = 'print(f"{time.time():.6f} [{host}:0] hello", flush=True)\n'
MODEL = '(root / "model" / "w.bin").write_bytes(os.urandom(100_000))\n'


@dataclass(frozen=True)
class Done:
    """How the command ended."""

    returncode: int
    stdout: str
    stderr: str


Hdp = Callable[..., Done]


@pytest.fixture
def hdp(home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Hdp:
    """Calls the command's entry point in this process, as the console script does."""

    def call(*arguments: str, **environ: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["hdp", *arguments])
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main()
        out = capsys.readouterr()
        return Done(int(caught.value.code or 0), out.out, out.err)

    return call


def run(engine: LocalEngine, name: str, python: str) -> None:
    engine.submit(request(name, options={"python": python}))
    wait_for_end(engine, name)


def test_no_jobs_yet_says_how_to_start_one(engine: LocalEngine, hdp: Hdp) -> None:
    assert "Estimator(...).fit(...) starts one" in hdp("jobs").stdout


def test_jobs_costs_little(home: Home) -> None:
    """Processor time of the command as a process, best of three, against Python and the libraries that it stands on."""

    def cost(*command: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *command], env=client_environment(home.path), capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    libraries, jobs = ("-c", "import typer.main, pydantic, rich.table"), ("-m", "hdp.estimator.cli", "jobs")
    pairs = [(cost(*jobs), cost(*libraries)) for _ in range(3)]
    assert min(j for j, _ in pairs) < 4 * min(n for _, n in pairs), pairs


def test_jobs_lists_recent_ones_and_counts_the_others(engine: LocalEngine, hdp: Hdp, agent: Agent) -> None:
    """One job ended now, one (by its record) two days ago. Expected: one row and a hint; with --all both."""
    for name in ("old", "fresh"):
        run(engine, name, agent("pass"))
    two_days = 2 * 86400

    def age(s: JobState) -> JobState:
        steps = tuple(replace(step, time=step.time - two_days) for step in s.transitions)
        return replace(s, transitions=steps, training_ended=(s.training_ended or 0) - two_days)

    store.update(engine.home.job("old"), age)
    shown = hdp("jobs").stdout
    assert "fresh" in shown and "1 older: hdp jobs --all" in shown and "old " not in shown
    everything = hdp("jobs", "--all").stdout.splitlines()
    assert [line.split()[0] for line in everything[1:]] == ["fresh", "old"]


def test_describe_shows_status_reason_and_hosts(engine: LocalEngine, hdp: Hdp, agent: Agent) -> None:
    run(engine, "digits", agent(HELLO + "sys.exit(3)"))
    shown = hdp("describe", "digits").stdout
    assert "Failed" in shown and "host algo-1 failed (exit code 3)" in shown
    assert str(engine.home.job("digits").log("algo-1")) in shown


def test_describe_as_json_is_the_whole_answer(engine: LocalEngine, hdp: Hdp, agent: Agent) -> None:
    run(engine, "digits", agent("pass"))
    answer = json.loads(hdp("describe", "digits", "--json").stdout)
    assert answer["TrainingJobStatus"] == "Completed"
    assert answer["Hdp"]["job_dir"] == str(engine.home.job("digits").path)


def test_describe_as_json_hides_secrets(engine: LocalEngine, hdp: Hdp, agent: Agent) -> None:
    """The job's Environment has a token. Expected: hidden in what people read, there for programs."""
    variables = {"HF_TOKEN": "s3cr3t", "SIZE": "3"}
    engine.submit(request("digits", options={"python": agent("pass")}, Environment=variables))
    shown = json.loads(hdp("describe", "digits", "--json").stdout)
    assert shown["Environment"] == {"HF_TOKEN": "***", "SIZE": "3"}
    assert engine.describe("digits")["Environment"]["HF_TOKEN"] == "s3cr3t"


def test_logs_can_be_narrowed(engine: LocalEngine, hdp: Hdp, agent: Agent) -> None:
    run(engine, "digits", agent(HELLO + 'print("0.5 [algo-1:1] other", flush=True)'))
    assert hdp("logs", "digits").stdout == "algo-1:1 | other\nalgo-1:0 | hello\n"
    assert hdp("logs", "digits", "--rank", "1").stdout == "algo-1:1 | other\n"
    assert hdp("logs", "digits", "--host", "algo-9").stdout == ""


@pytest.mark.parametrize("command", [["describe"], ["logs", "-f"], ["stop"], ["clean"]])
def test_an_unknown_job_is_one_message(engine: LocalEngine, hdp: Hdp, agent: Agent, command: list[str]) -> None:
    """Expected: exit status 1, the near name on stderr, no traceback, nothing on stdout."""
    run(engine, "digits", agent("pass"))
    done = hdp(*command, "digist")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("hdp: no job is called 'digist'") and "did you mean 'digits'?" in done.stderr
    assert "Traceback" not in done.stderr


def test_clean_frees_trees_and_keeps_the_rest(engine: LocalEngine, hdp: Hdp, agent: Agent) -> None:
    run(engine, "digits", agent(HELLO + MODEL))
    job = engine.home.job("digits")
    assert "would free" in hdp("clean", "--dry-run").stdout
    assert job.tree("algo-1").model.exists()
    assert "host trees removed" in hdp("clean").stdout
    assert not job.tree("algo-1").model.exists()
    assert (job.artifacts / "model.tar.gz").exists()
    assert hdp("logs", "digits").stdout == "algo-1:0 | hello\n"
    assert hdp("clean").stdout == "freed 0 B\n"


def test_clean_keeps_checkpoints_of_jobs_that_did_not_complete(engine: LocalEngine, hdp: Hdp, agent: Agent) -> None:
    run(engine, "digits", agent('(root / "checkpoints/c.pt").write_text("x")\nsys.exit(1)'))
    hdp("clean")
    assert [p.name for p in engine.home.job("digits").tree("algo-1").root.iterdir()] == ["checkpoints"]


def test_clean_never_follows_a_link_out_of_the_job(engine: LocalEngine, hdp: Hdp, agent: Agent, tmp_path: Path) -> None:
    """Checkpoints are kept in a folder of the user. Expected: it is untouched when the whole job is removed."""
    (tmp_path / "kept").mkdir()
    options = {"python": agent('(root / "checkpoints/c.pt").write_text("x")')}
    engine.submit(request("digits", options=options, CheckpointConfig={"S3Uri": f"file://{tmp_path}/kept"}))
    wait_for_end(engine, "digits")
    assert hdp("clean", "--all").returncode == 0
    assert (tmp_path / "kept" / "c.pt").exists()
    assert engine.list() == []


def test_clean_never_touches_a_running_job(engine: LocalEngine, hdp: Hdp, agent: Agent) -> None:
    engine.submit(request("digits", options={"python": agent("time.sleep(60)")}))
    assert "kept: it is running" in hdp("clean", "--all", "digits").stdout
    assert engine.describe("digits")["TrainingJobStatus"] == "InProgress"


def test_clean_frees_the_name(engine: LocalEngine, hdp: Hdp, agent: Agent) -> None:
    run(engine, "digits", agent("pass"))
    hdp("clean", "digits", "--all")
    run(engine, "digits", agent("pass"))


def test_clean_by_age(engine: LocalEngine, hdp: Hdp, agent: Agent) -> None:
    run(engine, "digits", agent("pass"))
    assert hdp("clean", "--all", "--older-than", "1h").stdout == "freed 0 B\n"
    bad = hdp("clean", "--older-than", "soon")
    assert bad.returncode == 2 and "isn't a duration" in bad.stderr


def test_clean_removes_bundles_that_no_job_uses(engine: LocalEngine, hdp: Hdp) -> None:
    """Two bundles: one unused for two hours, one fresh. Expected: only the first goes."""
    import hashlib

    digests = [hashlib.sha256(text).hexdigest() for text in (b"old", b"fresh")]
    for digest, text in zip(digests, (b"old", b"fresh"), strict=True):
        engine.put_bundle(digest, text)
    past = time.time() - 7200
    os.utime(engine.home.bundle(digests[0]), (past, past))
    hdp("clean", "--all")
    assert [p.name for p in engine.home.bundles.iterdir()] == [f"{digests[1]}.tar.gz"]


def test_doctor_names_what_is_missing_and_the_remedy(engine: LocalEngine, hdp: Hdp) -> None:
    """An empty PATH. Expected: no compiler, no MPI, and what to install for each; a low exit status all the same."""
    done = hdp("doctor", PATH="/nonexistent")
    assert "C++ compiler" in done.stdout and "apt install g++" in done.stdout
    assert "hdp-train[mpi]" in done.stdout
    assert done.returncode == 0


def test_doctor_fails_where_no_job_could_run(engine: LocalEngine, hdp: Hdp, tmp_path: Path) -> None:
    """HDP_HOME below a file. Expected: exit status 1 and the remedy."""
    (tmp_path / "file").touch()
    done = hdp("doctor", HDP_HOME=str(tmp_path / "file" / "x"))
    assert done.returncode == 1
    assert "set HDP_HOME to a folder that you own" in done.stdout


def test_stop_says_what_happens_next(engine: LocalEngine, hdp: Hdp, agent: Agent) -> None:
    """A running job, then the same one once it has ended."""
    engine.submit(request("digits", options={"python": agent("time.sleep(60)")}))
    wait_until(lambda: engine.describe("digits")["SecondaryStatus"] == "Training")
    said = hdp("stop", "digits").stdout
    assert said.startswith("stop sent to job digits: every rank gets SIGTERM and time to write a checkpoint")
    assert "hdp logs -f digits" in said and "hdp describe digits" in said
    wait_for_end(engine, "digits")
    assert hdp("stop", "digits").stdout == "job digits has ended already: Stopped\n"


def test_describe_shows_files_of_unknown_rank_and_failed_handlers(engine: LocalEngine, hdp: Hdp, agent: Agent) -> None:
    """Stopped; a.pt is rank 0's, b.pt nobody's; rank 1's handler has raised. Expected: a row and a line say so."""
    rank = {"exit_code": 0, "signal": None, "seconds_after_stop": 1.5, "killed_at_deadline": False}
    ranks = [{"rank": 0, **rank, "checkpoints": ["a.pt"]}, {"rank": 1, **rank, "checkpoints": []}]
    failure = {"host": "algo-1", "rank": 1, "time": 1e12, "exception": "RuntimeError: boom in handler"}
    failures = [failure, {**failure, "rank": 0, "exception": "PeerLost: rank 1", "collateral": True}]
    report = {"host": "algo-1", "ranks": ranks, "failures": failures, "first_cause": None, "stopped": True}
    text = json.dumps({**report, "checkpoints": ["a.pt", "b.pt"]})
    body = f"""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    (root / "output/hdp-report.json").write_text({text!r})
    print("0 [algo-1] up", flush=True)
    time.sleep(60)
    """
    engine.submit(request("digits", options={"python": agent(body)}))
    wait_until(lambda: "up" in hdp("logs", "digits").stdout)
    hdp("stop", "digits", "--wait")
    rows = [" ".join(line.split()) for line in hdp("describe", "digits").stdout.splitlines()]
    assert "unknown rank algo-1 b.pt" in rows
    assert "while stopping rank 1 on algo-1 failed: RuntimeError: boom in handler" in rows
    with pytest.raises(TrainingJobStopped) as caught:
        TrainingJob(engine, "digits").wait(logs=None)
    assert "checkpoints: algo-1: a.pt b.pt (unknown rank)\nrank 1 on algo-1 failed: RuntimeError: boom in" in str(
        caught.value
    )
    assert "PeerLost" not in str(caught.value)


def test_version(engine: LocalEngine, hdp: Hdp) -> None:
    from importlib.metadata import version

    assert hdp("version").stdout == version("hdp-train") + "\n"
