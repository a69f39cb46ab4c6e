"""How mpirun starts something on another emulated host: an rsh agent that asks the launcher to do it.

mpirun runs ``AGENT HOST COMMAND...`` on host 0. The agent (this file as a program) passes host, command and its own
standard streams through a Unix socket to the `Starter`, in the launcher's process, which can start processes on every
host; it then waits for the exit code.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


class Starter:
    """Starts what agents ask for. ``start(host address, command line, keywords of Popen)`` makes the process."""

    def __init__(self, folder: Path, start: Callable[..., subprocess.Popen[Any]]) -> None:
        self._start = start
        self._processes: list[subprocess.Popen[Any]] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(folder / "rsh"))
        self._listener.listen(64)
        self.agent = folder / "agent"
        """Path of the program that mpirun is to run in place of ssh."""
        self.agent.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" "{folder / "rsh"}" "$@"\n')
        self.agent.chmod(0o700)
        threading.Thread(target=self._serve, name="rsh", daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._run, args=(connection,), name="rsh", daemon=True).start()

    def _run(self, connection: socket.socket) -> None:
        with connection:
            message, fds, _, _ = socket.recv_fds(connection, 1 << 20, 3)
            try:
                asked = json.loads(message)
                streams: Mapping[str, int] = dict(zip(("stdin", "stdout", "stderr"), fds, strict=True))
                process = self._start(asked["host"], asked["command"], streams)
            except Exception as exc:
                self._answer(connection, 1, f"{asked['host']}: can't start {asked['command']!r}: {exc}")
                return
            finally:
                for fd in fds:
                    os.close(fd)
            self._processes.append(process)
            self._answer(connection, process.wait(), "")

    @staticmethod
    def _answer(connection: socket.socket, code: int, error: str) -> None:
        with contextlib.suppress(OSError):  # the agent is gone
            connection.send(json.dumps({"code": code, "error": error}).encode())

    def close(self) -> None:
        """Take no more, and kill what runs. May be called twice."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for process in self._processes:
            if process.returncode is None:
                process.kill()
                process.wait()


def main(path: str, *arguments: str) -> int:
    """Ask the launcher, and end as the command does. Options of ssh before the host are passed over."""
    host, *command = itertools.dropwhile(lambda word: word.startswith("-"), arguments)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as launcher:
        launcher.connect(path)
        message = json.dumps({"host": host, "command": " ".join(command)}).encode()
        socket.send_fds(launcher, [message], [0, 1, 2])
        answer = json.loads(launcher.recv(1 << 16) or '{"code": 1, "error": "the launcher has ended"}')
    if answer["error"]:
        print(answer["error"], file=sys.stderr)
    return int(answer["code"]) if answer["code"] >= 0 else 128 - int(answer["code"])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
