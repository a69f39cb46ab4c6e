"""PyTorch's own suite for backends: some of it here, all of it by `suite/run.py`; see `suite/RESULTS.md`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch isn't installed: pip install 'hdp-train[torch]'")
pytest.importorskip("expecttest", reason="torch's test modules need it: pip install expecttest")

SUITE = Path(__file__).with_name("suite")
SOME = (
    "test_DistributedDataParallelCPU",
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook",
    "test_all_gather_coalesced_with_empty",
    "test_all_to_all_complex",
    "test_barrier_timeout_full_group",
    "test_monitored_barrier_gloo",
    "test_send_recv_any_source",
    "test_sparse_all_reduce_sum",
)


def _run(folder, *arguments, seconds):
    """Outcomes of the tests that the runner was told to run."""
    file = folder / "results.json"
    command = [sys.executable, str(SUITE / "run.py"), "--results", str(file), "--logs", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    outcomes = json.loads(file.read_text())["of"]["hdp"]
    logs = "\n".join(f"---- {log}\n{log.read_text()}" for log in folder.glob("*.log"))
    return outcomes, done.returncode, f"{done.stdout}{done.stderr}\n{logs}"


@pytest.mark.slow
def test_some_of_it(tmp_path):
    outcomes, code, output = _run(tmp_path, "--only", *SOME, "--test-seconds", "60", seconds=110)
    assert {name: o["status"] for name, o in outcomes.items()} == dict.fromkeys(SOME, "passed"), output
    assert code == 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif("HDP_TEST_SUITE" not in os.environ, reason="six minutes; HDP_TEST_SUITE=1 runs it")
def test_all_of_it(tmp_path):
    """Six minutes on two idle cores."""
    outcomes, code, output = _run(tmp_path, seconds=1700)
    failed = [name for name, o in outcomes.items() if o["status"] == "failed"]
    assert not failed and code == 0, output
    assert len(outcomes) > 250


def test_the_committed_table():
    """What gloo passes, hdp passes; the page is made of the file."""
    sys.path.insert(0, str(SUITE))
    try:
        import results
    finally:
        sys.path.remove(str(SUITE))
    table = results.read()
    assert SUITE.joinpath("RESULTS.md").read_text() == results.page(table)
    gloo, hdp = table.outcomes("gloo"), table.outcomes("hdp")
    assert gloo.keys() == hdp.keys()
    passed = {name for name, o in gloo.items() if o.status == "passed"}
    assert len(passed) > 100 and {name for name in passed if hdp[name].status != "passed"} == set()


CASES = """
import os, signal, subprocess, sys, time, unittest
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import run
os.environ["BACKEND"] = "none"
run._TO_TELL, run._TO_LEAVE = 1.0, 1.0

class Case(unittest.TestCase):
    def test_passes(self): pass
    def test_fails(self): raise ValueError("one\\ntwo")
    def test_skips(self): self.skipTest("no reason")
    def test_crashes(self): os.kill(os.getpid(), signal.SIGKILL)
    def test_hangs(self): time.sleep(60)
    def test_leaves(self): subprocess.Popen(["sleep", "60"], start_new_session=True)
    @unittest.skip("never")
    def test_never_starts(self): pass

run.adopt_orphans()
for name in sorted(n for n in dir(Case) if n.startswith("test_")):
    outcome = run.run_one(Case, name, 1, Path(sys.argv[2]))
    print(name, outcome.status, outcome.reason, sep="|")
assert not run._children()
"""


def test_the_runner_tells_what_happened(tmp_path):
    """A crash, a hang and what is left behind are the test's failure; the next one runs."""
    command = [sys.executable, "-c", CASES, str(SUITE), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "test_crashes|failed|its process ended without a result",
        "test_fails|failed|ValueError: one",
        "test_hangs|failed|hangs: not over after 2 s",
        "test_leaves|failed|left 1 processes",
        "test_never_starts|skipped|never",
        "test_passes|passed|",
        "test_skips|skipped|no reason",
    ]
