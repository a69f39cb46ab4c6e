"""benchmarks/allreduce.py as a user runs it: on emulated hosts, small and short."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from hdp.runtime.emulation import EmulationError, Network

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "allreduce.py"
SIZE = 256 << 10


@pytest.fixture(scope="module", autouse=True)
def namespaces():
    try:
        Network(hosts=2).close()
    except EmulationError as exc:
        pytest.skip(str(exc))


def command(*arguments):
    return [sys.executable, str(SCRIPT), *map(str, arguments)]


def run(*arguments):
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.parametrize(
    ("collective", "gloo_over_least"),
    # A flat ring over 4 ranks on 2 hosts sends 3/4 of the bytes where 1/2 would do; gloo's reduce_scatter is no ring.
    [
        ("allreduce", (1.49, 1.60)),
        pytest.param("allgather", (1.49, 1.60), marks=pytest.mark.slow),
        pytest.param("reduce_scatter", (1.49, 3.2), marks=pytest.mark.slow),
    ],
)
def test_two_peers(tmp_path, collective, gloo_over_least):
    """2 x 2, 3 rounds of 4 operations: verified, timed, counted; hdp sends the least possible bytes, gloo a ring's."""
    out, drawing = tmp_path / "a.json", tmp_path / "a.png"
    options = ["--sizes", SIZE, "--peers", "hdp,gloo", "--rounds", 3, "--iterations", 4]
    done = run("--collective", collective, *options, "--json", out, "--plot", drawing)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    rows = {row["peer"]: row for row in found["rows"]}
    assert rows.keys() == {"hdp", "gloo"} and not found["measured"]["failed"]
    for row in rows.values():
        assert (row["size"], row["rounds"], row["operations"]) == (SIZE, 3, 12)
        assert 0 < row["lower"] <= row["median"] <= row["upper"] and row["cpu"] > 0
        samples = found["measured"]["samples"][row["peer"]][str(SIZE)]
        assert [len(sample["times"]) for sample in samples] == [4, 4, 4]
        assert all(0 < t <= span for s in samples for t, span in zip(s["times"], s["spans"], strict=True))
    least = (2 if collective == "allreduce" else 1) * SIZE / 2 / 125e6
    assert rows["gloo"]["over_bound"] == pytest.approx(rows["gloo"]["median"] / least)
    assert 1.0 <= rows["hdp"]["payload_over_least"] < 1.02
    assert rows["hdp"]["payload_over_least"] < rows["hdp"]["raw_over_least"]
    assert gloo_over_least[0] < rows["gloo"]["payload_over_least"] < gloo_over_least[1]
    (verdict,) = found["verdicts"]
    assert verdict["best_peer"] == "gloo"
    assert verdict["ratio"] == pytest.approx(rows["gloo"]["median"] / rows["hdp"]["median"])
    assert drawing.read_bytes().startswith(b"\x89PNG")
    assert f"{verdict['ratio']:.2f} times as long as hdp" in done.stdout


@pytest.mark.slow
def test_one_host():
    """1 x 2 has no network, and shows what a copy of memory takes."""
    done = run("--hosts", 1, "--sizes", "4KiB", "--peers", "hdp", "--rounds", 1, "--iterations", 3)
    assert done.returncode == 0, done.stderr
    assert re.search(r"copy of 64 MiB .*: [0-9.]+ GB/s with 1 thread\(s\), [0-9.]+ GB/s with 2", done.stdout)


