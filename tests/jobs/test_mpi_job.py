"""Jobs under mpirun, Open MPI's and MPICH's, with no sshd: placement, stop, failures, what is left."""

import json
import os
import shutil
import signal
import time
from pathlib import Path

import psutil
import pytest

from hdp.contract.errors import TrainingJobFailed, TrainingJobStopped
from hdp.estimator import FLAG, Estimator

PEERS = Path(__file__).parents[2] / "build/peers"
#: Every rank says where it is by its own view: MPI's, and the environment's.
SCRIPT = """
import json, os, signal, socket, sys, time
from pathlib import Path
from mpi4py import MPI

world = MPI.COMM_WORLD
total = world.allreduce(world.rank + 1)
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "SM_CURRENT_HOST", "HDP_LAUNCHER", "A",
         "PYTHONPATH", "LD_LIBRARY_PATH")
seen = {name: os.environ.get(name) for name in names}
seen |= {"mpi": [world.rank, world.size, total], "host": socket.gethostname(), "argv": sys.argv[1:]}
Path(os.environ["SM_OUTPUT_DATA_DIR"], f"{world.rank}.json").write_text(json.dumps(seen))
if "--fail" in sys.argv:
    if world.rank == 3:
        raise ValueError("the labels are gone")
    time.sleep(600)
if "--abort" in sys.argv:
    if world.rank == 2:
        print("no labels", file=sys.stderr, flush=True)
        world.Abort(7)
    time.sleep(600)
if "--exit" in sys.argv or "--kill" in sys.argv:
    for step in range(10**9):
        world.allreduce(step)
        if world.rank == 3 and step == 200:
            if "--exit" in sys.argv:
                sys.exit(5)
            os.kill(os.getpid(), signal.SIGKILL)
if "--wait" in sys.argv:
    def save(*_):
        Path(os.environ["SM_CHECKPOINT_DIR"], f"rank-{world.rank}").write_text("state")
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
    print("waiting", flush=True)
    time.sleep(600)
"""
pytestmark = pytest.mark.slow


@pytest.fixture(params=["openmpi", "mpich"])
def python(request):
    """An interpreter with mpi4py, beside whose mpirun nothing else of MPI is needed."""
    path = PEERS / request.param / "bin/python"
    if not path.exists():
        pytest.skip(f"{path} is missing: `make peers` installs Open MPI and MPICH")
    return str(path)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HDP_HOME", str(tmp_path / "home"))
    (tmp_path / "show.py").write_text(SCRIPT)


def _estimator(python, tmp_path, hosts=2, options="", **hyperparameters):
    mpi = {"enabled": True, "processes_per_host": 2, "custom_mpi_options": options}
    return Estimator(
        entry_point=str(tmp_path / "show.py"),
        instance_count=hosts,
        distribution={"mpi": mpi},
        engine_options={"python": python, "stop_timeout_seconds": 20},
        hyperparameters=hyperparameters,
    )


def _fit(*arguments, **keywords):
    return _estimator(*arguments, **keywords).fit(logs=None)


def _ranks(job):
    """What each rank saw, by rank; of an ended job."""
    shutil.unpack_archive(job.output_data.removeprefix("file://"), extract := Path(os.environ["HDP_HOME"], "out"))
    found = [json.loads(path.read_text()) for path in extract.rglob("*.json")]
    return sorted(found, key=lambda seen: seen["mpi"][0])


def _log(job):
    return [line.text for line in job.engine.logs(job.name, {}).lines]


def _belongings(job):
    """Processes with the job's folder in their environment or command line."""
    found = []
    for process in psutil.process_iter():
        try:
            words = [*process.environ().values(), *process.cmdline()]
        except psutil.Error:
            continue
        if any(job.name in word for word in words):
            found.append(process)
    return found


def test_every_host_gets_its_ranks(python, tmp_path):
    """3 hosts x 2: the ranks' own view; the sum over all; -x as a variable."""
    job = _fit(python, tmp_path, hosts=3, options="-x 'A=b c'")
    ranks = _ranks(job)
    assert [r["mpi"] for r in ranks] == [[rank, 6, 21] for rank in range(6)]
    assert [(r["SM_CURRENT_HOST"], int(r["LOCAL_RANK"])) for r in ranks] == [
        (f"algo-{host}", local) for host in (1, 2, 3) for local in (0, 1)
    ]
    assert [int(r["RANK"]) for r in ranks] == list(range(6))
    assert [int(r["GROUP_RANK"]) for r in ranks] == [0, 0, 1, 1, 2, 2]
    assert {(r["WORLD_SIZE"], r["LOCAL_WORLD_SIZE"], r["HDP_LAUNCHER"], r["A"]) for r in ranks} == {
        ("6", "2", "mpi", "b c")
    }
    assert not _belongings(job)


def test_the_users_mapping_replaces_ours(python, tmp_path):
    """Open MPI: -map-by node --report-bindings. MPICH: -ppn 1. Ranks go round the hosts; the command is in the log."""
    options = "-map-by node --report-bindings" if "openmpi" in python else "-ppn 1"
    job = _fit(python, tmp_path, options=options)
    assert [r["SM_CURRENT_HOST"] for r in _ranks(job)] == ["algo-1", "algo-2", "algo-1", "algo-2"]
    (command,) = [line for line in _log(job) if line.startswith("starting ")]
    assert options.lstrip("-") in command
    assert "--map-by slot" not in command
    if "openmpi" in python:
        assert sum("is not bound" in line for line in _log(job)) == 4


