"""Both ends prove that they know the secret, or nothing they say is used."""

import contextlib
import logging
import os
import socket
import threading
import time

import pytest

from hdp.collectives import handshake, lobby
from hdp.collectives.handshake import HandshakeError, WrongSecret
from hdp.collectives.lobby import Lobby
from hdp.contract.errors import ContractError
from hdp.contract.secret import MAGIC, Dialogue, Session, Unproven, read_secret

SECRET = b"s" * 32


def _greet(sock, secret, purpose):
    greeting = Dialogue(handshake.greet(secret, purpose))
    while greeting.result is None:
        answer = greeting.feed(handshake.receive(sock, greeting.wanted))
        if answer:
            handshake.send(sock, answer)
    return greeting.result[1]


def _serve(sock, secret, results, purpose):
    sock.settimeout(2)
    try:
        results.append(_greet(sock, secret, purpose))
    except (HandshakeError, Unproven) as exc:
        results.append(exc)
    finally:
        sock.close()


def _meet(client, secret=SECRET, purpose="rank"):
    """Run `client` against a server with `secret`; what the server got."""
    ours, theirs = socket.socketpair()
    results = []
    thread = threading.Thread(target=_serve, args=(theirs, secret, results, purpose))
    thread.start()
    with ours:
        try:
            client(ours)
        finally:
            ours.close()
            thread.join()
    return results[0]


def _until_hung_up(sock):
    with contextlib.suppress(ConnectionResetError):  # what we sent wasn't read to its end
        while sock.recv(100):
            pass


def test_the_same_secret_passes_the_hello():
    assert _meet(lambda s: handshake.connect(s, SECRET, "rank", {"rank": 3})) == {"rank": 3}


def test_a_client_with_another_secret_notices_the_server_first():
    with pytest.raises(WrongSecret, match="server does not know"):
        _meet(lambda s: handshake.connect(s, b"x" * 32, "rank", {}))


def test_a_proof_for_one_purpose_is_none_for_another():
    with pytest.raises(HandshakeError):
        _meet(lambda s: handshake.connect(s, SECRET, "server", {}))


@pytest.mark.parametrize(
    "text",
    [b"GET / HTTP/1.1\r\n\r\n" + b" " * 40, os.urandom(36), MAGIC + os.urandom(200)],
    ids=["HTTP", "noise", "our magic, then noise"],
)
def test_a_stranger_is_refused(text):
    """Anything that isn't the protocol, or a client that can't answer the challenge."""
    assert isinstance(_meet(lambda s: s.sendall(text)), (HandshakeError, Unproven))


class _Tap:
    """A socket that can change what the client sends, and keeps it."""

    def __init__(self, sock, change=None):
        self.sock, self.sent, self.change = sock, [], change

    def sendall(self, data):
        self.sent.append(data)
        self.sock.sendall(self.change(data) if self.change else data)

    def __getattr__(self, name):
        return getattr(self.sock, name)


def test_a_recorded_handshake_is_of_no_use():
    """What a client sent to the server once, word for word, a second time."""
    taps = []
    _meet(lambda s: handshake.connect(taps.append(_Tap(s)) or taps[0], SECRET, "rank", {"rank": 3}))
    recorded = b"".join(taps[0].sent)

    def replay(sock):
        sock.sendall(recorded)
        _until_hung_up(sock)

    assert str(_meet(replay)) == "it does not know the job's secret"


@pytest.mark.parametrize("place", [0, 33, 32 + 4, -33, -1])
def test_a_hello_that_was_changed_on_its_way_is_refused(place):
    """A bit flips in the proof, its length, its text, its seal. (The first bit of the length makes it 16 MB or so.)"""

    def flip(data):
        if data.startswith(MAGIC):
            return data
        changed = bytearray(data)
        changed[place] ^= 1
        return bytes(changed)

    got = _meet(lambda s: handshake.connect(_Tap(s, flip), SECRET, "rank", {"rank": 3}))
    assert isinstance(got, (HandshakeError, Unproven)), got


def test_a_hello_without_end_is_refused():
    """A client that knows the secret announces 4 GB; they aren't waited for."""

    def endless(data):
        return data if data.startswith(MAGIC) else data[:32] + b"\xff\xff\xff\xff"

    got = _meet(lambda s: handshake.connect(_Tap(s, endless), SECRET, "rank", {}))
    assert f"expected at most {handshake.MESSAGE_MAX_BYTES}" in str(got)


def test_seals_hold_for_one_message_in_one_direction():
    """Repeated, out of order, sent back: none of these is genuine."""
    client, server = Session(b"k" * 32, "client"), Session(b"k" * 32, "server")
    first, second = client.seal(b"one"), client.seal(b"two")
    assert not Session(b"k" * 32, "server").genuine(b"two", second), "the first is missing"
    assert server.genuine(b"one", first)
    assert not server.genuine(b"one", first), "again"
    assert not client.genuine(b"one", first), "sent back"
    assert not Session(b"l" * 32, "server").genuine(b"one", first), "another connection's"


