"""A Unix socket of the agent's, for processes on its own host that run as the same user: one JSON object a packet."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hdp.contract.errors import LaunchError
from hdp.runtime.launch.reactor import Reactor

log = logging.getLogger(__name__)

#: sun_path holds 108 bytes, with its final zero.
PATH_BYTES = 107
_PACKET_BYTES = 1 << 16
_MAX_FDS = 4
_CREDENTIALS = struct.Struct("3i")

Heard = Callable[[socket.socket, Mapping[str, Any], Sequence[int]], None]
"""The connection, the message, descriptors that came with it, which are then the callee's."""


class Listener:
    """Listens at `path` and calls back, in the loop, for each message."""

    def __init__(self, reactor: Reactor, path: Path, heard: Heard) -> None:
        """Raises LaunchError."""
        self._reactor = reactor
        self._heard = heard
        self._connections: set[socket.socket] = set()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if len(os.fsencode(path)) > PATH_BYTES:
            raise LaunchError(f"the socket path {path} is longer than {PATH_BYTES} bytes; set a shorter TMPDIR")
        self._socket.bind(str(path))
        self._socket.listen(512)
        self._socket.setblocking(False)
        reactor.watch(self._socket.fileno(), self._accept)

    @staticmethod
    def send(connection: socket.socket, message: Mapping[str, Any]) -> None:
        """Send `message`, if the other side is still there."""
        with contextlib.suppress(OSError):
            connection.send(json.dumps(message).encode())

    def drop(self, connection: socket.socket) -> None:
        """Hang up."""
        if connection in self._connections:
            self._connections.remove(connection)
            self._reactor.forget(connection.fileno())
            connection.close()

    def close(self) -> None:
        """Hang up on all, and take no more."""
        for connection in list(self._connections):
            self.drop(connection)
        if self._socket.fileno() >= 0:
            self._reactor.forget(self._socket.fileno())
            self._socket.close()

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            connection, _ = self._socket.accept()
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            if _CREDENTIALS.unpack(credentials)[1] != os.geteuid():
                connection.close()
                return
            connection.setblocking(False)
            self._connections.add(connection)
            self._reactor.watch(connection.fileno(), lambda: self._readable(connection))

    def _readable(self, connection: socket.socket) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(connection, _PACKET_BYTES, _MAX_FDS)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        if data:
            self._interpret(connection, data, fds)
            return
        self.drop(connection)

    def _interpret(self, connection: socket.socket, data: bytes, fds: Sequence[int]) -> None:
        try:
            message = json.loads(data)
            if not isinstance(message, dict):
                raise ValueError("not an object")
        except ValueError as exc:
            log.warning("a message on a socket of this host can't be read: %s", exc)
            for fd in fds:
                os.close(fd)
            self.drop(connection)
            return
        self._heard(connection, message, fds)
