"""What `hdp` writes: to terminals of any width, into pipes, in any encoding; and how it ends when it is cut short."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from cli_support import SECONDS, Terminal, environment, executable, in_terminal
from engine_support import end_all, request, stand_in, wait_for_end, wait_until

from hdp.estimator.engines.local import store
from hdp.estimator.engines.local.engine import LocalEngine
from hdp.estimator.engines.local.home import Home

LONG = "a" + "-long-job-name" * 4 + "-of-63"
FAILS = 'print("0 [algo-1:0] gr\u00fc\u00dfe \u2501", flush=True)\nsys.exit(3)\n'
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")

Agent = Callable[[str], str]


@pytest.fixture(scope="module")
def bin_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has `hdp` in it."""
    folder = tmp_path_factory.mktemp("bin")
    executable(folder)
    return folder


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """Two ended jobs: one whose name is 63 characters long and which failed, one called digits. Only looked at."""
    assert len(LONG) == 63
    folder = tmp_path_factory.mktemp("jobs")
    home = Home(folder / "h\u00e4me")
    engine, python = LocalEngine(home), stand_in(folder, sys.executable, FAILS)
    try:
        for name in (LONG, "digits"):
            engine.submit(request(name, num_hosts=2, options={"python": python}))
            wait_for_end(engine, name)
            store.update(home.job(name), lambda s: replace(s, notes=(*s.notes, "\x1b[31mred\x1b[0m and \x07a bell")))
        yield home
    finally:
        end_all(home)


