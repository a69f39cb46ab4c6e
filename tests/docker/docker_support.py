"""Small jobs for the tests of the docker engine."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

from hdp.estimator import PyTorch
from hdp.estimator.engines.docker.engine import DockerEngine

WAITS = "import time; print('here', flush=True); time.sleep(120)"


def estimator(tmp_path, code, hosts=2, **more):
    """An estimator of `code` on containers, a rank on each."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(code))
    return PyTorch(
        entry_point=str(script),
        instance_type="docker",
        instance_count=hosts,
        distribution={"hdp": {"enabled": True, "processes_per_host": 1}},
        **more,
    )


def lines(job):
    """The job's log until now."""
    return DockerEngine().logs(job.name, {}).lines


def started(job, marker="here", hosts=2, seconds=240):
    """Wait until every rank of the job has said `marker`. Returns the job."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if len({line.host for line in lines(job) if line.text == marker}) == hosts:
            return job
        assert job.status in ("InProgress", "Stopping"), job.describe()
        time.sleep(0.3)
    raise AssertionError(f"not all hosts have started: {[line.text for line in lines(job)]}")


def ended(job, seconds=240):
    """Wait for the job's end. Returns what `describe` says."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        answer = job.describe()
        if answer["TrainingJobStatus"] in ("Completed", "Failed", "Stopped"):
            return answer
        time.sleep(0.2)
    raise AssertionError(f"the job still runs: {answer}")


def build(daemon, context, kind, *options):
    """`hdp build` of a kind of image, in the daemon at this address. Returns its digest."""
    bundle = os.environ.get("SSL_CERT_FILE")
    more = ["--ca-bundle", bundle] if bundle and Path(bundle).is_file() else []
    command = [
        sys.executable,
        "-m",
        "hdp.estimator.cli",
        "build",
        kind,
        "-q",
        "--source",
        str(context),
        *options,
        *more,
    ]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "DOCKER_HOST": daemon})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split()[-1]
