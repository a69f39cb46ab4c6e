"""benchmarks/device.sh, and what of the benchmarks it runs, without a GPU: on the processor, and on the fake driver."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import fake_cuda_driver
import pytest

torch = pytest.importorskip("torch", reason="the device benchmarks need torch")
pytestmark = pytest.mark.timeout(400)  # where much else runs
ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
sys.path.append(str(BENCHMARKS))

import allreduce  # noqa: E402  (where they are has to be said first)
import copies  # noqa: E402
import device  # noqa: E402
import device_plan  # noqa: E402
import device_report  # noqa: E402
import device_trace  # noqa: E402
import efficientnet  # noqa: E402
import jobs  # noqa: E402
import report  # noqa: E402
import training  # noqa: E402
from device_plan import Command, Plan, Step  # noqa: E402
from session import PeerFailed  # noqa: E402


def run(script, *arguments, **environ):
    """Run a script of the folder, as a user does."""
    start = ["sh"] if script.endswith(".sh") else [sys.executable]
    return subprocess.run(
        [*start, str(BENCHMARKS / script), *map(str, arguments)],
        env={**os.environ, "PYTHON": sys.executable, **environ},
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )


@pytest.fixture
def plan(tmp_path):
    """Of the processor, with a minute for everything."""
    return Plan(ROOT, tmp_path, "cpu", True, time.monotonic() + 60)


# -- what it refuses -------------------------------------------------------------------------------------------------


@pytest.mark.skipif(device.no_gpu() is None, reason="there is a GPU here")
def test_without_a_gpu_it_says_so_and_builds_nothing(tmp_path):
    done = run("device.sh", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert "there is no GPU here" in done.stderr and "--device cpu tries the program without one" in done.stderr
    assert not (tmp_path / "out").exists()


def test_without_torch_it_says_so(tmp_path):
    """An interpreter that sees nothing but its own library: what it lacks is named."""
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    done = run("device.sh", "--device", "cpu", "--out", tmp_path / "out", PYTHON=str(bare), PYTHONPATH="")
    assert done.returncode == 2
    assert f"{bare} has no numpy, rich, torch; give another interpreter as PYTHON=..." in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("main", "arguments", "message"),
    [
        (device, ["--only", "build,paint"], "no step paint; there are build, copies, checks, allreduce, train"),
        (device, ["--limit", "0"], "--limit is 0.0; expected more than 0"),
        (device, ["--device", "tpu"], "invalid choice: 'tpu'"),
        (allreduce, ["--device", "cpu", "--wire", "float16"], "--device measures what torch.distributed has"),
        (allreduce, ["--copy-rate", "55"], "--copy-rate is 55.0; expected more than 0, and --device"),
        (allreduce, ["--device", "cpu", "--copy-rate", "-1"], "--copy-rate is -1.0"),
        (efficientnet, ["--curve", "-1"], "--curve is -1; expected 0 or more"),
        (efficientnet, ["--backends", "hdp,nccl"], "no library 'nccl'; there are hdp, smddp, gloo"),
    ],
)
def test_bad_arguments_are_refused(main, arguments, message, capsys):
    with pytest.raises(SystemExit) as raised:
        main.parsed(arguments)
    assert raised.value.code == 2
    assert message in capsys.readouterr().err


def test_the_steps_keep_their_order():
    assert device.parsed(["--only", "train,build"]).only == ("build", "train")


# -- a step ----------------------------------------------------------------------------------------------------------


def _commands(plan, step, *scripts, seconds=30.0):
    commands = [Command(f"c{i}", [sys.executable, "-c", s], plan.out / f"{i}.json") for i, s in enumerate(scripts)]
    device_plan._together(commands, plan, step, time.monotonic() + seconds)


def test_commands_run_beside_each_other_and_leave_their_results(plan):
    """Each waits for the other one's file: one after the other they would never end."""
    here = str(plan.out)
    meet = (
        f"import json, pathlib, time; p = pathlib.Path({here!r}); (p / 'here{{0}}').touch()\n"
        "while not (p / 'here{1}').exists(): time.sleep(0.01)\n"
        "(p / '{0}.json').write_text(json.dumps({{'me': {0}}}))"
    )
    step = Step("x")
    _commands(plan, step, meet.format(0, 1), meet.format(1, 0))
    assert (step.faults, step.found) == ([], {"c0": {"me": 0}, "c1": {"me": 1}})


