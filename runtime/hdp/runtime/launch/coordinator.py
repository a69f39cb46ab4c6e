"""The coordinator on hosts[0]: a thread with one loop over the agents' connections. `Coordination` decides.

It survives strangers: a connection that doesn't prove the job's secret in time is dropped, and so is the oldest of too
many. Only the first is logged. Every member is pinged; one that is silent for SILENCE_SECONDS is lost.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from dataclasses import dataclass, field

from hdp.contract.errors import LaunchError
from hdp.contract.secret import Dialogue, Session, Unproven
from hdp.runtime.launch import wire
from hdp.runtime.launch.coordination import Coordination, Outgoing

log = logging.getLogger(__name__)

PING_SECONDS = 2.0
SILENCE_SECONDS = 10.0
HANDSHAKE_SECONDS = 10.0
#: Connections that have not proved anything yet. Beyond that the oldest one goes: who knows the secret needs its place
#: for milliseconds, and strangers use up neither our descriptors nor the places.
MAX_STRANGERS = 256
#: Accepted between two looks at those who are here already: a flood doesn't keep these waiting.
_ACCEPTED_AT_ONCE = 16
#: Rest after a connection could not be accepted, e.g. for want of descriptors, instead of trying at once for ever.
_PAUSE_SECONDS = 0.1
_RECEIVE_BYTES = 65536
#: An agent with another secret hangs up when it sees our proof; it is the one that says so.
_PERHAPS = "; perhaps it doesn't know this job's secret"


@dataclass(eq=False)
class _Peer:
    """One connection."""

    socket: socket.socket
    address: str
    proving: Dialogue[Session]
    since: float
    heard: float
    host: str | None = None
    reader: wire.LineReader | None = None
    outgoing: bytearray = field(default_factory=bytearray)

    @property
    def trusted(self) -> bool:
        """Whether it has proved to know the secret."""
        return self.proving.result is not None


class Coordinator:
    """Serves the job's agents until all are done. `close` ends it."""

    def __init__(self, coordination: Coordination, secret: bytes, address: str, port: int) -> None:
        self._coordination = coordination
        self._secret = secret
        self._listener = _listen(address, port)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._peers: list[_Peer] = []
        self._reported: set[str] = set()
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
        while time.monotonic() < deadline and (self._coordination.awaited or any(p.host for p in list(self._peers))):
            time.sleep(0.02)
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                for key, events in self._selector.select(0.2):
                    if key.fileobj is self._listener:
                        self._accept_some()
                    else:
                        self._serve(key.data, events)
                self._tick()
        finally:
            for peer in self._peers:
                peer.socket.close()
            self._listener.close()
            self._selector.close()

    def _accept_some(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                connection, (address, port, *_) = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as exc:
                self._report("full", logging.ERROR, f"can't accept connections: {exc}")
                self._closing.wait(_PAUSE_SECONDS)
                return
            self._admit(connection, f"{address}:{port}")

    def _admit(self, connection: socket.socket, address: str) -> None:
        connection.setblocking(False)
        strangers = [p for p in self._peers if not p.trusted]
        if len(strangers) >= MAX_STRANGERS:
            self._drop(strangers[0], f"it has proved nothing, and {MAX_STRANGERS} others wait")
        now = time.monotonic()
        peer = _Peer(connection, address, Dialogue(wire.prove_as_coordinator(self._secret)), now, now)
        self._peers.append(peer)
        self._selector.register(connection, selectors.EVENT_READ, peer)

    def _serve(self, peer: _Peer, events: int) -> None:
        if events & selectors.EVENT_WRITE and peer in self._peers:
            self._flush(peer)
        if events & selectors.EVENT_READ and peer in self._peers:
            self._receive(peer)

    def _receive(self, peer: _Peer) -> None:
        try:
            data = peer.socket.recv(_RECEIVE_BYTES if peer.trusted else peer.proving.wanted)
        except BlockingIOError:
            return
        except OSError as exc:
            return self._drop(peer, str(exc))
        if not data:
            return self._drop(peer, f"it closed the connection{'' if peer.trusted else _PERHAPS}")
        peer.heard = time.monotonic()
        try:
            self._interpret(peer, data)
        except (wire.WireError, Unproven) as exc:
            self._drop(peer, str(exc))

    def _interpret(self, peer: _Peer, data: bytes) -> None:
        if peer.reader is not None:
            for message in peer.reader.feed(data):
                self._handle(peer, message)
            return
        answer = peer.proving.feed(data)
        if peer.proving.result is not None:
            peer.reader = wire.LineReader(peer.proving.result)
        self._send(peer, answer)

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
                assert peer.proving.result is not None
                self._send(peer, wire.seal(peer.proving.result, wire.encode(message)))

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
        else:
            self._report("stranger", logging.WARNING, f"dropped a connection from {peer.address}: {why}")

    def _report(self, kind: str, level: int, text: str) -> None:
        """Log the first of each kind; a log that strangers can fill is a weapon."""
        if kind in self._reported:
            log.debug("control port: %s", text)
            return
        self._reported.add(kind)
        log.log(level, "control port: %s; from now on this is not logged", text)

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
