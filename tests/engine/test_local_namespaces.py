"""What hosts see: /opt/ml, host names, /etc/hosts; and that this machine sees nothing of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_support import client_environment, request, stand_in, texts, wait_for_end

from hdp.estimator.engines.local import hostns
from hdp.estimator.engines.local.engine import LocalEngine

Agent = Callable[[str], str]
REPORT = """
import socket
seen = {
    "shm": os.listdir("/dev/shm"),
    "name": socket.gethostname(), "base": str(root), "cwd": os.getcwd(), "opt": sorted(os.listdir("/opt")),
    "peers": [socket.gethostbyname(f"algo-{i}") for i in (1, 2)] if str(root) == "/opt/ml" else [],
    "told": list(json.loads(os.environ["HDP_HOST_ADDRESSES"]).values()), "uid": os.getuid(),
}
if str(root) == "/opt/ml":
    Path(f"/dev/shm/{host}-{os.getpid()}").write_text("left there")
print(f"{time.time():.6f} [{host}] " + json.dumps(seen), flush=True)
"""
needs_namespaces = pytest.mark.skipif(
    hostns.probe().means == "none", reason=f"this machine allows no mount namespaces: {hostns.probe().reason}"
)


def seen_by(engine: LocalEngine, python: str, **options: object) -> list[dict[str, object]]:
    """What two hosts saw, in their order."""
    engine.submit(request("digits", 2, {"python": python, **options}))
    assert wait_for_end(engine, "digits")["TrainingJobStatus"] == "Completed"
    lines = sorted((line.host, line.text) for line in engine.logs("digits", {}).lines)
    return [json.loads(text) for _, text in lines]


@needs_namespaces
def test_each_host_is_a_machine_of_its_own(engine: LocalEngine, agent: Agent) -> None:
    """Expected: own name, /opt/ml as root and working folder, names that resolve to the job's addresses, own uid.

    /dev/shm begins empty, and what is written there is gone with the host.
    """
    before = sorted(entry.name for entry in Path("/opt").iterdir())
    for i, seen in enumerate(seen_by(engine, agent(REPORT), namespaces="required"), 1):
        assert (seen["name"], seen["base"], seen["cwd"]) == (f"algo-{i}", "/opt/ml", "/opt/ml")
        assert seen["peers"] == seen["told"]
        assert seen["opt"] == sorted({*before, "ml"})
        assert seen["uid"] == os.getuid()
        assert seen["shm"] == [], "this machine's, or another host's"
    assert not list(Path("/dev/shm").glob("algo-?-*"))
    assert sorted(entry.name for entry in Path("/opt").iterdir()) == before
    assert str(engine.home.path) not in Path("/proc/mounts").read_text()


def test_without_namespaces_the_tree_is_the_root(engine: LocalEngine, agent: Agent) -> None:
    """namespaces="off". Expected: the tree's real path; the record says what differs."""
    for i, seen in enumerate(seen_by(engine, agent(REPORT), namespaces="off"), 1):
        assert seen["base"] == seen["cwd"] == str(engine.home.job("digits").tree(f"algo-{i}").root)
    said = engine.describe("digits")["Hdp"]["environment_differences"]
    assert any("no mount and UTS namespaces" in line and 'namespaces="off"' in line for line in said)


@needs_namespaces
def test_a_plan_says_what_differs(engine: LocalEngine) -> None:
    notes = engine.capabilities(request("digits").training_job).notes
    assert notes[0].startswith("hosts are process groups of one machine")


def forbidding() -> list[str]:
    """Command that runs another where no namespace can be made: in one whose limits are 0."""
    limits = "for kind in user mnt uts; do echo 0 > /proc/sys/user/max_${kind}_namespaces; done"
    return ["unshare", "--user", "--map-root-user", "sh", "-c", f'{limits} && exec "$@"', "sh"]


def can_forbid() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*forbidding(), "true"], capture_output=True, check=False).returncode == 0


needs_forbidding = pytest.mark.skipif(not can_forbid(), reason="needs unshare(1) and user namespaces, to forbid them")
CLIENT = """
import sys
from engine_support import *
engine = LocalEngine()
engine.submit(request("digits", 2, {"python": sys.argv[1], "namespaces": sys.argv[2]}))
answer = wait_for_end(engine, "digits")
print(answer["TrainingJobStatus"], answer.get("FailureReason"), answer["Hdp"]["environment_differences"])
"""


def run_forbidden(home: Path, python: str, namespaces: str) -> str:
    command = [*forbidding(), sys.executable, "-c", CLIENT, python, namespaces]
    environment = client_environment(home)
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


@needs_forbidding
def test_where_namespaces_are_forbidden_jobs_run_without(engine: LocalEngine, tmp_path: Path) -> None:
    """Expected: Completed, hosts saw their trees, the record has the kernel's reason."""
    said = run_forbidden(engine.home.path, stand_in(tmp_path, sys.executable, REPORT), "auto")
    assert said.startswith("Completed None") and "unshare: " in said
    seen = [json.loads(text) for text in texts(engine, "digits")]
    assert all(str(seen_["base"]).startswith(str(engine.home.path)) for seen_ in seen)


@needs_forbidding
def test_where_namespaces_are_required_and_forbidden_the_job_fails(engine: LocalEngine, tmp_path: Path) -> None:
    said = run_forbidden(engine.home.path, stand_in(tmp_path, sys.executable, REPORT), "required")
    assert said.startswith("Failed the local engine couldn't run the job: namespaces=\"required\", but hosts can't")