def test_a_command_that_fails_is_told_with_the_end_of_its_log(plan):
    step = Step("x")
    _commands(plan, step, "import sys; print('no room'); sys.exit(3)")
    assert len(step.faults) == 2 and not step.found
    assert "c0 has exit code 3" in step.faults[0] and "no room" in step.faults[0]
    assert step.faults[1] == "c0 left no results"


def test_a_command_that_hangs_is_ended(plan):
    """It would sleep for a minute; what it started goes with it."""
    step, began = Step("x"), time.monotonic()
    _commands(plan, step, "import time; print('waiting', flush=True); time.sleep(60)", seconds=2.0)
    assert time.monotonic() - began < 20
    assert "c0 was ended after its time" in step.faults[0] and "waiting" in step.faults[0]


def test_old_results_don_t_count(plan):
    (plan.out / "0.json").write_text('{"old": 1}')
    step = Step("x")
    _commands(plan, step, "pass")
    assert (step.faults, step.found) == (["c0 left no results"], {})


def test_a_step_without_time_is_not_begun(plan, monkeypatch):
    monkeypatch.setitem(device_plan.STEPS, "build", (60.0, lambda *_: pytest.fail("it was begun")))
    late = dataclasses.replace(plan, deadline=time.monotonic() + 5)
    assert device_plan.run("build", late).faults == ["not begun: the time of all steps is over"]


@pytest.mark.skipif(shutil.which("cmake") is None, reason="there is no cmake")
def test_a_build_that_fails_leaves_no_older_core(tmp_path):
    """The sources don't compile: the fault names the log, and the library of an earlier build is gone."""
    (tmp_path / "runtime" / "csrc").mkdir(parents=True)
    (tmp_path / "runtime" / "csrc" / "CMakeLists.txt").write_text("message(FATAL_ERROR no)\n")
    broken = Plan(tmp_path, tmp_path, "cpu", True, time.monotonic() + 60)
    broken.library.parent.mkdir(parents=True)
    broken.library.write_text("old")
    [fault] = device_plan.run("build", broken).faults
    assert "configure has exit code 1" in fault and "configure.log" in fault
    assert not broken.library.exists()


def test_jobs_of_two_programs_have_other_ports():
    """A port that somebody has is left out."""
    first = jobs.free_port()
    with socket.socket() as taken:
        taken.bind(("", first + 1))
        assert jobs.free_port() == first + 2


def test_the_exit_code_says_whether_a_step_failed():
    assert device.exit_code([Step("a"), Step("b")]) == 0
    assert device.exit_code([Step("a"), Step("b", faults=["it broke"])]) == 1


def test_a_check_that_was_not_run_is_a_fault(plan, monkeypatch):
    """Two lanes: a failure in the first one, and the check behind it; all of the second is fine."""
    names = "calls\nddp\nfsdp2\nmixed\n"

    def together(commands, plan, step, deadline):
        if commands[0].name == "checks":
            (plan.out / "checks.log").write_text(f"$ command\n{names}")
            return
        assert [c.argv[-2:] for c in commands] == [["calls", "fsdp2"], ["ddp", "mixed"]]
        step.found["checks-1x2-0"] = {"checks": {}, "failed": {"calls": "rank 1: AssertionError: 3 is not 4"}}
        step.found["checks-1x2-1"] = {"checks": {"ddp": 1.0, "mixed": 2.0}, "failed": {}}

    monkeypatch.setattr(device_plan, "_together", together)
    step = device_plan.run("checks", plan)
    assert step.faults == [
        "checks-1x2-0: calls: rank 1: AssertionError: 3 is not 4",
        "checks-1x2-0: not run: fsdp2",
    ]


# -- what is computed ------------------------------------------------------------------------------------------------


def test_the_bound_of_a_device_is_every_rank_s_bytes_over_the_copy_rate():
    """1 x 4, 256 MiB, 55 GB/s: 4 x 268,435,456 bytes / 55e9 = 19.5 ms. Without a rate there is none."""
    options = allreduce.parsed(["--device", "cpu", "--hosts", "1", "--ranks", "4", "--copy-rate", "55"])
    assert allreduce.bound_of(options).seconds(256 << 20) == pytest.approx(0.0195225, rel=1e-4)
    assert allreduce.bound_of(allreduce.parsed(["--device", "cpu"])).rate is None
    emulated = allreduce.bound_of(allreduce.parsed(["--hosts", "2", "--rate", "1gbit"]))
    assert emulated.seconds(1 << 20) == pytest.approx((1 << 20) / 125e6)
    assert allreduce.bound_of(allreduce.parsed(["--hosts", "2", "--loopback"])).rate is None


