"""What goes wrong with containers: each has its own message, and nothing of ours is left in the daemon."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest
from docker_support import WAITS, ended, estimator, started

from hdp.contract.errors import EngineError
from hdp.estimator.engines.docker.engine import DockerEngine
from hdp.estimator.engines.local.cleaning import Cleaning

pytestmark = [
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("torch_image", "nothing_left"),
]


def containers(client, job):
    """Host to the ID of its container."""
    rows = client.containers(filters={"label": f"hdp.job={job.name}"})
    return {row["Labels"]["hdp.host"]: row["Id"] for row in rows}


def test_a_container_that_is_killed_is_the_cause(client, tmp_path):
    """`docker kill` of algo-2. Expected: that host, and that it was somebody else, not memory; algo-1 ends too."""
    job = started(estimator(tmp_path, WAITS).fit(wait=False))
    client.kill(containers(client, job)["algo-2"], "SIGKILL")
    answer = ended(job)
    assert answer["TrainingJobStatus"] == "Failed"
    reason = answer["FailureReason"]
    assert reason.startswith(
        "host algo-2 failed (killed by SIGKILL): its container was killed (SIGKILL, exit code 137)"
    )
    assert "somebody outside the job, e.g. `docker kill`; it was not out of memory" in reason


def test_a_container_that_is_stopped_says_who_did_not(client, tmp_path):
    """`docker stop` of algo-1: its agent stops all ranks in time, and the job says that it wasn't hdp's stop."""
    job = started(estimator(tmp_path, WAITS).fit(wait=False))
    client.stop(containers(client, job)["algo-1"])
    answer = ended(job)
    assert answer["TrainingJobStatus"] == "Failed"
    assert "failed (exit code 143): its container was told to stop (SIGTERM" in answer["FailureReason"]
    assert "e.g. `docker stop`; `hdp stop` stops a job" in answer["FailureReason"]


def test_a_rank_without_memory_says_so(tmp_path):
    """A rank that takes 512 MiB where its host has 256. Expected: the rank, the kernel, the limit, the option."""
    hungry = "import time; kept = bytearray(512 << 20); kept[::4096] = b'x' * len(kept[::4096]); time.sleep(60)"
    options = {"memory": "256m"}
    answer = ended(estimator(tmp_path, hungry, 1, engine_options=options).fit(wait=False))
    assert "rank 0 on algo-1 failed (killed by SIGKILL): out of memory" in answer["FailureReason"]
    assert "may use 256m together; raise engine_options.memory" in answer["FailureReason"]


@pytest.fixture
def small_disk(tmp_path, monkeypatch):
    """A file system of 8 MiB that holds the jobs."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(folder)], capture_output=True).returncode:
        pytest.skip("NO FULL DISK: only root can mount a small one")
    monkeypatch.setenv("HDP_HOME", str(folder))
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_named(small_disk, tmp_path):
    """A rank fills /opt/ml. Expected: its own OSError, as the job's failure."""
    fills = "import os; open(os.environ['SM_MODEL_DIR'] + '/big', 'wb').write(bytes(64 << 20))"
    answer = ended(estimator(tmp_path, fills, 1).fit(wait=False))
    assert answer["TrainingJobStatus"] == "Failed"
    assert "No space left on device" in answer["FailureReason"]


def test_a_supervisor_that_is_killed_leaves_nothing(client, tmp_path):
    """SIGKILL to the supervisor; then somebody looks. Expected: containers and network are gone, and it says so."""
    job = started(estimator(tmp_path, WAITS).fit(wait=False))
    pid = job.describe()["Hdp"]["supervisor"]["pid"]
    os.kill(pid, signal.SIGKILL)
    answer = ended(job)
    assert "supervisor" in answer["FailureReason"] and "ended" in answer["FailureReason"]
    assert answer["Hdp"]["notes"] == ["removed 2 containers and 1 network after its supervisor was gone"]
    assert containers(client, job) == {}


def test_what_a_lost_job_has_left_is_cleaned(client, tmp_path):
    """Supervisor killed, and its folder removed. Expected: `hdp clean` finds containers and network by their labels."""
    import shutil

    job = started(estimator(tmp_path, WAITS, 1).fit(wait=False), hosts=1)
    answer = job.describe()
    os.kill(answer["Hdp"]["supervisor"]["pid"], signal.SIGKILL)
    shutil.rmtree(answer["Hdp"]["job_dir"])
    rows = DockerEngine().clean(Cleaning(names=()))
    assert [row.what for row in rows if row.name == f"({job.name})"] == ["removed 1 container and 1 network"]


def test_an_image_without_us_is_refused(client, tmp_path):
    """The base image has neither our label nor our agent. Expected: refused before anything is made."""
    with pytest.raises(
        EngineError, match=r"isn't one of `hdp build`.*lacks the label hdp.image.*container_entry_point"
    ):
        estimator(tmp_path, WAITS, image_uri="hdp-test-base").fit(wait=False)


def test_an_image_that_starts_something_else_is_named(client, tmp_path):
    """An entry point that ends well and leaves no report. Expected: a failure that says what the image lacks."""
    job = estimator(tmp_path, WAITS, 1, image_uri="hdp-test-base", container_entry_point=["sh", "-c", "exit 0"])
    answer = ended(job.fit(wait=False))
    assert answer["TrainingJobStatus"] == "Failed"
    assert (
        "ended with exit code 0 and left no report: what the image hdp-test-base starts isn't"
        in answer["FailureReason"]
    )


def test_an_entry_point_that_is_not_there_is_named(client, tmp_path):
    job = estimator(tmp_path, WAITS, 1, image_uri="hdp-test-base", container_entry_point=["no-such-agent"])
    answer = ended(job.fit(wait=False))
    assert "The image hdp-test-base can't run a host of a job" in answer["FailureReason"]
    assert "no-such-agent" in answer["FailureReason"]


@pytest.fixture
def without_mpi(client):
    """The daemon has no image hdp-mpi, for a test; it's there again afterwards, where it was."""
    found = client.images("hdp-mpi")
    if found:
        client.tag("hdp-mpi", "hdp-test-aside")
        client.remove_image("hdp-mpi", noprune=True)
    yield
    if found:
        client.tag("hdp-test-aside", "hdp-mpi")
        client.remove_image("hdp-test-aside", noprune=True)


@pytest.mark.usefixtures("without_mpi")
def test_an_image_that_is_not_there_says_what_makes_it(tmp_path):
    with pytest.raises(EngineError, match=r"no image 'hdp-mpi': `hdp build mpi` makes it"):
        estimator(tmp_path, WAITS, image_uri="hdp-mpi", engine_options={"pull": "never"}).fit(wait=False)


def test_a_stop_reaches_every_rank(tmp_path):
    """Each rank writes a checkpoint at SIGTERM. Expected: Stopped, and the record has both files."""
    code = """
        import os, signal, sys, time
        def save(*_):
            with open(f"{os.environ['SM_CHECKPOINT_DIR']}/{os.environ['RANK']}.pt", "w") as file:
                file.write("weights")
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        print("here", flush=True)
        time.sleep(120)
    """
    job = started(estimator(tmp_path, code).fit(wait=False))
    job.stop()
    answer = ended(job)
    assert answer["TrainingJobStatus"] == "Stopped"
    assert answer["Hdp"]["checkpoints"] == {"algo-1": ["0.pt"], "algo-2": ["1.pt"]}