@pytest.mark.parametrize("options", ["-N 1", "--map-by ppr:1:node", "-genvall -envall"])
def test_options_in_other_words_replace_ours_too(python, tmp_path, options):
    """One rank a host; or MPICH's own environment, which is each host's agent's to give."""
    if ("genvall" in options) == ("openmpi" in python):
        pytest.skip("the other MPI's option")
    hosts = [r["SM_CURRENT_HOST"] for r in _ranks(_fit(python, tmp_path, options=options))]
    assert hosts == (["algo-1", "algo-2"] if "1" in options else ["algo-1", "algo-1", "algo-2", "algo-2"])


def test_folders_to_search_are_added_to(python, tmp_path):
    """-x PYTHONPATH and LD_LIBRARY_PATH: neither the user's nor what is needed to run at all is lost."""
    job = _fit(python, tmp_path, options="-x PYTHONPATH=/theirs -x LD_LIBRARY_PATH=/theirs")
    for rank in _ranks(job):
        assert rank["PYTHONPATH"].split(":")[0] == "/theirs"
        assert "/theirs" in rank["LD_LIBRARY_PATH"].split(":")


def test_a_failing_rank_is_reported_by_its_own_traceback(python, tmp_path):
    """Rank 3 raises while the others sleep: its exception is the cause; no word of MPI's in it; nothing is left."""
    with pytest.raises(TrainingJobFailed) as raised:
        _fit(python, tmp_path, fail=FLAG)
    reason = raised.value.reason
    assert reason.startswith("rank 3 on algo-2 failed (exit code 1): ValueError: the labels are gone\n")
    assert 'raise ValueError("the labels are gone")' in reason
    assert "mpirun" not in reason and "MPI_ABORT" not in reason and "Primary job" not in reason


def test_mpi_abort_names_who_called_it(python, tmp_path):
    """Rank 2 calls MPI_Abort(7), and MPI kills the others; what rank 2 said last is in the report."""
    with pytest.raises(TrainingJobFailed) as raised:
        _fit(python, tmp_path, abort=FLAG)
    assert raised.value.reason.startswith("rank 2 on algo-2 failed (exit code 7)\n")
    assert "no labels" in raised.value.reason


@pytest.mark.parametrize(("how", "what"), [("exit", "exit code 5"), ("kill", "killed by SIGKILL")])
def test_who_leaves_the_others_in_a_collective_is_named(python, tmp_path, how, what):
    """sys.exit(5), whose exit handler waits in MPI_Finalize for the others, who wait for it; and SIGKILL."""
    with pytest.raises(TrainingJobFailed) as raised:
        _fit(python, tmp_path, **{how: FLAG})
    assert raised.value.reason.startswith(f"rank 3 on algo-2 failed ({what})")


def test_a_stop_reaches_every_rank(python, tmp_path):
    """SIGTERM to the job: all four ranks save a checkpoint and end well."""
    job = _waiting(python, tmp_path)
    job.stop()
    with pytest.raises(TrainingJobStopped):
        job.wait(logs=None)
    saved = job.describe()["Hdp"]["checkpoints"]
    assert {host: sorted(files) for host, files in saved.items()} == {
        "algo-1": ["rank-0", "rank-1"],
        "algo-2": ["rank-2", "rank-3"],
    }
    assert not _belongings(job)


def _waiting(python, tmp_path):
    """A job whose ranks wait for a signal."""
    job = _estimator(python, tmp_path, wait=FLAG).fit(wait=False)
    deadline = time.monotonic() + 60
    while _log(job).count("waiting") < 4:
        assert time.monotonic() < deadline, "\n".join(_log(job))
        time.sleep(0.1)
    return job


@pytest.mark.parametrize("victim", ["mpirun", "daemon"])
def test_a_killed_part_of_mpi_is_named(python, tmp_path, victim):
    """SIGKILL of mpirun, or of its daemon on algo-2: the cause says so, and nothing is left."""
    job = _waiting(python, tmp_path)
    names = {"mpirun": ("mpirun", "prterun"), "daemon": ("prted", "hydra_pmi_proxy")}[victim]
    processes = [p for p in psutil.process_iter(["name"]) if p.info["name"] in names and job.name in str(p.environ())]
    host = "algo-1" if victim == "mpirun" else "algo-2"
    (process,) = [p for p in processes if p.environ()["SM_CURRENT_HOST"] == host]
    process.send_signal(signal.SIGKILL)
    with pytest.raises(TrainingJobFailed) as raised:
        job.wait(logs=None)
    what = "mpirun" if victim == "mpirun" else "MPI's daemon"
    assert f"host {host} failed: LaunchError: {what} was killed by SIGKILL" in raised.value.reason
    assert not _belongings(job)


def test_a_bad_option_is_told_in_mpiruns_own_words(python, tmp_path):
    with pytest.raises(TrainingJobFailed) as raised:
        _fit(python, tmp_path, options="--no-such-thing")
    assert "mpirun ended with exit code" in raised.value.reason
    assert "no-such-thing" in raised.value.reason
