"""Both ends prove that they know the secret, or nothing they say is used."""

import os
import socket
import threading

import pytest

from hdp.collectives import handshake
from hdp.collectives.handshake import HandshakeError
from hdp.contract.errors import ContractError
from hdp.contract.secret import read_secret

SECRET = b"s" * 32


def _serve(sock, secret, results, purpose="rank"):
    try:
        results.append(handshake.accept(sock, secret, purpose, timeout=2))
    except HandshakeError as exc:
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


def test_the_same_secret_passes_the_hello():
    assert _meet(lambda s: handshake.connect(s, SECRET, "rank", {"rank": 3})) == {"rank": 3}


def test_a_client_with_another_secret_notices_the_server_first():
    with pytest.raises(HandshakeError, match="server does not know"):
        _meet(lambda s: handshake.connect(s, b"x" * 32, "rank", {}))


def test_a_proof_for_one_purpose_is_none_for_another():
    with pytest.raises(HandshakeError):
        _meet(lambda s: handshake.connect(s, SECRET, "server", {}))


@pytest.mark.parametrize(
    "text", [b"GET / HTTP/1.1\r\n\r\n" + b" " * 40, os.urandom(36), handshake.MAGIC + os.urandom(200)]
)
def test_a_stranger_is_refused(text):
    """Anything that isn't the protocol, or a client that can't answer the challenge."""
    assert isinstance(_meet(lambda s: s.sendall(text)), HandshakeError)


def test_a_silent_client_is_dropped_in_time():
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(HandshakeError, match="no answer in time"):
        handshake.accept(theirs, SECRET, "rank", timeout=0.1)


def test_a_hello_without_end_is_refused():
    """A length of 4 GB is not waited for."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"\xff\xff\xff\xff")
        with pytest.raises(HandshakeError, match="expected at most"):
            handshake.receive_json(theirs)


@pytest.mark.parametrize(("mode", "size", "message"), [(0o644, 32, "mode 644"), (0o600, 3, "holds 3 bytes")])
def test_a_secret_file_that_is_no_secret(tmp_path, mode, size, message):
    path = tmp_path / "secret"
    path.write_bytes(b"a" * size)
    path.chmod(mode)
    with pytest.raises(ContractError, match=message):
        read_secret(path)
