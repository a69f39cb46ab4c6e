"""A rank's end of `session`: it answers the coordinator's requests until it is told to leave."""

from __future__ import annotations

import json
import os
import queue
import socket
import threading
import traceback
from collections.abc import Callable
from typing import Any, Protocol

from processes import die_with_parent


class Served(Protocol):
    """Its methods are the requests: each takes the request's values and returns the answer's."""

    def hello(self) -> dict[str, Any]:
        """The first answer: rank, size and versions."""

    def close(self) -> None:
        """Leave the job."""


def serve(path: str, join: Callable[[], Served]) -> int:
    """Join, then answer what comes over the Unix socket at `path`. Returns the exit code."""
    die_with_parent()  # which may be mpirun; the coordinator itself is seen to end in `_read`
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(path)
        requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=_read, args=(connection, requests), daemon=True).start()
        try:
            served = join()
            _send(connection, served.hello())
            while (asked := requests.get())["do"] != "leave":
                _send(connection, getattr(served, asked["do"])(asked))
            served.close()
            _send(connection, {})
        except Exception:
            _send(connection, {"error": traceback.format_exc()})
            return 1
    return 0


def _send(connection: socket.socket, value: dict[str, Any]) -> None:
    connection.sendall(json.dumps(value).encode() + b"\n")


def _read(connection: socket.socket, requests: queue.SimpleQueue[dict[str, Any]]) -> None:
    with connection.makefile("rb") as lines:
        for line in lines:
            requests.put(json.loads(line))
    os._exit(1)  # the coordinator is gone, and this rank may be waiting for others in the middle of something
