"""Connections between the processes of a job: made, authenticated, and set up for what follows."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from hdp.collectives import handshake
from hdp.contract.errors import CollectiveError

logger = logging.getLogger(__name__)

_MAX_HANDSHAKES = 64


class Lobby:
    """Accepts connections on a listener in the background, and keeps those that pass the handshake."""

    def __init__(self, listener: socket.socket, secret: bytes, purpose: str, key: Callable[[dict[str, Any]], Any]):
        self._listener, self._secret, self._purpose, self._key = listener, secret, purpose, key
        self._arrived: dict[Any, tuple[socket.socket, dict[str, Any]]] = {}
        self._changed = threading.Condition()
        self._busy = threading.BoundedSemaphore(_MAX_HANDSHAKES)
        self._strangers: set[str] = set()
        threading.Thread(target=self._accept_all, name=f"accept-{purpose}", daemon=True).start()

    def _accept_all(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError as exc:
                if self._listener.fileno() < 0:
                    return  # closed
                self._report(str(exc))  # out of descriptors, or the client is gone already
                time.sleep(0.1)
                continue
            self._busy.acquire()
            threading.Thread(target=self._greet, args=(sock,), daemon=True).start()

    def _greet(self, sock: socket.socket) -> None:
        try:
            hello = handshake.accept(sock, self._secret, self._purpose)
            sock.settimeout(None)
            with self._changed:
                old = self._arrived.pop(self._key(hello), None)
                if old is not None:
                    old[0].close()
                self._arrived[self._key(hello)] = (sock, hello)
                self._changed.notify_all()
        except (CollectiveError, OSError, KeyError, TypeError) as exc:
            sock.close()
            self._report(str(exc))
        finally:
            self._busy.release()

    def _report(self, text: str) -> None:
        if text not in self._strangers:  # once for each kind, however many knock
            self._strangers.add(text)
            logger.warning("refused a connection to the %s socket: %s", self._purpose, text)

    def wait_for_any(self, timeout: float | None) -> None:
        """Return when somebody is here, or after `timeout` seconds (None: never)."""
        with self._changed:
            self._changed.wait_for(lambda: self._arrived, timeout)

    def take(self, keys: list[Any], deadline: float) -> dict[Any, tuple[socket.socket, dict[str, Any]]]:
        """Remove and return those of `keys` that came until `deadline` (monotonic seconds), or all of them before."""
        with self._changed:
            left = max(0.0, deadline - time.monotonic())
            self._changed.wait_for(lambda: all(k in self._arrived for k in keys), left)
            return {k: self._arrived.pop(k) for k in keys if k in self._arrived}


def dial(address: str, port: int, secret: bytes, hello: dict[str, Any], deadline: float) -> socket.socket:
    """Connect to another server, as long as it takes until `deadline`."""
    pause, last = 0.02, "no attempt"
    while time.monotonic() < deadline:
        sock = None
        try:
            sock = socket.create_connection((address, port), timeout=10)
            handshake.connect(sock, secret, "server", hello)
            sock.settimeout(max(1.0, deadline - time.monotonic()))
            answer = handshake.receive_json(sock)
            if "error" in answer:
                raise CollectiveError(f"{address}:{port} refused: {answer['error']}")
            sock.settimeout(None)
            return sock
        except (OSError, handshake.HandshakeError) as exc:
            last = str(exc)
            if sock is not None:
                sock.close()
        time.sleep(pause)
        pause = min(1.0, pause * 1.5)
    raise CollectiveError(f"no connection to the server at {address}:{port}: {last}")


def tune(sock: socket.socket) -> None:
    """No delay for small messages, and a vanished host is noticed within about 15 s."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 15000)