def _row(peer, median):
    return {"peer": peer, "size": 64 << 20, "median": median, "lower": median, "upper": median}


def test_the_table_has_ratios_to_gloo_and_to_both_bounds():
    """1 x 4, 64 MiB: hdp 10 ms, gloo 80 ms: 8 times; 4.88 ms at 55 GB/s: 2.05 bounds; at 50 GB/s 5.37 ms: 1.86."""
    shape = {"hosts": 1, "ranks": 4, "sizes": [64 << 20]}
    rows = [_row("hdp", 0.010), _row("gloo", 0.080)]
    found = {"allreduce-1x4": {"options": shape, "rows": rows, "bound_seconds": {str(64 << 20): 4 * (64 << 20) / 50e9}}}
    [row] = device_report.allreduce_rows(found)
    assert (row["shape"], row["over_hdp"]) == ("1x4", 8.0)
    assert row["hdp"]["median"] / row["bound"] == pytest.approx(2.0490, rel=1e-3)
    text = _text(device_report.allreduce(found))
    for value in ("8.00", "2.05", "1.86", "64 MiB"):
        assert value in text


def test_a_library_that_failed_leaves_its_places_empty():
    shape = {"hosts": 1, "ranks": 4, "sizes": [64 << 20]}
    found = {"allreduce-1x4": {"options": shape, "rows": [_row("gloo", 0.08)], "bound_seconds": {}}}
    [row] = device_report.allreduce_rows(found)
    assert row["hdp"] is None and row["over_hdp"] is None
    assert "80" in _text(device_report.allreduce(found))


def _text(table):
    from rich.console import Console

    console = Console(width=200)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def test_curves_are_means_over_the_ranks_and_must_agree():
    """Two ranks, two steps: means 2 and 1. A curve that is 5 % off is noted; 50 % is a failure."""
    assert training.mean_losses([[1.0, 0.5], [3.0, 1.5]]) == [2.0, 1.0]
    results = training.Results(reference="gloo", losses={"gloo": [[2.0, 1.0]], "hdp": [[2.1, 1.0]], "b": [[2.0, 1.5]]})
    training.compare_curves("hdp", results)
    assert results.curves["hdp"] == pytest.approx(0.05)
    with pytest.raises(PeerFailed, match=r"the losses are not those with gloo: they differ by 0\.5"):
        training.compare_curves("b", results)


def test_the_exposed_part_is_the_step_less_the_same_ranks_alone():
    """8 images a step of all ranks; 0.5 s, of which they take 0.4 alone: 16 images/s of 20, 0.1 s exposed."""
    sample = training.Sample(steps=[0.5], compute=0.4, exchange=0.2, sent=[], cpu=1.0)
    one = training.Results(samples={"alone": [sample]})
    single, row = efficientnet.rows({0: one, 1: training.Results(samples={"hdp": [sample]})}, per_host=2, batch=4)
    assert (row.images, row.alone, row.kept) == (16, 20, 0.8) and row.exposed == pytest.approx(0.1)
    assert (single.backend, single.images, single.exposed) == ("one process", 8, None)


def test_a_timeline_says_what_was_in_flight_and_waited_for(tmp_path):
    """One step from 10 to 11 s. Two operations of rank 0 that overlap: 10.1 to 10.5, 10.3 to 10.6, waits 0.2 and 0.1 s.

    Rank 1: one from 9.9 to 10.1, without a wait. In flight 0.5 and 0.1 s: 0.3; waited 0.3 and 0: 0.15. What was at 12 s
    doesn't count.
    """
    spans = {0: [(10.1, 10.5, 0.2), (10.3, 10.6, 0.1), (12.0, 12.5, 0.5)], 1: [(9.9, 10.1, 0.0)]}
    for rank, operations in spans.items():
        lines = [
            {
                "ph": "X",
                "name": "allreduce #1",
                "ts": b * 1e6,
                "dur": (e - b) * 1e6,
                "args": {"rank": rank, "waited_us": w * 1e6},
            }
            for b, e, w in operations
        ]
        text = ",\n".join(map(json.dumps, lines))
        (tmp_path / f"hdp-timeline-rank-{rank}.json").write_text(f"[\n{text}\n]\n")
    found = device_trace.communication(tmp_path, [(10.0, 11.0)])
    assert found == pytest.approx({"step": 1.0, "in_flight": 0.3, "waited": 0.15})


