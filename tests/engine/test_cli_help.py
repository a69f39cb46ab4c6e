"""Help and examples: every command has some, and every example is a command line that works."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_support import SECONDS, environment, executable, in_terminal
from engine_support import request, wait_for_end
from typer.testing import CliRunner

from hdp.estimator.cli.app import app
from hdp.estimator.cli.commands import TABLE
from hdp.estimator.cli.group import ELSEWHERE, built
from hdp.estimator.engines.local.engine import LocalEngine

EXAMPLES = [example for command in TABLE.values() for example in command.examples]
#: They need a cloud, a daemon, a shaped network or minutes: only their options are checked.
ELSEWHERE_ONLY = re.compile(
    r"--engine sagemaker|s3://|^hdp (build|images)|--network|--hosts 4 --rate 1gbit$|--repeats 5"
)
#: They go on until Ctrl-C.
ENDLESS = re.compile(r"^hdp serve")

TOPOLOGY = {
    "version": 1,
    "hosts": [
        {
            "name": f"algo-{number}", "address": f"10.0.0.{number}", "ranks": 2, "machine": str(number), "cpus": 8,
            "cpu_model": "a processor", "memory_bytes": 64 << 30, "copy_rate": 8e9, "add_rate": 9e9,
            "numa": [{"cpus": [0, 1], "memory_bytes": 32 << 30}],
        }
        for number in (1, 2)
    ],
    "flows": [{"source": 0, "target": 1, "rate": 119.5e6}, {"source": 1, "target": 0, "rate": 119.5e6}],
    "paths": [{"one": 0, "other": 1, "latency": 6e-5}], "barrier": 0.0002, "seconds": 0.25,
    "summary": {
        "ranks": 4, "hosts_on_a_machine": 1, "link_rate_bits_per_second": 1e9, "latency_seconds": 6e-5,
    },
}  # fmt: skip
TRACE = '[\n{"ph":"X","pid":1,"tid":1,"name":"allreduce #1","ts":1,"dur":2,"args":{"rank":0,"status":"OK"}}\n]\n'


def words_of(example: str) -> list[str]:
    """Its words, from the command's name to a redirection."""
    program, *words = shlex.split(example)
    assert program == "hdp"
    return words[: words.index(">")] if ">" in words else words


@pytest.mark.parametrize("name", TABLE)
def test_help_ends_with_one_to_three_examples_of_the_command(name: str) -> None:
    text = CliRunner().invoke(app, [name, "--help"]).output
    examples = TABLE[name].examples
    assert 1 <= len(examples) <= 3
    assert text.rstrip().splitlines()[-len(examples) :] == [f"    {example}" for example in examples]
    assert all(words_of(example)[0] == name for example in examples)


@pytest.mark.parametrize("name", TABLE)
def test_a_list_of_commands_says_what_the_command_says(name: str) -> None:
    """The table's line is the function's own first one, and fits into 80 columns."""
    text = " ".join(CliRunner().invoke(app, [name, "--help"]).output.split())
    assert TABLE[name].summary in text
    (line,) = [
        line for line in CliRunner().invoke(app, ["--help"]).output.splitlines() if line.startswith(f"  {name} ")
    ]
    assert line.endswith(TABLE[name].summary) and len(line) <= 80


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_has_the_options_that_there_are(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name, *rest = words_of(example)
    built(name).make_context(name, rest)


def test_an_option_that_there_is_not_would_be_noticed() -> None:
    done = CliRunner().invoke(app, ["jobs", "--al"])
    assert done.exit_code == 2 and "No such option: --al" in done.output and "--all" in done.output


@pytest.fixture
def folder(tmp_path: Path, engine: LocalEngine, agent: Callable[[str], str]) -> Path:
    """A folder with all that the examples name, and the job digits."""
    (tmp_path / "train.py").write_text(
        "from hdp import metrics\nfor step in range(3):\n    metrics.log(step=step, loss=1.0, samples=4)\n"
    )
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.bin").write_bytes(b"x" * 100)
    (tmp_path / "cluster.json").write_text(json.dumps(TOPOLOGY))
    (tmp_path / "hdp-timeline-rank-0.json").write_text(TRACE)
    leave = f"""
    (root / "output/data/hdp-topology.json").write_text({json.dumps(TOPOLOGY)!r})
    (root / "output/data/hdp-timeline-rank-0.json").write_text({TRACE!r})
    print("0 [algo-1:0] hello", flush=True)
    """
    engine.submit(request("digits", options={"python": agent(leave)}))
    wait_for_end(engine, "digits")
    executable(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("example", [e for e in EXAMPLES if not (ELSEWHERE_ONLY.search(e) or ENDLESS.search(e))])
def test_an_example_runs(example: str, folder: Path, engine: LocalEngine) -> None:
    """In a shell, as it stands; the comparison of two whole trainings without repeats."""
    line = example + (" --repeats 1 --no-baselines" if example.startswith("hdp compare") else "")
    done = subprocess.run(
        ["bash", "-c", line], cwd=folder, env=environment(folder, engine.home.path), capture_output=True, text=True,
        timeout=SECONDS,
    )  # fmt: skip
    assert (done.returncode, done.stderr.replace("\n", "")[:0]) == (0, ""), done.stdout + done.stderr


@pytest.mark.parametrize("example", [e for e in EXAMPLES if ENDLESS.search(e)])
def test_an_example_of_a_server_serves_until_ctrl_c(example: str, folder: Path, engine: LocalEngine) -> None:
    line = example if "--port" in example else f"{example} --port 0"
    one = in_terminal(["bash", "-c", f"exec {line}"], 80, environment(folder, engine.home.path), folder)
    try:
        one.read_until("Ctrl-C ends this")
        one.write("\x03")
        code, text = one.end()
    finally:
        one.close()
    assert code == 0 and "ended; jobs go on: hdp jobs" in text


@pytest.mark.parametrize(("word", "meant"), ELSEWHERE.items())
def test_words_of_other_tools_are_understood(word: str, meant: str) -> None:
    done = CliRunner().invoke(app, [word, "x"])
    assert done.exit_code == 2 and f"no command is called {word!r}; here it is `hdp {meant}`" in done.output
    assert meant in TABLE and word not in TABLE


def test_a_slip_of_the_pen_is_understood() -> None:
    done = CliRunner().invoke(app, ["decribe", "x"])
    assert done.exit_code == 2 and "no command is called 'decribe'; did you mean 'describe'?" in done.output


def test_exit_codes_are_in_the_help() -> None:
    text = " ".join(CliRunner().invoke(app, ["--help"]).output.split())
    assert "0, done; 1, it can't be done" in text and "130, ended by Ctrl-C; 141, whoever read" in text
