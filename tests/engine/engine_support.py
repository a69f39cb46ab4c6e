"""What the engine's tests share: job requests around tiny scripts, and stand-ins for the agent."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import os
import signal
import tarfile
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hdp.contract.errors import EngineError
from hdp.contract.hyperparameters import encode
from hdp.estimator.engines.base import JobRequest
from hdp.estimator.engines.local import networks, processes, store
from hdp.estimator.engines.local.engine import LocalEngine
from hdp.estimator.engines.local.home import Home

ROOTS = [str(Path(__file__).parents[2] / part) for part in ("estimator", "runtime")]


def request(name: str, num_hosts: int = 1, options: Mapping[str, Any] | None = None, **more: Any) -> JobRequest:
    """A request for a local job; `more` are further arguments of CreateTrainingJob."""
    training_job = {
        "TrainingJobName": name,
        "HyperParameters": {},
        "ResourceConfig": {"InstanceType": "local", "InstanceCount": num_hosts, "VolumeSizeInGB": 30},
        "StoppingCondition": {"MaxRuntimeInSeconds": 86400},
        "OutputDataConfig": {"S3OutputPath": ""},
        **more,
    }
    return JobRequest(training_job, {"stop_timeout_seconds": 20, "start_timeout_seconds": 60, **(options or {})})


def script_request(engine: LocalEngine, name: str, script: str, num_hosts: int = 1, **more: Any) -> JobRequest:
    """A request for a job whose entry point is `script`, kept as a bundle of `engine`."""
    archive = bundle({"train.py": textwrap.dedent(script)})
    uri = engine.put_bundle(hashlib.sha256(archive).hexdigest(), archive)
    own = {"sagemaker_program": "train.py", "sagemaker_submit_directory": uri, "sagemaker_job_name": name}
    encoded = {key: encode(value) for key, value in own.items()}
    return request(name, num_hosts, **{**more, "HyperParameters": encoded})


def bundle(files: Mapping[str, str]) -> bytes:
    """A code archive with these files."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return raw.getvalue()


def stand_in(folder: Path, python: str, body: str) -> str:
    """An "interpreter" that runs `body` instead of the agent: what it does is the test's, whoever calls it is real."""
    file = folder / "stand-in"
    head = f"#!{python}\nimport json, os, signal, sys, time\nfrom pathlib import Path\n"
    here = 'root = Path(os.environ["SAGEMAKER_BASE_DIR"])\n'
    host = 'host = json.loads((root / "input/config/resourceconfig.json").read_text())["current_host"]\n'
    file.write_text(head + here + host + textwrap.dedent(body))
    file.chmod(0o755)
    return str(file)


def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Return when `condition` holds. Raises AssertionError after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"still not so after {seconds} s"
        time.sleep(0.05)


def wait_for_end(engine: LocalEngine, name: str, seconds: float = 60.0) -> dict[str, Any]:
    """The job's description, once it has ended."""
    wait_until(lambda: engine.describe(name)["TrainingJobStatus"] in ("Completed", "Failed", "Stopped"), seconds)
    return engine.describe(name)


def texts(engine: LocalEngine, name: str) -> list[str]:
    """The text of every line of the job's log."""
    return [line.text for line in engine.logs(name, {}).lines]


def left_over(engine: LocalEngine, name: str) -> list[processes.ProcessId]:
    """Processes of the job that still run: by the secret's path in their environment, and the supervisor."""
    return processes.of_job(engine.home.job(name).secret)


def client_environment(home: Path) -> dict[str, str]:
    """Environment of a client in another process; it can import this file."""
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    own = {"HDP_HOME": str(home), "NO_COLOR": "1", "COLUMNS": "200", "PYTHONPATH": os.pathsep.join(paths)}
    return {**os.environ, **own}


def statuses(answer: Mapping[str, Any]) -> Sequence[str]:
    """The secondary statuses that a job went through."""
    return [step["Status"] for step in answer["SecondaryStatusTransitions"]]


@functools.cache
def no_networks() -> str:
    """Why this machine gives hosts no network of their own; empty: it does. Found out once, by making one."""
    support = networks.probe()
    return f"this machine gives hosts no network: {support.reason}" if support.means == "none" else ""


def end_all(home: Home) -> None:
    """Kill every process of every job below `home`."""
    for name in store.Store(home).names():
        job = home.job(name)
        with contextlib.suppress(EngineError):  # a record that a test has damaged
            supervisor = store.read(job).supervisor
            if supervisor is not None and processes.send(supervisor, signal.SIGKILL):
                processes.wait(supervisor, 5.0)
        processes.kill_job(job.secret)
        with contextlib.suppress(EngineError):
            store.remove_run_folder(store.read(job))