@pytest.mark.parametrize(("mode", "size", "message"), [(0o644, 32, "mode 644"), (0o600, 3, "holds 3 bytes")])
def test_a_secret_file_that_is_no_secret(tmp_path, mode, size, message):
    path = tmp_path / "secret"
    path.write_bytes(b"a" * size)
    path.chmod(mode)
    with pytest.raises(ContractError, match=message):
        read_secret(path)


# -- the lobby -------------------------------------------------------------------------------------------------------


@pytest.fixture
def open_lobby():
    """A lobby on a TCP port; it listens until the test ends."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    made = Lobby(listener, SECRET, "test", lambda hello: int(hello["rank"]))
    made.address = listener.getsockname()
    yield made
    made.close()


def _call(address, rank):
    return handshake.connect(socket.create_connection(address, 5), SECRET, "test", {"rank": rank})


def _enter(address, rank):
    return _call(address, rank).socket


def _take(lobby, *ranks, seconds=5.0):
    """Which of `ranks` came."""
    came = lobby.take(list(ranks), time.monotonic() + seconds)
    _close_all(channel for channel, _ in came.values())
    return set(came)


def _close_all(socks):
    for sock in socks:
        sock.close()


def test_the_lobby_hands_out_who_came_as_often_as_asked(open_lobby):
    """Ranks 0 and 1 come, 2 doesn't."""
    clients = [_enter(open_lobby.address, rank) for rank in (0, 1)]
    assert _take(open_lobby, 0, 1, 2, seconds=0.2) == {0, 1} and not _take(open_lobby, 0, seconds=0)
    _close_all(clients)


def test_what_is_said_afterwards_is_sealed_too(open_lobby):
    """Both ways; then the server's next words with one bit changed on their way."""
    client, words = _call(open_lobby.address, 0), {"n": [1, "é"]}
    [(server, hello)] = open_lobby.take([0], time.monotonic() + 5).values()
    assert hello == {"rank": 0}
    for ours, theirs in ((client, server), (server, client)) * 2:
        ours.send(words)
        assert theirs.receive() == words
    tap = handshake.Channel(_Tap(server.socket, lambda data: data[:-1] + bytes([data[-1] ^ 1])), server._session)
    tap.send(words)
    with pytest.raises(HandshakeError, match="changed on its way"):
        client.receive()
    _close_all([client, server])


def test_silent_strangers_keep_nobody_out(open_lobby):
    """Twice as many idle connections as there are places: a rank comes in at once."""
    idle = [socket.create_connection(open_lobby.address, 5) for _ in range(2 * lobby.MAX_NEWCOMERS)]
    began = time.monotonic()
    with _enter(open_lobby.address, 0):
        assert _take(open_lobby, 0) == {0}
    assert time.monotonic() - began < 5
    assert len(open_lobby._newcomers) <= lobby.MAX_NEWCOMERS
    idle[0].settimeout(2)
    assert idle[0].recv(1) == b"", "the oldest was hung up on"
    _close_all(idle)


def test_a_silent_stranger_is_dropped_in_time(open_lobby, monkeypatch):
    monkeypatch.setattr(lobby, "GREETING_SECONDS", 0.2)
    with socket.create_connection(open_lobby.address, 5) as idle:
        assert idle.recv(1) == b""


def test_a_hello_that_names_nobody_is_refused(open_lobby):
    """`rank` is no number: the thread survives, and takes the next one."""
    with _enter(open_lobby.address, "no number") as odd, _enter(open_lobby.address, 7):
        assert _take(open_lobby, 7) == {7}
        assert odd.recv(1) == b""


def test_strangers_are_logged_once(open_lobby, caplog):
    """Three kinds, ten times: one warning that names the first one's address and fault."""
    with caplog.at_level(logging.INFO, "hdp"):
        for text in [b"GET / HTTP/1.1\r\n" + b" " * 30, MAGIC + os.urandom(64), b"x"] * 10:
            with socket.create_connection(open_lobby.address, 5) as stranger:
                with contextlib.suppress(OSError):  # hung up on already
                    stranger.sendall(text)
                    stranger.shutdown(socket.SHUT_WR)
                _until_hung_up(stranger)
    [record] = caplog.records
    assert "the test socket from 127.0.0.1:" in record.message
    assert "it does not speak our protocol; from now on this is not logged" in record.message


def test_descriptors_run_out_and_come_back(open_lobby, caplog):
    """None is left for accept(): said once, no spinning, and whoever waited comes in when there are some again."""
    import resource

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    waiting = socket.create_connection(open_lobby.address, 5)
    time.sleep(0.1)  # accepted
    highest = os.dup(0)
    os.close(highest)
    client = socket.socket()
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(highest, client.fileno()) + 1, limits[1]))
    try:
        client.connect(open_lobby.address)
        before = time.process_time()
        time.sleep(0.3)
        assert time.process_time() - before < 0.15
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    handshake.connect(client, SECRET, "test", {"rank": 1})
    assert _take(open_lobby, 1) == {1}
    assert sum("can't accept connections" in r.message for r in caplog.records) == 1
    _close_all([waiting, client])
