"""Strangers at the ports of a job of two hosts, while its agents meet and its ranks work: nothing happens."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import time

import psutil
import pytest
from runtime_cluster import Cluster, MakeCluster

from hdp.contract.secret import MAGIC
from hdp.runtime.launch import wire
from hdp.runtime.launch.coordinator import MAX_STRANGERS

SCRIPT = """
import pathlib, time
import numpy as np
import hdp.collectives as hc
comm = hc.init()
stop = pathlib.Path("STOP")
print("up", flush=True)
for step in range(10**9):
    mine = np.arange(1000.0) + comm.rank
    mine[0] = stop.exists()
    out = hc.allreduce(mine, comm.world, timeout=20).wait()
    assert (out[1:] == 2 * np.arange(1000.0)[1:] + 1).all()
    if out[0]:
        break
print("exact", flush=True)
"""


def knock(place: tuple[str, int]) -> socket.socket:
    return socket.create_connection(place, 10)


def throw(place: tuple[str, int], size: int, connections: int) -> None:
    """Random bytes, over so many connections; every other one begins as ours do."""
    rng = random.Random(1)
    for i in range(connections):
        data = rng.randbytes(size // connections)
        with knock(place) as sock, contextlib.suppress(ConnectionError):
            sock.sendall(MAGIC + data if i % 2 else data)


def try_secret(place: tuple[str, int]) -> None:
    with knock(place) as sock, pytest.raises(wire.WireError):
        wire.prove_as_agent(os.urandom(32), lambda n: sock.recv(n, socket.MSG_WAITALL), sock.sendall)


def recorded(secret: bytes, place: tuple[str, int]) -> bytes:
    """The words with which an agent of this job once proved itself: it never said more."""
    sent = []
    with knock(place) as sock:
        wire.prove_as_agent(
            secret, lambda n: sock.recv(n, socket.MSG_WAITALL), lambda d: (sent.append(d), sock.sendall(d))
        )
    return b"".join(sent)


def replay(place: tuple[str, int], data: bytes) -> None:
    """Nothing comes back but the coordinator's challenge."""
    with knock(place) as sock:
        sock.sendall(data)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while part := sock.recv(1000):
                answer += part
    assert len(answer) == 64


def places(cluster: Cluster, host: int) -> list[tuple[str, int]]:
    """Where the agent of `host` and its server listen."""
    agent = cluster.hosts[host].process
    assert agent is not None
    found = [psutil.Process(agent.pid), *psutil.Process(agent.pid).children(recursive=True)]
    listening = [c.laddr for p in found for c in p.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    return [(where.ip, where.port) for where in listening]


def test_a_job_of_two_hosts_does_not_mind_strangers(make_cluster: MakeCluster) -> None:
    """More idle connections than places before the second host comes; then a million bytes a port, and replays.

    The job ends well and exact; each of its three TCP listeners has logged one stranger.
    """
    cluster = make_cluster("", hosts=2, ranks=1, server=None)
    stop = cluster.base / "stop"
    for host in cluster.hosts:
        (host.layout.code / "train.py").write_text(SCRIPT.replace("STOP", str(stop)))
    cluster.start_host(cluster.hosts[0])
    cluster.wait_for(lambda: len(places(cluster, 0)) == 1)
    [control] = places(cluster, 0)
    idle = [knock(control) for _ in range(MAX_STRANGERS + 50)]
    try:
        try_secret(control)
        words = recorded((cluster.base / "secret").read_bytes(), control)
        replay(control, words)
        start = time.monotonic()
        cluster.start_host(cluster.hosts[1])
        cluster.wait_for(lambda: cluster.log().count("] up\n") == 2)
        assert time.monotonic() - start < 15
        everywhere = {*places(cluster, 0), *places(cluster, 1)}
        assert len(everywhere) == 3
        for place in everywhere:
            throw(place, 1_000_000, 200)
        replay(control, words)
        stop.touch()
        assert cluster.wait() == [0, 0], cluster.log()
    finally:
        for sock in idle:
            sock.close()
    assert cluster.log().count("] exact\n") == 2
    assert cluster.hosts[0].text().count("control port: dropped a connection") == 1
    for host in cluster.hosts:
        assert host.text().count("refused a connection to the server socket") == 1, host.text()


@pytest.mark.slow
def test_an_impostor_that_drips_does_not_hold_an_agent_up(make_cluster: MakeCluster) -> None:
    """Somebody else has the coordinator's port and sends a byte a second: the agent gives up at its time limit.

    The limit is 2 s, a handshake may take 10, and hosts get 5 s more than the coordinator: 30 at most.
    """
    cluster = make_cluster("", hosts=2, ranks=1, environ={"HDP_START_TIMEOUT_SECONDS": "2"})
    port = int(cluster.hosts[0].environ["HDP_CONTROL_PORT"])
    with socket.create_server(("127.0.9.1", port)) as impostor:
        impostor.settimeout(0.5)
        cluster.start_host(cluster.hosts[1])
        agent = cluster.hosts[1].process
        assert agent is not None
        start, held = time.monotonic(), []
        while agent.poll() is None:
            assert time.monotonic() - start < 30
            with contextlib.suppress(OSError):
                held.append(impostor.accept()[0])
            for sock in held:
                with contextlib.suppress(OSError):
                    sock.send(b"x")
        for sock in held:
            sock.close()
    assert "lost contact with the coordinator on host algo-1" in cluster.hosts[1].failure()
