"""Servers that no launcher started: by a process that has one for itself, or by an adapter's own bootstrap."""

from __future__ import annotations

import json
import secrets
import shutil
import socket
import subprocess
import sys
from typing import Any

from hdp.collectives.communicator import Communicator, join
from hdp.contract.errors import CollectiveError
from hdp.contract.files import new_run_folder


def spawn_server(config: dict[str, Any], listener: socket.socket | None = None) -> None:
    """Start a server with `config` (see `hdp.collectives.server`), which ends with its last rank.

    listener: where the other servers meet it; taken over. Raises CollectiveError, OSError.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "hdp.collectives.server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[listener.fileno()] if listener else [],
        start_new_session=True,  # it ends with its last rank, not with a terminal's Ctrl-C
    )
    assert process.stdin is not None and process.stdout is not None
    with process.stdin, process.stdout:
        process.stdin.write(json.dumps(config).encode())
        process.stdin.close()
        answer = process.stdout.readline()
    if listener:
        listener.close()
    if answer != b"listening\n":
        raise CollectiveError(f"it ended with exit code {process.wait()}; its message is on stderr")
    _servers.append(process)


#: Server processes of this process, so that they are reaped and never warned about.
_servers: list[subprocess.Popen[bytes]] = []


def alone(timeout: float = 60.0) -> Communicator:
    """A world of this process alone, for scripts that run without a launcher. Raises CollectiveError."""
    folder = new_run_folder()
    folder.mkdir(mode=0o700)
    try:
        secret_file = folder / "secret"
        secret_file.touch(mode=0o600)
        secret_file.write_text(secrets.token_hex(32))
        host = {"name": socket.gethostname(), "address": "127.0.0.1", "port": 0, "local_size": 1}
        config = {
            "host_index": 0,
            "hosts": [host],
            "socket": str(folder / "s"),
            "secret_file": str(secret_file),
            "start_timeout_seconds": timeout,
            "once": True,
        }
        spawn_server(config)
        return join(str(folder / "s"), secret_file, 0, 0, timeout)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