def piped(bin_folder: Path, home: Home, *arguments: str, **environ: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["hdp", *arguments], env=environment(bin_folder, home.path, **environ), capture_output=True, timeout=SECONDS,
        check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


@contextmanager
def terminal(bin_folder: Path, home: Home, *arguments: str, columns: int = 80, **environ: str) -> Iterator[Terminal]:
    one = in_terminal(["hdp", *arguments], columns, environment(bin_folder, home.path, **environ))
    try:
        yield one
    finally:
        one.close()


def shown(bin_folder: Path, home: Home, *arguments: str, columns: int, **environ: str) -> str:
    with terminal(bin_folder, home, *arguments, columns=columns, **environ) as one:
        code, text = one.end()
    assert code == 0, text
    return text.replace("\r\n", "\n")


EVERYTHING = (
    ("jobs", "--all"), ("describe", LONG), ("logs", LONG), ("clean", "--dry-run"), ("doctor",), ("version",),
    ("explain", "allreduce"), ("--help",), ("compare", "--help"),
)  # fmt: skip


def test_into_a_pipe_a_job_is_one_line_with_its_whole_name(bin_folder: Path, jobs: Home) -> None:
    lines = piped(bin_folder, jobs, "jobs", COLUMNS="40").stdout.decode().splitlines()
    assert [line.split()[0] for line in lines] == ["job", "digits", LONG]
    assert re.fullmatch(LONG + r"  Failed  \d{4}-\d\d-\d\d \d\d:\d\d:\d\d  \d+s", lines[2])


@pytest.mark.parametrize("arguments", EVERYTHING, ids=lambda a: a[0])
def test_into_a_pipe_nothing_is_cut_and_there_are_no_control_characters(
    bin_folder: Path, jobs: Home, arguments: tuple[str, ...]
) -> None:
    """One job's note has a colour and a bell in it."""
    done = piped(bin_folder, jobs, *arguments)
    text = done.stdout.decode()
    assert done.returncode == 0 and text, done.stderr.decode()
    assert "\u2026" not in text and not CONTROLS.search(text), text
    assert done.stderr == b""


def test_a_description_in_a_pipe_has_whole_paths_and_a_row_a_host(bin_folder: Path, jobs: Home) -> None:
    text = piped(bin_folder, jobs, "describe", LONG).stdout.decode()
    for host in ("algo-1", "algo-2"):
        (row,) = [line for line in text.splitlines() if line.startswith(f"{host} ")]
        assert row.endswith(str(jobs.job(LONG).log(host)))
    assert re.search("^note +red and a bell$", text, re.MULTILINE)


@pytest.mark.parametrize("columns", [40, 80])
@pytest.mark.parametrize("command", ["jobs", "clean", "doctor", "explain", "describe"])
def test_on_a_narrow_terminal_no_word_is_taken_apart_and_no_line_is_longer_than_a_word(
    bin_folder: Path, jobs: Home, columns: int, command: str
) -> None:
    """Only a line that is one word, such as a path or a name of 63 characters, may be wider than the terminal."""
    arguments = {"clean": ("--dry-run",), "explain": ("allreduce",), "describe": (LONG,)}.get(command, ())
    text = shown(bin_folder, jobs, command, *arguments, columns=columns, NO_COLOR="1")
    whole = piped(bin_folder, jobs, command, *arguments).stdout.decode()
    for line in text.splitlines():
        one_word = len(line.split()) <= 2 or re.search(r"\s{2,}\S+$", line)  # of its cell
        assert len(line) <= columns or one_word, line
    for word in re.findall(r"\S{20,}", whole):
        assert word in text
    assert not CONTROLS.search(text)


def test_colours_are_for_terminals_that_want_them(bin_folder: Path, jobs: Home) -> None:
    assert "\x1b[31mFailed\x1b[0m" in shown(bin_folder, jobs, "jobs", columns=120)
    for environ in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        for command in (("jobs",), ("logs", "digits")):
            assert "\x1b" not in shown(bin_folder, jobs, *command, columns=120, **environ)


ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize("environ", [{"LANG": "C"}, {"LC_ALL": "C"}, ASCII, {"PYTHONIOENCODING": "ascii"}])
@pytest.mark.parametrize("arguments", [("logs", "digits"), ("describe", "digits"), ("doctor",)], ids=lambda a: a[0])
def test_letters_that_the_encoding_lacks_are_no_reason_to_fail(
    bin_folder: Path, jobs: Home, environ: dict[str, str], arguments: tuple[str, ...]
) -> None:
    """The home's path has an umlaut, and the log a bar."""
    done = piped(bin_folder, jobs, *arguments, **environ)
    assert (done.returncode, done.stderr) == (0, b"")
    if arguments[0] == "logs" and environ in (ASCII, {"PYTHONIOENCODING": "ascii"}):
        assert rb"gr\xfc\xdfe \u2501" in done.stdout


@pytest.mark.parametrize("arguments", [("jobs",), ("describe", "digits"), ("logs", "digits"), ("--help",), ("doctor",)])
def test_whoever_stops_reading_ends_it_quietly(bin_folder: Path, jobs: Home, arguments: tuple[str, ...]) -> None:
    """As `hdp jobs | head -1`: the pipe's reader is gone before anything is written."""
    ours, theirs = os.pipe()
    os.close(ours)
    environ = environment(bin_folder, jobs.path)
    done = subprocess.run(["hdp", *arguments], env=environ, stdout=theirs, stderr=subprocess.PIPE, timeout=SECONDS)
    os.close(theirs)
    assert (done.returncode, done.stderr) == (141, b"")


def test_the_reader_of_a_long_log_may_leave(bin_folder: Path, engine: LocalEngine, agent: Agent) -> None:
    """A megabyte of lines, of which `head` wants one."""
    engine.submit(request("talks", options={"python": agent('print(("0 [algo-1:0] " + "x" * 99 + "\\n") * 10_000)')}))
    wait_for_end(engine, "talks")
    environ = environment(bin_folder, engine.home.path)
    done = subprocess.run(
        ["bash", "-c", "hdp logs talks | head -n 1; echo ${PIPESTATUS[0]}"], env=environ, capture_output=True,
        text=True, timeout=SECONDS,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["algo-1:0 | " + "x" * 99, "141"]
    assert done.stderr == ""


def test_ctrl_c_ends_the_following_and_not_the_job(bin_folder: Path, engine: LocalEngine, agent: Agent) -> None:
    engine.submit(request("digits", options={"python": agent('print("0 [algo-1:0] up", flush=True)\ntime.sleep(60)')}))
    with terminal(bin_folder, engine.home, "logs", "-f", "digits", NO_COLOR="1") as one:
        one.read_until("algo-1:0 \\| up")
        one.write("\x03")
        code, text = one.end()
    assert code == 130
    assert "job digits goes on without you. Follow it: hdp logs -f digits" in text
    assert "Traceback" not in text and "Abort" not in text
    assert engine.describe("digits")["TrainingJobStatus"] == "InProgress"


def test_ctrl_c_while_a_job_is_stopped_says_that_it_stops_all_the_same(
    bin_folder: Path, engine: LocalEngine, agent: Agent
) -> None:
    """The agent takes its time to end."""
    body = """
    signal.signal(signal.SIGTERM, lambda *_: time.sleep(5) or sys.exit(143))
    print("0 [algo-1:0] up", flush=True)
    time.sleep(60)
    """
    engine.submit(request("digits", options={"python": agent(body)}))
    wait_until(lambda: len(engine.logs("digits", {}).lines) > 0)
    with terminal(bin_folder, engine.home, "stop", "--wait", "digits") as one:
        wait_until(lambda: engine.describe("digits")["TrainingJobStatus"] == "Stopping")
        one.write("\x03")
        code, text = one.end()
    assert code == 130 and "stop was sent to job digits, and it ends without you" in text
    assert wait_for_end(engine, "digits")["TrainingJobStatus"] == "Stopped"


@pytest.mark.parametrize("columns", [40, 80])
def test_progress_fits_the_terminal_in_any_encoding(
    bin_folder: Path, engine: LocalEngine, agent: Agent, columns: int
) -> None:
    """Followed on a terminal that takes ASCII alone: a bar that fits its line, and no error."""
    body = """
    from hdp.contract.metrics import Record, encode
    for step in range(6):
        record = Record(time.time(), time.monotonic(), {"a_metric_with_a_long_name": 0.5, "other": 2.0}, step, steps=9)
        print("0 [algo-1:0] gr\u00fc\u00dfe", encode(record), flush=True)
        time.sleep(0.3)
    """
    engine.submit(request("d" * 63, options={"python": agent(body)}))
    with terminal(bin_folder, engine.home, "logs", "-f", "d" * 63, columns=columns, **ASCII) as one:
        code, text = one.end()
    assert code == 0, text
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    bars = [part.rstrip() for part in re.split(r"[\r\n]+", plain) if re.search(r"step \d of 9", part)]
    assert len(bars) > 3 and max(map(len, bars[:-1])) <= columns, bars
    assert bars[-1].endswith(" left"), "what stays is whole"
    assert "step 5 of 9" in plain and r"gr\xfc\xdfe" in plain
