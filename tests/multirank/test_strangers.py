"""Strangers at the servers' sockets change nothing, keep nobody out, and are logged once a listener (DESIGN I9)."""

import contextlib
import os
import random
import socket
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from calls import leave, ones, rejoin
from cluster import Cluster

import hdp.collectives as hc
from hdp.collectives import handshake, lobby
from hdp.collectives.handshake import WrongSecret
from hdp.collectives.lobby import Lobby
from hdp.contract.secret import MAGIC

#: Steps of the ranks before strangers come.
GOING = 3
two_by_two = pytest.mark.parametrize("own_cluster", [[2, 2]], indirect=True, ids=str)


# -- what ranks do meanwhile -----------------------------------------------------------------------------------------


def _reduce_until(comm, stop_file, count=50_000):
    """Allreduce again and again until `stop_file` exists, every element checked; how often.

    After some steps the file "going" beside it appears.
    """
    size, place = comm.layout.size, np.arange(count, dtype=np.float64)
    for step in range(10**9):
        mine = place * 3 + comm.rank + step
        mine[-1] = Path(stop_file).exists()  # all ranks see the sum, so all stop after the same step
        out = hc.allreduce(mine, comm.world, timeout=20).wait()
        expected = size * (place * 3 + step) + size * (size - 1) / 2
        np.testing.assert_array_equal(out[:-1], expected[:-1])
        if step == GOING:
            Path(stop_file).with_name("going").touch()
        if out[-1]:
            return step + 1


@contextlib.contextmanager
def _reducing(cluster):
    """All ranks reduce meanwhile."""
    stop, going = (Path(cluster.folder.name) / name for name in ("stop", "going"))
    for rank in range(cluster.size):
        cluster.call(rank, _reduce_until, str(stop))
    assert _settles(going.exists, True, 20)
    try:
        yield
    finally:
        stop.touch()
        steps = cluster.collect(20)
    assert len(set(map(str, steps.values()))) == 1 and steps[0] > GOING + 1, steps


def _timed_rejoin(comm, *place):
    """Join anew; seconds until that is done and all ranks have added a 1, and the sum."""
    began = time.monotonic()
    total = rejoin(comm, *place)
    return time.monotonic() - began, total


# -- strangers -------------------------------------------------------------------------------------------------------


