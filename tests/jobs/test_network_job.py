"""Whole jobs whose hosts have a network of their own: the collectives' bytes are counted, whoever the user is.

And killed ones: whichever process goes, the job ends in time and leaves no process, namespace or folder.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kill_round import Round, be_a_client, play
from test_kill_any_process import NUMPY_TRAIN
from user_namespace import start

from hdp.estimator.engines.local import networks

SUPPORT = networks.probe()
pytestmark = pytest.mark.skipif(
    SUPPORT.means == "none", reason=f"this machine gives hosts no network: {SUPPORT.reason}"
)
HOSTS, ELEMENTS = 2, 1_000_000
TRAIN = f"""
import os, socket
import numpy as np
import hdp.collectives as hc
comm = hc.init()
total = hc.allreduce(np.full({ELEMENTS}, comm.rank + 1, np.float32), comm.world).wait()
assert (total == 10).all()
ifname = os.environ["GLOO_SOCKET_IFNAME"]
print("seen", os.getcwd(), socket.gethostname(), os.environ["MASTER_ADDR"], ifname, os.getuid(), flush=True)
"""
CLIENT = """
import json
from hdp.estimator import Estimator
from hdp.estimator.engines.registry import get_engine
estimator = Estimator(
    entry_point="train.py", source_dir="code", instance_count=2, engine_options={"network": "1gbit"},
    distribution={"hdp": {"enabled": True, "processes_per_host": 2}},
)
notes = estimator.plan().notes
job = estimator.fit(logs=None)
lines = get_engine("local").logs(job.name, {}).lines
seen = sorted(line.text for line in lines if line.text.startswith("seen"))
print(json.dumps({"notes": notes, "seen": seen, **job.describe()["Hdp"]}, default=str))
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path that every user may enter: sockets are below it."""
    path = Path(tempfile.mkdtemp(prefix="net-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def as_user(uid: int, folder: Path) -> Mapping[str, Any]:
    """What the client in a process of that user says."""
    for name in ("code", "tmp"):
        (folder / name).mkdir()
        os.chown(folder / name, uid, uid)
    (folder / "code" / "train.py").write_text(TRAIN)
    kept = {k: v for k, v in os.environ.items() if k in ("PATH", "HDP_CORE_LIBRARY")}
    environ = {"HDP_HOME": str(folder / "tmp" / "home"), "TMPDIR": str(folder / "tmp"), "HOME": str(folder), **kept}
    client = start(uid, [sys.executable, "-c", CLIENT], environ, folder)
    said, _ = client.communicate(timeout=60)
    assert client.returncode == 0, said
    return dict(json.loads(said.splitlines()[-1]))


def assert_ran(answer: Mapping[str, Any], uid: int) -> None:
    """2 hosts sent each other the vector once, in some frames; ranks saw a cluster's host."""
    size = 4 * ELEMENTS
    for counters in answer["network"]["hosts"].values():
        assert size < counters["sent_bytes"] < 1.1 * size
        assert size < counters["received_bytes"] < 1.1 * size
    assert answer["seen"] == [f"seen /opt/ml/code algo-{i} 10.77.0.1 eth0 {uid}" for i in (1, 1, 2, 2)]
    assert not any("no mount and UTS namespaces" in note for note in answer["notes"])


def test_an_allreduce_goes_over_the_links(folder: Path) -> None:
    assert_ran(as_user(os.geteuid(), folder), os.geteuid())


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody who isn't")
def test_an_ordinary_users_hosts_have_networks_too(folder: Path) -> None:
    """In user namespaces: the network's, and each host's own below it."""
    answer = as_user(61234, folder)
    assert_ran(answer, 61234)
    assert any(note.startswith("hosts run in a user namespace") for note in answer["environment_differences"])


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_whoever_is_killed_a_job_with_a_network_ends_and_leaves_nothing(folder: Path) -> None:
    """2 hosts x 2 ranks. Expected: Failed within 10 s, the reason names the victim, all counts as before."""
    code = folder / "code"
    code.mkdir()
    (code / "train.py").write_text(NUMPY_TRAIN)
    victims = [("supervisor", "start"), ("agent", "train"), ("rank", "train"), ("supervisor", "train")]
    rounds = [Round(i, part, 0, moment, 0.1, str(code), "1gbit") for i, (part, moment) in enumerate(victims)]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, spawn, initializer=be_a_client, initargs=(str(folder),)) as clients:
        outcomes = list(clients.map(play, rounds))
    assert [str(outcome) for outcome in outcomes if outcome.faults] == []
    most = max(outcome.had["namespaces"] for outcome in outcomes)
    assert most >= 3 * HOSTS, "mount, UTS and network namespaces are counted, so they would be missed"