def test_without_a_timeline_there_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"has 0 timelines of ranks, for 1 steps"):
        device_trace.communication(tmp_path, [(0.0, 1.0)])


def test_copies_are_checked():
    """4 MiB each way: five rates; a way back that brings something else is an error."""
    rates = copies.measure(copies.Cpu(), 4 << 20, 2)
    assert min(vars(rates).values()) > 0

    class Wrong(copies.Cpu):
        def copy_off(self, device, host):
            host.copy_(device)
            host[7] = 1

    with pytest.raises(AssertionError, match="pinned: other bytes came back than were sent"):
        copies.measure(Wrong(), 1 << 20, 1)


# -- the whole, without a GPU ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("collective", ["allreduce", pytest.param("reduce_scatter", marks=pytest.mark.slow)])
def test_tensors_of_two_hosts_on_loopback(collective, tmp_path):
    """2 x 1, 64 KiB, tensors in memory: verified and timed; the bound is the copies'."""
    out = tmp_path / "a.json"
    shape = ("--hosts", 2, "--ranks", 1, "--loopback", "--sizes", "64KiB", "--copy-rate", 10)
    effort = ("--rounds", 1, "--iterations", 3, "--peers", "hdp,gloo,openmpi")
    done = run("allreduce.py", "--device", "cpu", "--collective", collective, *shape, *effort, "--json", out)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert found["absent"] == {"openmpi": "it isn't measured with --device"}
    rows = {row["peer"]: row for row in found["rows"]}
    assert set(rows) == {"hdp", "gloo"} and all(row["operations"] == 3 for row in rows.values())
    for row in rows.values():
        assert row["over_bound"] == pytest.approx(row["median"] / (2 * 65536 / 10e9))
        assert row["raw_over_least"] is None


@pytest.mark.slow
def test_tensors_behind_the_fake_driver(tmp_path):
    """hdp copies by the driver: with one that can't be loaded it fails, and says so."""
    shape = ("--hosts", 1, "--ranks", 2, "--sizes", "1MiB", "--rounds", 1, "--iterations", 2, "--peers", "hdp")
    done = run("allreduce.py", "--device", "fake", *shape, HDP_CUDA_DRIVER=str(fake_cuda_driver.path()))
    assert done.returncode == 0, done.stdout + done.stderr
    missing = tmp_path / "libno.so"
    done = run("allreduce.py", "--device", "fake", *shape, HDP_CUDA_DRIVER=str(missing))
    assert done.returncode == 1 and "libno.so" in done.stdout


@pytest.mark.slow
def test_a_library_that_can_t_start_beside_the_others_is_told(tmp_path):
    """hdp without its core: gloo, which starts at the same time, is measured; exit code 1."""
    shape = ("--hosts", 1, "--ranks", 2, "--sizes", "64KiB", "--rounds", 1, "--iterations", 2, "--peers", "hdp,gloo")
    out = tmp_path / "a.json"
    missing = str(tmp_path / "libnone.so")
    done = run("allreduce.py", "--device", "cpu", *shape, "--together", "--json", out, HDP_CORE_LIBRARY=missing)
    assert done.returncode == 1 and "libnone.so" in done.stdout
    found = json.loads(out.read_text())
    assert [row["peer"] for row in found["rows"]] == ["gloo"] and list(found["measured"]["failed"]) == ["hdp"]


@pytest.mark.slow
def test_everything_on_the_processor(tmp_path):
    """All steps but the build: every one is fine, and the file has what the tables show."""
    done = run("device.sh", "--device", "cpu", "--quick", "--only", "copies,allreduce,train", "--out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "device.json").read_text())
    assert list(found["steps"]) == ["copies", "allreduce", "train"]
    assert not any(step["faults"] for step in found["steps"].values())
    assert "--quick" in found["command"] and found["machine"]["torch"] == torch.__version__
    rate = found["steps"]["copies"]["found"]["copies"]["both_pinned"]
    one = found["steps"]["allreduce"]["found"]["allreduce-1x2"]
    assert one["bound_seconds"]["65536"] == pytest.approx(2 * 65536 / rate / 1e9, rel=1e-4)
    trained, trace = found["steps"]["train"]["found"].values()
    assert 0 < trace["waited"] <= trace["in_flight"] < trace["step"]
    assert [row["backend"] for row in trained["rows"]] == ["one process", "hdp", "gloo"]
    assert set(trained["measured"]["1"]["curves"]) == {"hdp", "gloo"}
    assert "no GPU: these numbers say nothing about one" in done.stdout
    assert report.text_size(65536) in done.stdout
