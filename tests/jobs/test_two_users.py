"""Two users of one machine, each with a job of two hosts at the same time: neither can touch the other's (DESIGN I9).

The jobs run as two users whom nobody else is; the tests, which are root, look up what there is to touch and try it as
the other user.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import descriptors
import psutil
import pytest
from user_namespace import outcome, start

from hdp.collectives import handshake
from hdp.collectives.handshake import WrongSecret
from hdp.contract.secret import read_secret

pytestmark = [
    pytest.mark.slow,
    pytest.mark.alone,  # what runs as these users is theirs
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become two other users"),
]
UIDS = (61231, 61232)

#: Reduces until the file "stop" is there, checks every element, says so.
TRAIN = """
import os, pathlib, sys
import numpy as np
import hdp.collectives as hc
comm = hc.init()
print("up", flush=True)
for step in range(10**9):
    mine = np.arange(1000.0) + comm.rank + step
    mine[0] = pathlib.Path(sys.argv[-1]).exists()
    out = hc.allreduce(mine, comm.world, timeout=60).wait()
    assert (out[1:] == 4 * (np.arange(1000.0) + step)[1:] + 6).all()
    if out[0]:
        break
print("exact", flush=True)
"""
CLIENT = """
import sys
from hdp.estimator import PyTorch
estimator = PyTorch(
    "train.py", source_dir="code", instance_count=2, hyperparameters={"stop": sys.argv[1]},
    distribution={"hdp": {"enabled": True, "processes_per_host": 2}},
)
estimator.fit(job_name="theirs", logs=None)
print(estimator.latest_training_job.status)
"""


@dataclass
class User:
    """A user with a running job."""

    uid: int
    base: Path
    client: object

    @property
    def tmp(self) -> Path:
        """TMPDIR of both users."""
        return self.base.parent / "tmp"

    @property
    def home(self) -> Path:
        return self.base / "home"

    @property
    def job(self) -> Path:
        return self.home / "jobs" / "theirs"

    @property
    def secret(self) -> Path:
        return self.job / "secret"

    def processes(self) -> list[psutil.Process]:
        return [p for p in psutil.process_iter(["uids"]) if p.info["uids"] and p.info["uids"].real == self.uid]

    def run_dir(self) -> Path:
        return Path(json.loads((self.job / "state.json").read_text())["run_dir"])

    def log(self) -> str:
        return "".join(path.read_text() for path in sorted((self.job / "logs").glob("*.log")))

    def sockets(self, kind: str) -> list[psutil._common.sconn]:
        return [c for p in self.processes() for c in p.net_connections(kind)]

    def listening(self) -> list[tuple[str, int]]:
        """TCP addresses where the job listens."""
        return [tuple(c.laddr) for c in self.sockets("tcp") if c.status == psutil.CONN_LISTEN]

    def arenas(self) -> list[str]:
        """Paths of the shared memory of its servers and ranks."""
        held = (each for p in self.processes() for each in descriptors.targets(p.pid).items())
        return [str(path) for path, target in held if target.startswith("/memfd:hdp-arena")]


def _launch(uid: int, base: Path) -> User:
    folder = base / str(uid)
    (folder / "code").mkdir(parents=True)
    (folder / "code" / "train.py").write_text(TRAIN)
    os.chown(folder, uid, uid)
    environ = {
        "HDP_HOME": str(folder / "home"),
        "TMPDIR": str(base / "tmp"),
        "HOME": str(folder),
        **{k: v for k, v in os.environ.items() if k in ("PATH", "HDP_CORE_LIBRARY")},
    }
    argv = [sys.executable, "-c", CLIENT, str(folder / "stop")]
    return User(uid, folder, start(uid, argv, environ, folder))


@pytest.fixture(scope="module")
def users() -> Iterator[tuple[User, User]]:
    """Two users whose ranks are reducing; both jobs are over at the end."""
    base = Path(tempfile.mkdtemp(prefix="hdp-two-"))
    base.chmod(0o711)
    (base / "tmp").mkdir()
    (base / "tmp").chmod(0o1777)  # as /tmp is
    made: list[User] = []
    try:
        for uid in UIDS:
            made.append(_launch(uid, base))
        for user in made:
            _wait_for(lambda user=user: user.job.exists() and user.log().count("] up\n") == 4, user)
        yield made[0], made[1]
    finally:
        for user in made:
            _end(user)
        shutil.rmtree(base)


def _wait_for(condition: Callable[[], bool], user: User, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        gone = user.client.poll() is not None
        assert not gone, user.client.stdout.read() + (user.log() if user.job.exists() else "")
        assert time.monotonic() < deadline, user.log()
        time.sleep(0.05)


def _end(user: User) -> None:
    user.client.kill()
    user.client.wait()
    user.client.stdout.close()
    for process in user.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


@pytest.fixture(params=[0, 1], ids=["first", "second"])
def pair(users: tuple[User, User], request: pytest.FixtureRequest) -> tuple[User, User]:
    """(whose job it is, who tries to touch it)"""
    return users[request.param], users[1 - request.param]


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_folders_and_sockets_are_their_owners_alone(pair: tuple[User, User]) -> None:
    """Home, jobs, job: 0700, and so is the folder of sockets; sockets and secrets: 0600. Nobody else owns any."""
    owner, _ = pair
    run_dir = owner.run_dir()
    assert run_dir.parent == owner.tmp
    for folder in (owner.home, owner.home / "jobs", owner.home / "bundles", owner.job, run_dir):
        assert (_mode(folder), folder.stat().st_uid) == (0o700, owner.uid), folder
    sockets = [p for p in run_dir.rglob("*") if p.is_socket()]
    assert len(sockets) == 2
    for file in [*sockets, owner.secret]:
        assert (_mode(file), file.stat().st_uid) == (0o600, owner.uid), file
    assert [p for p in owner.tmp.iterdir() if _mode(p) & 0o077] == []


def test_files_cannot_be_read(pair: tuple[User, User]) -> None:
    """The other user: the secret, the record, the logs, a listing of home, job and folder of sockets."""
    owner, other = pair
    for file in (owner.secret, owner.job / "request.json", owner.job / "logs" / "algo-1.log"):
        assert file.exists()
        assert outcome(other.uid, file.read_bytes) == "PermissionError", file
    for folder in (owner.home, owner.job, owner.run_dir()):
        assert outcome(other.uid, lambda folder=folder: list(folder.iterdir())) == "PermissionError"
    assert outcome(owner.uid, owner.secret.stat).startswith("done"), "the owner can"


def test_unix_sockets_cannot_be_reached(pair: tuple[User, User]) -> None:
    """Every bound Unix socket of the job's processes; none is abstract, since these have no mode."""
    owner, other = pair
    bound = {c.laddr for c in owner.sockets("unix") if c.laddr and c.status == psutil.CONN_NONE}
    ours = [str(p) for p in owner.run_dir().rglob("*") if p.is_socket()]
    assert set(ours) <= bound and not [path for path in bound if path.startswith(("@", "\0"))]
    for path in ours:
        assert outcome(other.uid, lambda path=path: _connect(socket.AF_UNIX, path)) == "PermissionError"
        assert outcome(owner.uid, lambda path=path: _connect(socket.AF_UNIX, path)) == "done: 'connected'"


