"""The coordinator on hosts[0]: a thread with one loop over the agents' connections. `Coordination` decides.

It survives strangers: a connection that doesn't prove the job's secret in time is dropped, and the first of each
address is logged. Every member is pinged; one that is silent for SILENCE_SECONDS is lost.
"""

from __future__ import annotations

import logging
import secrets
import selectors
import socket
import threading
import time
from dataclasses import dataclass, field

from hdp.contract.errors import LaunchError
from hdp.contract.secret import NONCE_BYTES, PROOF_BYTES
from hdp.runtime.launch import wire
from hdp.runtime.launch.coordination import Coordination, Outgoing

log = logging.getLogger(__name__)

PING_SECONDS = 2.0
SILENCE_SECONDS = 10.0
HANDSHAKE_SECONDS = 10.0
#: Connections that have not proved anything yet; more are dropped, so that strangers can't use up our descriptors.
MAX_STRANGERS = 64


@dataclass(eq=False)
class _Peer:
    """One connection."""

    socket: socket.socket
    address: str
    nonce: bytes
    since: float
    heard: float
    trusted: bool = False
    host: str | None = None
    proof: bytes = b""
    reader: wire.LineReader = field(default_factory=wire.LineReader)
    outgoing: bytearray = field(default_factory=bytearray)


class Coordinator:
    """Serves the job's agents until all are done. `close` ends it."""

    def __init__(self, coordination: Coordination, secret: bytes, address: str, port: int) -> None:
        self._coordination = coordination
        self._secret = secret
        self._listener = _listen(address, port)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._peers: list[_Peer] = []
        self._logged: set[str] = set()
        self._closing = threading.Event()
        self._pinged = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="hdp-coordinator", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._listener.getsockname()[1])

    def close(self, seconds: float) -> None:
        """End the thread, once every agent has hung up, or after `seconds`.

        To close first could cost them the last message. Hosts that never came get the same time to hear why the job
        has failed.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and (self._coordination.missing or any(p.host for p in list(self._peers))):
            time.sleep(0.02)
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                for key, events in self._selector.select(0.2):
                    if key.fileobj is self._listener:
                        self._accept()
                    else:
                        self._serve(key.data, events)
                self._tick()
        finally:
            for peer in self._peers:
                peer.socket.close()
            self._listener.close()
            self._selector.close()

    def _accept(self) -> None:
        try:
            connection, (address, *_) = self._listener.accept()
        except OSError:
            return
        if sum(not p.trusted for p in self._peers) >= MAX_STRANGERS:
            connection.close()
            return
        connection.setblocking(False)
        now = time.monotonic()
        peer = _Peer(connection, address, secrets.token_bytes(NONCE_BYTES), now, now)
        self._peers.append(peer)
        self._selector.register(connection, selectors.EVENT_READ, peer)
        self._send(peer, peer.nonce)

    def _serve(self, peer: _Peer, events: int) -> None:
        if events & selectors.EVENT_WRITE and peer in self._peers:
            self._flush(peer)
        if events & selectors.EVENT_READ and peer in self._peers:
            self._receive(peer)

    def _receive(self, peer: _Peer) -> None:
        try:
            data = peer.socket.recv(65536)
        except BlockingIOError:
            return
        except OSError as exc:
            return self._drop(peer, str(exc))
        if not data:
            return self._drop(peer, "it closed the connection")
        peer.heard = time.monotonic()
        try:
            self._interpret(peer, data)
        except wire.WireError as exc:
            self._drop(peer, str(exc))

    def _interpret(self, peer: _Peer, data: bytes) -> None:
        if not peer.trusted:
            data = self._check(peer, data)
        if peer.trusted:
            for message in peer.reader.feed(data):
                self._handle(peer, message)

    def _check(self, peer: _Peer, data: bytes) -> bytes:
        """Collect the peer's proof; once it is whole, check it. Returns what came after it."""
        peer.proof += data
        size = NONCE_BYTES + PROOF_BYTES
        if len(peer.proof) < size:
            return b""
        self._send(peer, wire.check_agent(self._secret, peer.nonce, peer.proof[:size]))
        peer.trusted = True
        return peer.proof[size:]

    def _handle(self, peer: _Peer, message: wire.Message) -> None:
        if peer.host is None:
            if message["type"] != "hello" or not isinstance(message.get("local_size"), int):
                raise wire.WireError(f"it began with {message['type']!r}, expected hello")
            host = str(message.get("host"))
            out = self._coordination.hello(host, message["local_size"])
            peer.host = host
            self._deliver(out)
        else:
            self._deliver(self._coordination.message(peer.host, message, time.monotonic()))

    def _deliver(self, out: Outgoing) -> None:
        for host, message in out:
            for peer in [p for p in self._peers if p.host is not None and host in (None, p.host)]:
                self._send(peer, wire.encode(message))

    def _send(self, peer: _Peer, data: bytes) -> None:
        peer.outgoing += data
        self._flush(peer)

    def _flush(self, peer: _Peer) -> None:
        try:
            while peer.outgoing:
                del peer.outgoing[: peer.socket.send(peer.outgoing)]
        except BlockingIOError:
            pass
        except OSError as exc:
            return self._drop(peer, str(exc))
        writing = selectors.EVENT_WRITE if peer.outgoing else 0
        self._selector.modify(peer.socket, selectors.EVENT_READ | writing, peer)
        return None

    def _drop(self, peer: _Peer, why: str) -> None:
        if peer not in self._peers:
            return
        self._peers.remove(peer)
        self._selector.unregister(peer.socket)
        peer.socket.close()
        if peer.host is not None:
            self._deliver(self._coordination.lost(peer.host, why, time.time(), time.monotonic()))
        elif peer.address not in self._logged:
            self._logged.add(peer.address)
            log.warning("control port: dropped a connection from %s: %s", peer.address, why)

    def _tick(self) -> None:
        now = time.monotonic()
        for peer in list(self._peers):
            if peer.host is None and now - peer.since > HANDSHAKE_SECONDS:
                self._drop(peer, f"no proof of the job's secret within {HANDSHAKE_SECONDS:g} s")
            elif peer.host is not None and now - peer.heard > SILENCE_SECONDS:
                self._drop(peer, f"nothing heard from it for {SILENCE_SECONDS:g} s")
        if now - self._pinged >= PING_SECONDS:
            self._pinged = now
            self._deliver([(None, {"type": "ping"})])
        self._deliver(self._coordination.tick(time.time(), now))


def _listen(address: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((address, port), family=family, backlog=512)
    except OSError as exc:
        raise LaunchError(
            f"the agents' coordinator can't listen on {address}:{port}: {exc}; is HDP_CONTROL_PORT taken, or "
            "HDP_HOST_ADDRESSES wrong?"
        ) from exc
    listener.setblocking(False)
    return listener
