"""The Tab key, in real shells: bash, and zsh and fish where they are installed."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from cli_support import SECONDS, environment, executable, in_terminal

Typed = Callable[[str, str], None]
SHELLS = ("bash", "zsh", "fish")
#: What a program of ours would load for jobs, data and clouds, and what a table needs.
HEAVY = ("boto3", "botocore", "docker", "numpy", "pydantic_settings", "rich", "torch", "tensorflow", "hdp.runtime")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A home with two jobs of the local engine and one that was followed on SageMaker; HOME is the test's own."""
    jobs = tmp_path / "h\u00e4me" / "jobs"
    for name in ("digits-1", "digits-2", "other"):
        (jobs / name / "logs").mkdir(parents=True)
    (jobs / ".new-x").mkdir()
    (jobs / "other" / "logs" / "algo-1.log").touch()
    (jobs.parent / "cursors" / "sagemaker-eu-west-1").mkdir(parents=True)
    (jobs.parent / "cursors" / "sagemaker-eu-west-1" / "far-away.json").write_text("{}")
    executable(tmp_path)
    return environment(tmp_path, jobs.parent, HOME=str(tmp_path), LC_ALL="C.UTF-8")


def offered(environ: Mapping[str, str], *words: str) -> list[str]:
    """What bash's function gets for `words`, the last of them unfinished."""
    asked = {"_HDP_COMPLETE": "complete_bash", "COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        ["hdp"], env={**environ, **asked}, capture_output=True, text=True, timeout=SECONDS, check=True
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("hdp des", ["describe"]),
        ("hdp describe ", ["digits-1", "digits-2", "other"]),
        ("hdp describe d", ["digits-1", "digits-2"]),
        ("hdp describe --engine sagemaker ", ["far-away"]),
        ("hdp describe --engine docker o", ["other"]),
        ("hdp clean digits-1 d", ["digits-2"]),
        ("hdp logs other --host ", ["algo-1"]),
        ("hdp logs digits-1 --res", ["--resume"]),
        ("hdp report o", ["other"]),
        ("hdp timeline o", ["other"]),
        ("hdp topology --rate 1", ["100gbit", "100mbit", "10gbit", "1gbit"]),
        ("hdp explain all", ["allgather", "allreduce", "alltoall"]),
        ("hdp explain allreduce --wire b", ["bfloat16"]),
        ("hdp explain allreduce --job o", ["other"]),
        ("hdp lint-input data --mode F", ["FastFile", "File"]),
        ("hdp lint-input data --type M", ["ManifestFile"]),
        ("hdp build t", ["tensorflow", "torch"]),
        ("hdp build mpi --framework tor", ["torch"]),
        ("hdp serve --instance-types local_", ["local_gpu"]),
        ("hdp compare train.py hdp g", ["gloo"]),
        ("hdp compare train.py --instance-type d", ["docker"]),
        ("hdp jobs --engine ", ["docker", "local", "sagemaker"]),
        ("hdp clean --older-than 1", ["12h", "1d", "1h"]),
    ],
)
def test_what_is_offered(environ: dict[str, str], line: str, expected: list[str]) -> None:
    assert sorted(offered(environ, *line.split(" "))) == expected


def test_every_command_is_offered(environ: dict[str, str]) -> None:
    from hdp.estimator.cli.commands import TABLE

    assert offered(environ, "hdp", "") == list(TABLE)


def test_a_store_that_cannot_be_read_offers_nothing(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert offered({**environ, "HDP_HOME": str(tmp_path / "file")}, "hdp", "describe", "") == []


def test_nothing_heavy_is_loaded(environ: dict[str, str]) -> None:
    """As the Tab key calls it; Python itself then lists what it has."""
    code = (
        "import atexit, sys\n"
        "atexit.register(lambda: print(*sys.modules, sep='\\n', file=sys.stderr))\n"
        "from hdp.estimator.cli import main\nsys.argv = ['hdp']\nmain()\n"
    )
    asked = {"_HDP_COMPLETE": "complete_bash", "COMP_WORDS": "hdp\ndescribe\nd", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**environ, **asked}, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.stdout.split() == ["digits-1", "digits-2"]
    loaded = set(done.stderr.split())
    assert "hdp.estimator.cli.jobs" in loaded
    assert not {m for m in loaded for heavy in HEAVY if m == heavy or m.startswith(f"{heavy}.")}


def test_the_tab_key_costs_little(environ: dict[str, str]) -> None:
    """Processor time of a completion, best of three, against Python and Typer alone: at most so much again."""

    def cost(command: list[str], **more: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, env={**environ, **more}, capture_output=True, check=True, timeout=SECONDS)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    words = {"_HDP_COMPLETE": "complete_bash", "COMP_WORDS": "hdp\ndescribe\nd", "COMP_CWORD": "2"}
    alone = [sys.executable, "-c", "import typer.main, typer._adapters"]
    pairs = [(cost(["hdp"], **words), cost(alone)) for _ in range(3)]
    assert min(ours for ours, _ in pairs) < 2 * min(typers for _, typers in pairs), pairs


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_shown_and_installed_for_each_shell(environ: dict[str, str], shell: str, tmp_path: Path) -> None:
    """As Typer does it where it doesn't look which shell has called it."""
    named = {**environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    run = {"env": named, "capture_output": True, "text": True, "timeout": SECONDS}
    shown = subprocess.run(["hdp", "--show-completion", shell], **run)
    assert shown.returncode == 0 and f"_HDP_COMPLETE=complete_{shell}" in shown.stdout
    done = subprocess.run(["hdp", "--install-completion", shell], **run)
    assert done.returncode == 0, done.stderr
    files = {"bash": ".bash_completions/hdp.sh", "zsh": ".zfunc/_hdp", "fish": ".config/fish/completions/hdp.fish"}
    assert (tmp_path / files[shell]).read_text().strip() == shown.stdout.strip()


def test_bash_that_calls_it_is_recognised(environ: dict[str, str]) -> None:
    done = subprocess.run(
        ["bash", "-c", "hdp --show-completion; true"], env=environ, capture_output=True, text=True, timeout=SECONDS
    )
    assert "complete -o default -F _hdp_completion hdp" in done.stdout


@pytest.fixture(params=SHELLS)
def typed(request: pytest.FixtureRequest, environ: dict[str, str], tmp_path: Path) -> Iterator[Typed]:
    """Types into an interactive shell in which completion was installed, and reads until it sees what is expected."""
    shell = request.param
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    named = {**environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    subprocess.run(["hdp", "--install-completion", shell], env=named, check=True, timeout=SECONDS, capture_output=True)
    start = {"bash": ["bash", "--noprofile", "-i"], "zsh": ["zsh", "-i"], "fish": ["fish", "-i"]}[shell]
    one = in_terminal(start, 120, {**environ, "PS1": "ready> "}, tmp_path)

    def type_and_read(text: str, expected: str) -> None:
        one.write(text)
        one.read_until(expected, 20.0)

    try:
        if shell == "bash":
            one.write("PS1='rea''dy> '; bind 'set bell-style none'\r")
            one.read_until("ready> $")
        if shell == "zsh":
            # Its first Tab only loads what Typer has installed.
            type_and_read("hdp \t", "hdp ")
        else:
            one.write("hdp ")
        yield type_and_read
    finally:
        one.close()


def test_a_shell_completes_commands_and_jobs(typed: Typed) -> None:
    """`cle` Tab `oth` Tab; of two jobs that begin the same it lists both, at the third Tab at the latest."""
    typed("cle\t", "clean ")
    typed("oth\t", "other ")
    typed("d\t\t\t", r"digits-1\s(.|\n)*digits-2")
