"""What `hdp` says to somebody who is wrong: what happened, what to do, exit status 1 or 2, never a traceback."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_support import SECONDS, environment, executable
from engine_support import request, wait_for_end

from hdp.estimator.engines.local.engine import LocalEngine
from hdp.estimator.engines.local.home import Home

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def hdp(home: Home, tmp_path: Path) -> Run:
    """Calls the command as a program, in an empty folder."""
    folder = tmp_path / "empty"
    folder.mkdir()
    executable(tmp_path)

    def call(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            ["hdp", *arguments], env=environment(tmp_path, home.path, **environ), cwd=folder, capture_output=True,
            text=True, timeout=SECONDS,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return call


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("describe nobody", "no job is called 'nobody' in {home}/jobs; `hdp jobs --all` lists those that there are"),
        ("describe ../x", "no job is called '../x'"),
        ("jobs --engine locl", "no engine is called 'locl'; did you mean 'local'? (known: docker, local, sagemaker)"),
        ("jobs --engine sagemaker", "no region is known for SageMaker; set AWS_REGION"),
        ("serve --instance-types gpu", "'gpu' isn't one of local, local_gpu"),
        ("serve --python /nope", "no executable '/nope' is on this machine; give the path of a Python"),
        ("lint-input nowhere", "nowhere can't be read: No such file or directory; expected a folder or a file"),
        ("compare nothing.py hdp", "nothing.py isn't a file on this machine; check the path"),
        (
            "timeline --folder .",
            "there is no hdp-timeline-*.json in .; ranks write them where they run with HDP_TIMELINE",
        ),
    ],
)
def test_what_cannot_be_done_is_one_message_with_a_remedy(
    hdp: Run, home: Home, monkeypatch: pytest.MonkeyPatch, line: str, said: str
) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    done = hdp(*line.split(), AWS_CONFIG_FILE="/nonexistent")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("hdp: ") and said.format(home=home.path) in done.stderr


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "Usage: hdp"),
        ("describe", "Missing argument"),
        ("jobs extra", "unexpected extra argument"),
        ("logs x --rank two", "--rank"),
        ("logs x --rank -1", "--rank"),
        ("clean --older-than soon", "'soon' isn't a duration; expected e.g. 30m, 12h, 7d or 2w"),
        ("build torhc", "'torhc' is no kind of image; did you mean 'torch'?; expected one of torch, tensorflow, mpi"),
        ("build torch --build-arg X", "'X': expected NAME=VALUE"),
        ("serve --port 99999", "--port"),
        ("compare t.py hdp --save /nope/x.json", "there is no folder /nope; make it first"),
        ("compare t.py hdp hdp", "a label is there twice"),
        ("topology", "give either a job's name, or --hosts"),
    ],
)
def test_a_wrong_command_line_is_status_2_and_starts_nothing(hdp: Run, home: Home, line: str, said: str) -> None:
    done = hdp(*line.split())
    assert done.returncode == 2 and said in done.stderr + done.stdout
    assert not home.path.exists()


@pytest.mark.parametrize(
    "command", [["jobs"], ["describe", "x"], ["logs", "x"], ["stop", "x"], ["clean"], ["report", "x"]]
)
def test_a_store_that_is_no_folder_is_named(hdp: Run, tmp_path: Path, command: list[str]) -> None:
    """HDP_HOME is a file."""
    (tmp_path / "file").touch()
    done = hdp(*command, HDP_HOME=str(tmp_path / "file"))
    assert (done.returncode, done.stdout) == (1, "")
    said = f"hdp: the jobs in {tmp_path}/file/jobs can't be read: Not a directory; set HDP_HOME to the folder that has"
    assert done.stderr.startswith(said)


def test_records_that_cannot_be_read_are_named_and_the_others_shown(hdp: Run, home: Home) -> None:
    """One record is torn, one is another program's, one folder has none."""
    for name, text in (("torn", '{"x": '), ("alien", json.dumps({"a": 1}))):
        (home.jobs / name).mkdir(parents=True)
        (home.jobs / name / "state.json").write_text(text)
    (home.jobs / "bare").mkdir()
    done = hdp("jobs")
    assert done.returncode == 0
    for name in ("torn", "alien"):
        assert f"{name}/state.json can't be read as a job's state" in done.stderr
        assert f"`hdp clean {name} --all` removes the job" in done.stderr
        assert hdp("describe", name).returncode == 1
    bare = hdp("describe", "bare")
    assert bare.returncode == 1 and f"the folder {home.jobs}/bare has no job's record" in bare.stderr
    shutil.rmtree(home.jobs)  # what ends a test's jobs would look at them too


def test_a_host_or_a_rank_that_the_job_lacks_is_said(
    hdp: Run, engine: LocalEngine, agent: Callable[[str], str]
) -> None:
    """Two hosts without ranks; then one with rank 0. Nothing would be shown, and nobody would know why."""
    rank = {"rank": 0, "exit_code": 0, "signal": None, "seconds_after_stop": None, "killed_at_deadline": False}
    report = {"host": "algo-1", "ranks": [{**rank, "checkpoints": []}], "failures": [], "first_cause": None}
    text = json.dumps({**report, "stopped": False, "checkpoints": []})
    body = f'(root / "output/hdp-report.json").write_text({text!r})'
    engine.submit(request("digits", num_hosts=1, options={"python": agent(body)}))
    wait_for_end(engine, "digits")
    wrong_host, wrong_rank = hdp("logs", "digits", "--host", "algo-9"), hdp("logs", "digits", "--rank", "7")
    assert wrong_host.returncode == wrong_rank.returncode == 1
    assert "job digits has no host 'algo-9'; did you mean 'algo-1'? (there are algo-1)" in wrong_host.stderr
    assert "job digits has no rank 7; its ranks are 0 to 0" in wrong_rank.stderr
    assert hdp("logs", "digits", "--rank", "0").returncode == 0
