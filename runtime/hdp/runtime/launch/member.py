"""An agent's line to the coordinator. One interface, two kinds: over the network, or, for a job of one host, inside.

Messages arrive through `deliver`, called from another thread or at once; the agent posts them to its loop. When the
coordinator can't be reached any more, a ``lost`` message arrives, with a failure that names hosts[0].
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Protocol

from hdp.contract.errors import LaunchError
from hdp.contract.outcome import Failure
from hdp.contract.secret import Session
from hdp.runtime.launch import wire
from hdp.runtime.launch.coordination import Coordination
from hdp.runtime.launch.coordinator import HANDSHAKE_SECONDS, SILENCE_SECONDS

log = logging.getLogger(__name__)

Deliver = Callable[[wire.Message], None]
_RETRY_SECONDS = 0.1
_RETRY_MAX_SECONDS = 2.0
#: Once may be another job's coordinator that was ending; a wrong secret doesn't get better.
_WRONG_SECRET_TIMES = 4


class Line(Protocol):
    """What an agent needs of its line to the coordinator."""

    def send(self, message: wire.Message) -> None:
        """Tell the coordinator."""
        ...

    def tick(self) -> None:
        """To be called now and then."""
        ...

    def close(self) -> None:
        """End the line."""
        ...


class LocalLine:
    """The line of a job of one host: the coordination runs in the agent itself."""

    def __init__(self, coordination: Coordination, deliver: Deliver) -> None:
        self._coordination = coordination
        self._deliver = deliver
        self._host = ""

    def send(self, message: wire.Message) -> None:
        """Handle `message` at once."""
        if message["type"] == "hello":
            self._host = message["host"]
            out = self._coordination.hello(self._host, message["local_size"])
        else:
            out = self._coordination.message(self._host, message, time.monotonic())
        for _, answer in out:
            self._deliver(answer)

    def tick(self) -> None:
        """Let deadlines pass."""
        for _, answer in self._coordination.tick(time.time(), time.monotonic()):
            self._deliver(answer)

    def close(self) -> None:
        """Nothing to end."""


@dataclass(frozen=True)
class CoordinatorAddress:
    """Where the coordinator is."""

    host: str
    address: str
    port: int

    def __str__(self) -> str:
        return f"{self.host} ({self.address}:{self.port})"


class NetworkLine:
    """A connection to the coordinator; a thread makes it and reads from it."""

    def __init__(self, coordinator: CoordinatorAddress, secret: bytes, timeout: float, deliver: Deliver) -> None:
        """timeout: seconds until the coordinator must be reachable."""
        self._coordinator = coordinator
        self._secret = secret
        self._deadline = time.monotonic() + timeout
        self._timeout = timeout
        self._deliver = deliver
        self._lock = threading.Lock()
        self._waiting: list[bytes] = []  # encoded before the connection was there
        self._socket: socket.socket | None = None
        self._session: Session | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hdp-member", daemon=True)
        self._thread.start()

    def send(self, message: wire.Message) -> None:
        """Send `message`, or keep it until the connection is there."""
        text = wire.encode(message)
        with self._lock:
            if self._socket is None or self._session is None:
                self._waiting.append(text)
                return
            with contextlib.suppress(OSError):  # the reading thread notices and tells
                self._socket.sendall(wire.seal(self._session, text))

    def tick(self) -> None:
        """Nothing to do: the thread does it."""

    def close(self) -> None:
        """End the connection."""
        self._closing.set()
        with self._lock:
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(5.0)

    def _run(self) -> None:
        try:
            connection, session = self._connect()
            with connection:
                self._open(connection, session)
                self._read(connection, session)
        except (OSError, LaunchError) as exc:
            if not self._closing.is_set():
                self._report(str(exc))
        finally:
            with self._lock:
                self._socket = None

    def _open(self, connection: socket.socket, session: Session) -> None:
        connection.settimeout(SILENCE_SECONDS)
        with self._lock:
            for text in self._waiting:
                connection.sendall(wire.seal(session, text))
            self._waiting.clear()
            self._socket, self._session = connection, session

    def _connect(self) -> tuple[socket.socket, Session]:
        pause, wrong = _RETRY_SECONDS, 0
        while not self._closing.is_set():
            try:
                return self._try_connect()
            except (OSError, wire.WireError) as exc:
                wrong = wrong + 1 if isinstance(exc, wire.WireError) else 0
                if wrong >= _WRONG_SECRET_TIMES:
                    raise
                if time.monotonic() + pause > self._deadline:
                    raise LaunchError(f"it could not be reached within {self._timeout:g} s: {exc}") from exc
            self._closing.wait(pause)
            pause = min(2 * pause, _RETRY_MAX_SECONDS)
        raise LaunchError("closed")

    def _try_connect(self) -> tuple[socket.socket, Session]:
        where = self._coordinator
        connection = socket.create_connection((where.address, where.port), timeout=HANDSHAKE_SECONDS)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            session = wire.prove_as_agent(self._secret, partial(_receive_exactly, connection), connection.sendall)
        except BaseException:
            connection.close()
            raise
        return connection, session

    def _read(self, connection: socket.socket, session: Session) -> None:
        reader = wire.LineReader(session)
        while True:
            data = connection.recv(65536)
            if not data:
                raise ConnectionResetError("it closed the connection")
            for message in reader.feed(data):
                if message["type"] == "ping":
                    self.send({"type": "pong"})
                else:
                    self._deliver(message)

    def _report(self, why: str) -> None:
        what = f"LaunchError: lost contact with the coordinator on host {self._coordinator}: {why}"
        failure = Failure(self._coordinator.host, None, time.time(), exception=what)
        self._deliver({"type": "lost", "failure": asdict(failure)})


def _receive_exactly(connection: socket.socket, count: int) -> bytes:
    """`count` bytes within HANDSHAKE_SECONDS, however few come at a time. Raises OSError."""
    data, deadline = b"", time.monotonic() + HANDSHAKE_SECONDS
    while len(data) < count:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        more = connection.recv(count - len(data))
        if not more:
            raise ConnectionResetError("it hung up on this host before either had proved to know the job's secret")
        data += more
    return data
