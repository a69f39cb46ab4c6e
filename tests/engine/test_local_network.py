"""Jobs whose hosts have a network of their own: what hosts see, what is counted, and that nothing of it is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_support import no_networks, request, texts, wait_for_end, wait_until

from hdp.contract.redact import redact
from hdp.estimator.cli import tables
from hdp.estimator.cli.text import Screen, lines
from hdp.estimator.engines.local import leftovers, processes, store
from hdp.estimator.engines.local.cleaning import Cleaning, clean
from hdp.estimator.engines.local.engine import LocalEngine
from hdp.estimator.engines.local.state import NetworkState

Agent = Callable[[str], str]
pytestmark = pytest.mark.skipif(bool(no_networks()), reason=no_networks())
REPORT = """
import socket
resources = json.loads((root / "input/config/resourceconfig.json").read_text())
seen = {
    "name": socket.gethostname(), "cwd": os.getcwd(), "uid": os.getuid(),
    "interfaces": sorted(os.listdir("/sys/class/net")), "network": os.stat("/proc/self/ns/net").st_ino,
    "told": json.loads(os.environ["HDP_HOST_ADDRESSES"]),
    "peers": {name: socket.gethostbyname(name) for name in resources["hosts"]},
    "interface": resources["network_interface_name"],
}
print(f"{time.time():.6f} [{host}] " + json.dumps(seen), flush=True)
"""
ADDRESSES = {"algo-1": "10.77.0.1", "algo-2": "10.77.0.2"}


def submit(engine: LocalEngine, name: str, python: str, network: object = "1gbit", **options: object) -> None:
    engine.submit(request(name, 2, {"python": python, "network": network, **options}))


def seen_by(engine: LocalEngine, name: str) -> list[dict[str, object]]:
    """What the job's hosts saw, in their order."""
    lines = sorted((line.host, line.text) for line in engine.logs(name, {}).lines)
    return [json.loads(text) for _, text in lines]


@pytest.mark.parametrize("namespaces", ["auto", "off"])
def test_each_host_is_a_machine_on_its_own_network(engine: LocalEngine, agent: Agent, namespaces: str) -> None:
    """Expected: eth0, names that resolve to the network's addresses, our own uid; /opt/ml unless it is not wanted."""
    submit(engine, "digits", agent(REPORT), namespaces=namespaces)
    assert wait_for_end(engine, "digits")["TrainingJobStatus"] == "Completed"
    seen = seen_by(engine, "digits")
    for i, host in enumerate(seen, 1):
        assert (host["name"], host["interface"], host["uid"]) == (f"algo-{i}", "eth0", os.getuid())
        assert host["peers"] == host["told"] == ADDRESSES
        tree = str(engine.home.job("digits").tree(f"algo-{i}").root)
        assert host["cwd"] == ("/opt/ml" if namespaces == "auto" else tree)
        assert host["interfaces"] == ["eth0", "lo"]
    assert len({seen[0]["network"], seen[1]["network"], Path("/proc/self/ns/net").stat().st_ino}) == 3
    assert [host["address"] for host in engine.describe("digits")["Hdp"]["hosts"]] == list(ADDRESSES.values())


SEND = """
import socket
if host == "algo-2":
    server = socket.create_server(("10.77.0.2", 9000))
    print("0 [algo-2] up", flush=True)
    connection, _ = server.accept()
    while connection.recv(65536):
        pass
else:
    for _ in range(500):
        try:
            with socket.create_connection(("algo-2", 9000)) as connection:
                connection.sendall(bytes(1_000_000))
            break
        except ConnectionRefusedError:
            time.sleep(0.02)
"""


@pytest.mark.parametrize(("last_words", "status"), [("", "Completed"), ("sys.exit(3)", "Failed")])
def test_what_went_over_each_link_is_on_record(engine: LocalEngine, agent: Agent, last_words: str, status: str) -> None:
    """algo-1 sends algo-2 a megabyte; then both end well, or fail."""
    rates = {"algo-1": "1gbit", "algo-2": "100mbit"}
    submit(engine, "digits", agent(SEND + last_words), {"rate": "1gbit", "hosts": {"algo-2": "100mbit"}})
    answer = wait_for_end(engine, "digits")
    assert answer["TrainingJobStatus"] == status
    found = answer["Hdp"]["network"]
    assert found["rates"] == rates and list(found["hosts"]) == list(rates)
    one, two = found["hosts"].values()
    assert set(one) == {"sent_bytes", "received_bytes", "sent_packets", "received_packets", "dropped"}
    assert 1_000_000 < one["sent_bytes"] == two["received_bytes"] < 1_200_000
    assert two["sent_bytes"] == one["received_bytes"] < 200_000
    assert one["sent_packets"] == two["received_packets"] > 0
    assert redact(found) == found
    rows = [" ".join(line.split()) for line in shown(answer)]
    (row,) = [row for row in rows if row.startswith("link of algo-2")]
    assert row.startswith("link of algo-2 100mbit: sent ") and row.endswith(f", {two['dropped']} packets dropped")


def shown(answer: dict[str, object]) -> list[str]:
    """What `hdp describe` prints of the job."""
    return [line for block in tables.job_report(answer) for line in lines(block, Screen())]


