"""The processes of one job on (emulated) hosts: started, watched and ended. `launch` has what is started."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import remote
from processes import Started, end_all, own_folder

#: Below what the system gives by itself. Jobs live side by side in one network, so that a benchmark has to begin
#: elsewhere than another one that runs at the same time on the machine's own loopback.
_ports = itertools.count(21000 + os.getpid() % 500 * 20)


def free_port() -> int:
    """A TCP port that no other job of this process has, and nobody on this machine's own network."""
    while True:
        port = next(_ports)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port


class Host(Protocol):
    """One host of a network."""

    @property
    def name(self) -> str: ...
    @property
    def address(self) -> str: ...
    @property
    def interface(self) -> str: ...


class Hosts(Protocol):
    """What a starter needs of a network."""

    @property
    def hosts(self) -> Sequence[Host]: ...
    def popen(self, host: int, argv: Sequence[str], **keywords: Any) -> subprocess.Popen[Any]: ...


class RanksFailed(Exception):
    """A process of the job ended with an error, or they took too long; the message has the end of its log."""


class Job:
    """The processes of one job. ``ranks`` by rank (under MPI: mpirun alone), ``servers`` beside them."""

    def __init__(self, network: Hosts, per_host: int, env: Mapping[str, str] | None) -> None:
        self.network, self.per_host = network, per_host
        self.size = per_host * len(network.hosts)
        self.folder = Path(tempfile.mkdtemp(dir=own_folder()))
        self.env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **(env or {})}
        self.ranks: list[Started] = []
        self.servers: list[Started] = []
        self.others: list[Started] = []
        self.starter: remote.Starter | None = None
        self._master_port = free_port()

    def start(self, host: int, name: str, argv: Sequence[str], env: Mapping[str, str], **keywords: Any) -> Started:
        """Start a process on a host, in a session of its own; what it writes goes to the log `name`."""
        path = self.folder / f"{name}.log"
        with path.open("wb") as log:
            keywords = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT, **keywords}
            process = self.network.popen(host, list(argv), env={**self.env, **env}, start_new_session=True, **keywords)
        return Started(name, process, path)

    def start_ranks(self, argv: Sequence[str], more: Mapping[int, Mapping[str, str]] | None = None) -> None:
        """Start every rank with torch's variables and those of `more` for its host."""
        for rank in range(self.size):
            host, local = divmod(rank, self.per_host)
            env = {**self.torch_variables(host, local), **(more or {}).get(host, {})}
            self.ranks.append(self.start(host, f"rank-{rank}", argv, env))

    def torch_variables(self, host: int, local: int) -> dict[str, str]:
        """What torch.distributed reads from the environment of a rank."""
        return {
            "RANK": str(host * self.per_host + local),
            "LOCAL_RANK": str(local),
            "WORLD_SIZE": str(self.size),
            "LOCAL_WORLD_SIZE": str(self.per_host),
            "GROUP_RANK": str(host),
            "MASTER_ADDR": self.network.hosts[0].address,
            "MASTER_PORT": str(self._master_port),
            "GLOO_SOCKET_IFNAME": self.network.hosts[host].interface,
        }

    def failure(self) -> str | None:
        """The first process found that ended with an error, and the end of its log; None: all is well."""
        for started in (*self.servers, *self.others, *self.ranks):
            code = started.process.poll()
            if code:
                return f"{started.name} ended with exit code {code}: {started.tail()}"
        return None

    def wait(self, timeout: float) -> None:
        """Wait until every rank has ended. Raises RanksFailed: one ended with an error, or `timeout` seconds passed."""
        deadline = time.monotonic() + timeout
        while any(r.process.poll() is None for r in self.ranks):
            text = self.failure()
            if text is None and time.monotonic() > deadline:
                late = [r for r in self.ranks if r.process.poll() is None]
                text = f"{', '.join(r.name for r in late)} did not end within {timeout:g} s: {late[0].tail()}"
            if text:
                raise RanksFailed(text)
            time.sleep(0.02)
        if text := self.failure():
            raise RanksFailed(text)

    def await_(self, done: Callable[[], object], limit: float = 60.0) -> None:
        """Wait until `done()`. Raises RanksFailed: a process failed, or `limit` seconds passed."""
        deadline = time.monotonic() + limit
        while not done():
            text = self.failure() or (f"nothing within {limit:g} s" if time.monotonic() > deadline else None)
            if text:
                raise RanksFailed(text)
            time.sleep(0.01)

    def log(self, rank: int) -> str:
        """What a rank wrote; under MPI all ranks write to the log of rank 0."""
        return self.ranks[rank].log.read_text(errors="replace")

    def stop(self) -> None:
        """End every process: asked first, killed after two seconds. May be called twice."""
        end_all([*self.ranks, *self.others, *self.servers])
        if self.starter:
            self.starter.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