@pytest.mark.slow
def test_a_wrong_sum_is_a_failure(tmp_path):
    """Every rank of hdp finds 1 too much in element 7: hdp is reported as failed, and gloo is measured."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "if 'rank.py hdp ' in ' '.join(sys.orig_argv):\n"
        "    import hdp.collectives as hc\n"
        "    real = hc.Work.wait\n"
        "    def wait(self, timeout=None):\n"
        "        result = real(self, timeout)\n"
        "        result[7] += 1\n"
        "        return result\n"
        "    hc.Work.wait = wait\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    options = command("--sizes", "4KiB", "--peers", "hdp,gloo", "--rounds", 1, "--iterations", 2)
    done = subprocess.run(options, capture_output=True, text=True, timeout=100, env=environ, check=False)
    assert done.returncode == 1
    # 4 x (7 % 97) + 0 + 1 + 2 + 3
    assert re.search(r"hdp FAILED: .*element 7 is 35\.0, expected 34\.0; 1 of 1024", done.stdout, re.DOTALL)
    assert re.search(r"│ gloo +│", done.stdout)


@pytest.mark.slow
def test_a_hung_peer_is_given_up_and_nothing_is_left():
    """A rank of gloo is stopped in the middle: gloo fails after --limit, hdp's table comes, no process stays."""
    options = ["--sizes", "4KiB", "--peers", "hdp,gloo", "--rounds", 4, "--iterations", 60, "--limit", 2]
    with subprocess.Popen(command(*options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as benchmark:
        assert benchmark.stderr is not None and benchmark.stdout is not None
        assert "round 1 of 4" in benchmark.stderr.readline()
        family = psutil.Process(benchmark.pid).children(recursive=True)
        ranks = [p for p in family if "/gloo/control" in " ".join(p.cmdline())]
        assert len(ranks) == 4
        ranks[1].suspend()
        said, table = benchmark.stderr.read(), benchmark.stdout.read()
    assert benchmark.returncode == 1
    assert re.search(r"gloo failed: \d of 4 ranks gave no answer to \w+ within \d+ s", said)
    assert re.search(r"│ hdp +│", table)
    _, alive = psutil.wait_procs(family, timeout=5)
    assert not alive


@pytest.fixture
def folder():
    """A short path: sockets are below it."""
    with tempfile.TemporaryDirectory(prefix="bench-") as path:
        yield Path(path)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_it_is_ended(folder, number):
    """Ctrl-C, or killed: every process goes, and so do its temporary files."""
    environ = {**os.environ, "TMPDIR": str(folder)}
    options = command("--sizes", "4KiB", "--peers", "hdp,gloo", "--rounds", 1000, "--iterations", 10)
    with subprocess.Popen(options, stderr=subprocess.PIPE, text=True, env=environ) as benchmark:
        assert benchmark.stderr is not None
        assert "round 1 of 1000" in benchmark.stderr.readline()
        family = psutil.Process(benchmark.pid).children(recursive=True)
        assert len(family) > 8
        benchmark.send_signal(number)
        said = benchmark.stderr.read()
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive
    deadline = time.monotonic() + 5
    while list(folder.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not list(folder.iterdir())
    if number == signal.SIGINT:
        assert benchmark.returncode == 130 and "interrupted" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sizes", "64K"], "size '64K'; expected for example 4KiB"),
        (["--peers", "hdp,glo"], "no peer glo; there are hdp, gloo, openmpi"),
        (["--hosts", "1", "--ranks", "1"], "a collective needs two ranks or more"),
        (["--ranks", "0"], "--ranks is 0; expected 1 or more"),
        (["--rate", "fast"], "rate 'fast'"),
        (["--sizes", "6"], "size 6 is not a multiple of 4 bytes"),
        (["--collective", "allgather", "--sizes", "36"], "size 36 is not a multiple of 16 bytes"),
        (["--wire", "bfloat16", "--dtype", "int32"], "--wire compresses float32 sums"),
        (["--peers", "horovod-gloo", "--collective", "allgather"], "none of horovod-gloo has allgather"),
        (["--json", "/nowhere/a.json"], "/nowhere/a.json: its folder is not there"),
    ],
)
def test_what_can_t_be_measured_is_refused(arguments, message):
    """Exit code 2 and a reason, within the time that no rank could have started in."""
    done = run(*arguments)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.slow
def test_every_peer_runs_or_is_said_to_be_missing(tmp_path):
    """All peers by name: those installed give exact sums over the emulated network; the others have a line each."""
    out = tmp_path / "a.json"
    done = run("--sizes", "4KiB", "--rounds", 1, "--iterations", 3, "--json", out)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    measured = [row["peer"] for row in found["rows"]]
    assert sorted([*measured, *found["absent"]]) == sorted(found["options"]["peers"])
    assert {"hdp", "gloo"} <= set(measured)
    for row in found["rows"]:  # a library that bypasses the network sends nothing
        assert row["payload_over_least"] >= 1.0
    for peer in found["absent"]:
        assert re.search(
            rf"{peer} is left out: .* is not there: make (peers|horovod|peers horovod) installs it", done.stderr
        )
