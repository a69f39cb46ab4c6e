"""Who is at the other end of a connection over loopback.

Whoever may call the API runs code as the user who serves it, and loopback is open to everybody on this machine. The
kernel's table of sockets says whose each one is, as long as it is open: one that was closed, with what it sent still
on its way, has no inode any more and is listed as root's, whoever's it was.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

_TABLE = Path("/proc/net/tcp")


def is_welcome(ours: tuple[str, int], theirs: tuple[str, int], table: Path = _TABLE) -> bool:
    """Whether the socket at `theirs`, connected to `ours`, is open and belongs to this user or to root.

    Where there is no such table (it is Linux's), everybody is.
    """
    if not table.exists():
        return True
    return _owner(ours, theirs, table) in (os.geteuid(), 0)


def _owner(ours: tuple[str, int], theirs: tuple[str, int], table: Path) -> int | None:
    wanted = (_as_in_table(theirs), _as_in_table(ours))
    return next((uid for local, remote, uid in _rows(table) if (local, remote) == wanted), None)


def _rows(table: Path) -> Iterator[tuple[str, str, int]]:
    """Local address, remote address and owner of each socket that a process has."""
    for line in table.read_text().splitlines()[1:]:
        fields = line.split()
        if fields[9] != "0":
            yield fields[1], fields[2], int(fields[7])


def _as_in_table(address: tuple[str, int]) -> str:
    """``0100007F:1F90`` for 127.0.0.1, port 8080: the address in the machine's byte order."""
    (number,) = struct.unpack("=I", socket.inet_aton(address[0]))
    return f"{number:08X}:{address[1]:04X}"