def _connect(family: int, place: object) -> str:
    with socket.socket(family) as sock:
        sock.connect(place)
        return "connected"


def test_ports_are_closed_to_who_has_another_secret(pair: tuple[User, User]) -> None:
    """The two servers and the coordinator of the job, tried with the other's secret for every purpose."""
    owner, other = pair
    places = owner.listening()
    assert len(places) == 3
    for place in places:
        for purpose in ("rank", "server", "agent"):
            assert outcome(other.uid, lambda: _use(place, other.secret, purpose)) == WrongSecret.__name__  # noqa: B023


def _use(place: tuple[str, int], secret: Path, purpose: str) -> str:
    with socket.create_connection(place, 5) as sock:
        handshake.connect(sock, read_secret(secret), purpose, {"host": 1, "generation": 0})
    return "let in"


def test_memory_and_processes_cannot_be_touched(pair: tuple[User, User]) -> None:
    """Arenas through /proc, descriptors, environment, memory, signals: of supervisor, agents, servers and ranks."""
    owner, other = pair
    arenas = owner.arenas()
    assert len(arenas) == 2, "the servers'; ranks have it mapped and closed"
    for path in arenas:
        assert outcome(other.uid, lambda path=path: os.open(path, os.O_RDWR)) == "PermissionError"
        assert outcome(owner.uid, lambda path=path: os.open(path, os.O_RDWR)).startswith("done")
    pids = [p.pid for p in owner.processes()]
    assert len(pids) >= 1 + 1 + 2 + 2 + 4, "client, supervisor, agents, servers, ranks"
    for pid in pids:
        for file in ("environ", "mem", "maps"):
            assert outcome(other.uid, Path(f"/proc/{pid}/{file}").read_bytes) == "PermissionError"
        for folder in ("fd", "map_files"):
            assert outcome(other.uid, lambda p=f"/proc/{pid}/{folder}": list(Path(p).iterdir())) == "PermissionError"
        assert outcome(other.uid, lambda pid=pid: os.kill(pid, signal.SIGKILL)) == "PermissionError"


def test_both_jobs_end_well(users: tuple[User, User]) -> None:
    """After all that was tried: every rank's sums are exact, and nothing of either job is left in its TMPDIR."""
    for user in users:
        run_dir = user.run_dir()
        (user.base / "stop").touch()
        assert user.client.wait(60) == 0, user.log()
        assert user.client.stdout.read().splitlines()[-1] == "Completed"
        assert user.log().count("] exact\n") == 4
        assert not run_dir.exists()
    assert list(users[0].tmp.iterdir()) == []
