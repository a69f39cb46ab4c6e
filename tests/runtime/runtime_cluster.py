"""Real agents on loopback addresses, each with its own /opt/ml-shaped tree."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from hdp.contract import hyperparameters as hp
from hdp.contract.files import Layout, write_json
from hdp.contract.outcome import HostReport, from_json


@dataclass
class Host:
    """One emulated host."""

    name: str
    layout: Layout
    log: Path
    environ: dict[str, str]
    process: subprocess.Popen[bytes] | None = None

    def text(self) -> str:
        """The host's log."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def report(self) -> HostReport:
        """What the agent has left."""
        return from_json(json.loads(self.layout.report.read_text()))

    def failure(self) -> str:
        """The failure file."""
        return self.layout.failure.read_text()


@dataclass
class Cluster:
    """The hosts of one job, and what starts and ends them."""

    base: Path
    run_dir: Path
    """Parent of the agents' HDP_RUN_DIR: a short path, since sockets go there."""
    hosts: list[Host] = field(default_factory=list)
    module: str = "agent_of_the_test"

    def start(self) -> None:
        """Start every agent."""
        for host in self.hosts:
            self.start_host(host)

    def start_host(self, host: Host) -> None:
        """Start one agent, its output appended to its log."""
        with host.log.open("ab") as log:
            host.process = subprocess.Popen(
                [sys.executable, "-m", self.module], cwd=host.layout.root, env=host.environ, stdout=log, stderr=log
            )

    def wait(self, timeout: float = 60.0) -> list[int]:
        """Exit codes, in the order of the hosts."""
        deadline = time.monotonic() + timeout
        codes = []
        for host in self.hosts:
            assert host.process is not None
            codes.append(host.process.wait(max(0.1, deadline - time.monotonic())))
        return codes

    def run(self, timeout: float = 60.0) -> list[int]:
        """Start and wait."""
        self.start()
        return self.wait(timeout)

    def wait_for(self, condition: Callable[[], bool], timeout: float = 30.0) -> None:
        """Until `condition()`; fails with the logs."""
        deadline = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < deadline, "\n".join(h.text() for h in self.hosts)
            time.sleep(0.05)

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Signal every agent."""
        for host in self.hosts:
            assert host.process is not None
            host.process.send_signal(number)

    def log(self) -> str:
        """All logs."""
        return "\n".join(h.text() for h in self.hosts)

    def end(self) -> None:
        """Kill what is left."""
        for host in self.hosts:
            if host.process is None:
                continue
            try:
                below = psutil.Process(host.process.pid).children(recursive=True)
            except psutil.NoSuchProcess:
                below = []
            host.process.kill()
            for process in below:
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    continue
            host.process.wait()
        shutil.rmtree(self.run_dir)


def free_port() -> int:
    """A port that was free a moment ago on every loopback address."""
    with socket.socket() as s:
        s.bind(("0.0.0.0", 0))
        return int(s.getsockname()[1])


#: Speaks the server's protocol to the agent, serves no ranks. The tests of the agent's own work need no collectives.
FAKE_SERVER = """
import json, signal, sys
settings = json.load(sys.stdin)
assert len(settings["hosts"]) > settings["host_index"], settings
open(settings["socket"], "w").close()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("listening", flush=True)
while True:
    signal.pause()
"""

MakeCluster = Callable[..., Cluster]


def lay_cluster(
    base: Path,
    script: str = "",
    *,
    hosts: int = 1,
    ranks: int | None = None,
    parameters: Mapping[str, Any] | None = None,
    files: Mapping[str, str] | None = None,
    channels: list[dict[str, Any]] | None = None,
    environ: Mapping[str, str] | None = None,
    server: str | None = FAKE_SERVER,
) -> Cluster:
    """Lay the trees of a job.

    script: text of train.py. hosts: how many. ranks: on each host (kind "hdp" if given, else "none").
    server: text of the module that stands in for the reduction server; None: the real one.
    """
    names = [f"algo-{i + 1}" for i in range(hosts)]
    secret = base / "secret"
    secret.write_bytes(secrets.token_bytes(32))
    secret.chmod(0o600)
    addresses = {name: f"127.0.9.{i + 1}" for i, name in enumerate(names)}
    values: dict[str, Any] = {"sagemaker_program": "train.py", **(parameters or {})}
    if ranks is not None:
        values |= {"sagemaker_hdp_enabled": True, "sagemaker_hdp_processes_per_host": ranks}
    common = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("SM_", "HDP_"))},
        "HDP_SECRET_FILE": str(secret),
        "HDP_HOST_ADDRESSES": json.dumps(addresses),
        "HDP_CONTROL_PORT": str(free_port()),
        "HDP_SERVER_PORT": str(free_port()),
        "HDP_MASTER_PORT": str(free_port()),
        "HDP_START_TIMEOUT_SECONDS": "20",
        "HDP_STOP_TIMEOUT_SECONDS": "10",
        "HDP_LOG_TIMESTAMPS": "1",
        "TRAINING_JOB_NAME": "job-1",
    }
    cluster = Cluster(base, Path(tempfile.mkdtemp(prefix="hdp-test-", dir="/tmp")))
    for name in names:
        layout = Layout(base / name)
        layout.config.mkdir(parents=True)
        write_json(layout.hyperparameters, {k: hp.encode(v) for k, v in values.items()})
        write_json(
            layout.resourceconfig,
            {"current_host": name, "hosts": names, "network_interface_name": "lo"},
        )
        config = {c["ChannelName"]: {"TrainingInputMode": "File"} for c in channels or []}
        write_json(layout.inputdataconfig, config)
        write_json(layout.config / "hdp-channels.json", {"channels": channels or []})
        for path, text in {"train.py": script, **(files or {})}.items():
            target = layout.code / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(textwrap.dedent(text))
        own = {**common, "SAGEMAKER_BASE_DIR": str(layout.root), "HDP_RUN_DIR": str(cluster.run_dir / name)}
        own |= environ or {}
        cluster.hosts.append(Host(name, layout, base / f"{name}.log", own))
    _make_agent_module(cluster, server)
    return cluster


#: The real agent; it only has less patience, so that the tests of failures take 2 seconds rather than 8.
AGENT = """
import os
from hdp.runtime.launch import agent
from hdp.runtime.launch.timing import Timing
os._exit(agent.main(SERVER, Timing(grace=1.0, culprit=3.0, kill=3.0, linger=1.0, hang=1.0)))
"""


def _make_agent_module(cluster: Cluster, server: str | None) -> None:
    """An entry module of the test's own passes the stand-in for the server, and the timing, to the agent's `main`."""
    folder = cluster.base / "modules"
    folder.mkdir()
    module = "hdp.collectives.server" if server is None else "fake_server"
    (folder / "fake_server.py").write_text(textwrap.dedent(server or ""))
    (folder / "agent_of_the_test.py").write_text(AGENT.replace("SERVER", repr(module)))
    for host in cluster.hosts:
        host.environ["PYTHONPATH"] = str(folder)