def _places(cluster):
    """Every address on which a server of the job listens."""
    tcp = [
        connection.laddr
        for server in cluster.servers
        for connection in psutil.Process(server.pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(tcp) == (len(cluster.sizes) if len(cluster.sizes) > 1 else 0)
    return [*(cluster.socket(i) for i in range(len(cluster.sizes))), *map(tuple, tcp)]


def _knock(place):
    sock = socket.socket(socket.AF_UNIX if isinstance(place, str) else socket.AF_INET)
    try:
        sock.connect(place)  # without a time limit: with one, a full backlog is an error at once
        sock.settimeout(10)
    except OSError:
        sock.close()
        raise
    return sock


def _throw(place, size, connections, rng):
    """Random bytes, over so many connections; every other one begins as ours do."""
    for i in range(connections):
        data = rng.randbytes(size // connections)
        with _knock(place) as sock, contextlib.suppress(ConnectionError):
            sock.sendall(MAGIC + data if i % 2 else data)


class _Recorder:
    """A socket that keeps what was sent."""

    def __init__(self, sock):
        self.sock, self.sent = sock, b""

    def sendall(self, data):
        self.sent += data
        self.sock.sendall(data)

    def __getattr__(self, name):
        return getattr(self.sock, name)


def _recording(secret, purpose):
    """What a real client of this job sends in its handshake."""
    with contextlib.closing(Lobby(socket.create_server(("127.0.0.1", 0)), secret, purpose, str)) as server:
        with socket.create_connection(server._listener.getsockname(), 5) as sock:
            recorder = _Recorder(sock)
            handshake.connect(recorder, secret, purpose, {"host": 1, "generation": 1, "local_rank": 0, "rank": 0})
        return recorder.sent


def _purpose(place):
    return "rank" if isinstance(place, str) else "server"


def _replay(place, secret):
    """Nothing comes back but the server's challenge."""
    with _knock(place) as sock:
        sock.sendall(_recording(secret, _purpose(place)))
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while part := sock.recv(1000):
                answer += part
    assert len(answer) == 64


def _try_secret(place, secret):
    with _knock(place) as sock, pytest.raises(WrongSecret):
        handshake.connect(sock, secret, _purpose(place), {"rank": 0, "local_rank": 0})


@contextlib.contextmanager
def _flood(places):
    """A thread knocks at all places as fast as it can, and leaves at once."""
    over = threading.Event()
    knocked = [0]

    def run():
        while not over.is_set():
            for place in places:
                with contextlib.suppress(OSError), _knock(place) as sock:
                    sock.sendall(MAGIC)
                    knocked[0] += 1

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert _settles(lambda: knocked[0] > 100, True), "no flood"
        yield
    finally:
        over.set()
        thread.join()


def _refusals(cluster):
    """Log lines about refused connections: (host, socket's purpose), sorted."""
    return sorted(
        (host, purpose)
        for host in range(len(cluster.sizes))
        for line in cluster.log(host).splitlines()
        for purpose in ("rank", "server")
        if f"refused a connection to the {purpose} socket" in line
    )


ALL = [(0, "rank"), (0, "server"), (1, "rank"), (1, "server")]


def _descriptors(cluster):
    """How many each server has open."""
    return [psutil.Process(server.pid).num_fds() for server in cluster.servers]


def _memory(cluster):
    """Resident bytes of each server."""
    return [psutil.Process(server.pid).memory_info().rss for server in cluster.servers]


def _settles(measure, expected, seconds=5.0):
    """Whether `measure()` becomes `expected`: servers notice closed connections a moment later."""
    deadline = time.monotonic() + seconds
    while measure() != expected and time.monotonic() < deadline:
        time.sleep(0.05)
    return measure() == expected


# -- the tests -------------------------------------------------------------------------------------------------------


def _bombard(cluster, connections):
    """A million random bytes at each listener, another job's secret, and a real client's words of an earlier time."""
    rng, secret = random.Random(connections), cluster.secret.read_bytes()
    cluster.run(ones, 50_000)  # whatever a server opens for its first operation, it has
    fds, rss = _descriptors(cluster), _memory(cluster)
    with _reducing(cluster):
        for place in _places(cluster):
            _throw(place, 1_000_000, connections, rng)
            _try_secret(place, os.urandom(32))
            _replay(place, secret)
    assert _refusals(cluster) == ALL
    assert _settles(lambda: _descriptors(cluster), fds), (fds, _descriptors(cluster))
    grown = [after - before for after, before in zip(_memory(cluster), rss, strict=True)]
    assert max(grown) < 16 << 20, grown


@two_by_two
def test_strangers_change_nothing(own_cluster):
    """200 connections a listener while all ranks reduce: exact sums, one log line a listener, nothing grows."""
    _bombard(own_cluster, 200)


@pytest.mark.slow
@two_by_two
def test_many_strangers_change_nothing(own_cluster):
    """The same over 20,000 connections a listener."""
    _bombard(own_cluster, 20_000)


@two_by_two
def test_strangers_keep_no_rank_and_no_server_out(own_cluster):
    """More idle connections than there are places, and a flood, at every listener: ranks and servers still meet."""
    own_cluster.run(leave)
    places = _places(own_cluster)
    idle = [_knock(place) for _ in range(lobby.MAX_NEWCOMERS + 50) for place in places]
    try:
        with _flood(places):
            for rank in range(own_cluster.size):
                host, local = divmod(rank, 2)
                place = (own_cluster.socket(host), str(own_cluster.secret), local, rank)
                own_cluster.call(rank, _timed_rejoin, *place)
            results = own_cluster.collect(20)
    finally:
        for sock in idle:
            sock.close()
    assert not [r for r in results.values() if isinstance(r, Exception)], results
    assert {total for _, total in results.values()} == {4.0}
    assert max(seconds for seconds, _ in results.values()) < 8
    assert _refusals(own_cluster) == ALL


def test_a_process_of_another_user_is_not_listened_to():
    """At the ranks' socket, though it is let in by the file system: hung up on before a byte is exchanged."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    with Cluster([1]) as cluster:
        Path(cluster.folder.name).chmod(0o711)
        Path(cluster.socket(0)).chmod(0o666)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.setgroups([])
            os.setresgid(61234, 61234, 61234)
            os.setresuid(61234, 61234, 61234)
            with contextlib.suppress(Exception), _knock(cluster.socket(0)) as sock:
                os.write(write, b"connected, and got %d bytes" % len(sock.recv(100)))
            os._exit(0)
        os.waitpid(child, 0)
        os.close(write)
        with os.fdopen(read) as said:
            assert said.read() == "connected, and got 0 bytes"
        assert "of user 61234: it is a process of another user" in cluster.log(0)
        assert _refusals(cluster) == [(0, "rank")]