def test_two_jobs_may_have_networks_at_once(engine: LocalEngine, agent: Agent) -> None:
    """Both listen at the same address and port, at the same time. Expected: neither hears of the other."""
    wait = f"{SEND}\nwhile not os.path.exists({str(engine.home.path / 'go')!r}):\n    time.sleep(0.02)\n"
    for name in ("one", "two"):
        submit(engine, name, agent(wait))
    wait_until(lambda: all("up" in texts(engine, name) for name in ("one", "two")))
    (engine.home.path / "go").touch()
    for name in ("one", "two"):
        assert wait_for_end(engine, name)["TrainingJobStatus"] == "Completed"
        links = engine.describe(name)["Hdp"]["network"]["hosts"]
        assert 1_000_000 < links["algo-2"]["received_bytes"] < 1_200_000


ALONE = """
import sys
from hdp.estimator.engines.local import networks, supervisor
from hdp.estimator.engines.local.localjob import LocalJob
from hdp.estimator.engines.local.options import LocalOptions
with networks.made(LocalJob(None, {}, LocalOptions())) as network:
    print(network.interface, [name for name in sys.modules if name.startswith(("hdp.runtime", "pyroute2"))])
"""


def test_a_job_without_network_costs_nothing(engine: LocalEngine, agent: Agent) -> None:
    """Expected: its supervisor imports nothing of the runtime; nothing is on record."""
    said = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=True).stdout
    assert said == "lo []\n"
    engine.submit(request("digits", options={"python": agent("pass")}))
    assert wait_for_end(engine, "digits")["Hdp"]["network"] is None


# -- the end -------------------------------------------------------------------------------------------------------

DAEMON = """
import subprocess
subprocess.Popen(["sleep", "1000"], start_new_session=True, env={})
print(f"0 [{host}] up {os.stat('/proc/self/ns/net').st_ino}", flush=True)
time.sleep(1000)
"""


def running(engine: LocalEngine, agent: Agent) -> tuple[NetworkState, processes.ProcessId]:
    """A job whose hosts each have left a process behind that no name of ours leads to; its network and supervisor."""
    submit(engine, "digits", agent(DAEMON))
    wait_until(lambda: len(texts(engine, "digits")) == 2)
    current = store.read(engine.home.job("digits"))
    assert current.network is not None and current.supervisor is not None
    assert len(inhabitants(namespaces_of(engine))) == 4
    return current.network, current.supervisor


def namespaces_of(engine: LocalEngine) -> set[int]:
    """Inodes of the hosts' network namespaces."""
    return {int(text.split()[1]) for text in texts(engine, "digits")}


def inhabitants(namespaces: set[int]) -> list[int]:
    """Processes that are in one of the network namespaces."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                inode = (entry / "ns/net").stat().st_ino
            except OSError:
                continue
            found += [int(entry.name)] * (inode in namespaces)
    return found


def test_a_killed_supervisor_leaves_no_host(engine: LocalEngine, agent: Agent) -> None:
    """Expected: what has neither our parent, session nor environment is gone, too, and so is the keeper."""
    network, supervisor = running(engine, agent)
    namespaces = namespaces_of(engine)
    processes.send(supervisor, signal.SIGKILL)
    wait_until(lambda: not inhabitants(namespaces) and not processes.alive(network.keeper), 5)
    answer = engine.describe("digits")
    assert answer["TrainingJobStatus"] == "Failed"
    assert answer["Hdp"]["network"] == {"rates": {"algo-1": "1gbit", "algo-2": "1gbit"}, "hosts": {}}


def test_a_killed_keeper_is_noted_and_the_job_goes_on(engine: LocalEngine, agent: Agent) -> None:
    """Expected: the links work on, what went over them isn't known, and the supervisor does the keeper's work."""
    network, _ = running(engine, agent)
    namespaces = namespaces_of(engine)
    processes.send(network.keeper, signal.SIGKILL)
    assert processes.wait(network.keeper, 5)
    engine.stop("digits")
    answer = wait_for_end(engine, "digits")
    assert answer["TrainingJobStatus"] == "Stopped"
    assert answer["Hdp"]["network"]["hosts"] == {}
    (note,) = answer["Hdp"]["notes"]
    assert note.startswith(
        f"what went over the hosts' links isn't known: the network's keeper (process {network.keeper.pid})"
    )
    assert inhabitants(namespaces) == []


def test_clean_ends_a_keeper_that_is_stuck(engine: LocalEngine, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keeper is stopped, then the supervisor is killed. Expected: `hdp clean` kills the keeper, and says so."""
    monkeypatch.setattr(leftovers, "KEEPER_SECONDS", 0.3)
    network, supervisor = running(engine, agent)
    namespaces = namespaces_of(engine)
    processes.send(network.keeper, signal.SIGSTOP)
    processes.send(supervisor, signal.SIGKILL)
    assert processes.wait(supervisor, 5) and processes.alive(network.keeper)
    (row,) = clean(store.Store(engine.home), Cleaning())
    assert f"2 without its mark in its network, its network's keeper (pid {network.keeper.pid})" in row.what
    assert not processes.alive(network.keeper)
    assert inhabitants(namespaces) == []
    assert clean(store.Store(engine.home), Cleaning(("digits",))) == []
