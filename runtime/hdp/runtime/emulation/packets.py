"""What creator and keeper say to each other: a JSON object in each packet of a Unix socket, with descriptors."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from typing import Any

_MAX_BYTES = 1 << 16


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets that keep the bounds of packets."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(channel: socket.socket, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send a packet. Raises OSError where the other end is gone."""
    socket.send_fds(channel, [json.dumps(message).encode()], list(descriptors))


def receive(channel: socket.socket, max_descriptors: int = 0) -> tuple[dict[str, Any] | None, list[int]]:
    """The next packet and the descriptors that came with it; None where the other end is gone. Raises TimeoutError."""
    try:
        packet, descriptors, _, _ = socket.recv_fds(channel, _MAX_BYTES, max_descriptors)
    except ConnectionError:
        return None, []
    return json.loads(packet) if packet else None, descriptors
