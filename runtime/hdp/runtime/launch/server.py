"""The host's reduction server as a child process of the agent: start, readiness, end.

The server gets one JSON object on its stdin and answers "listening" on its stdout once ranks may connect. It ends on
SIGTERM, and only then; any other end is a failure of this host.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass

from hdp.contract.errors import LaunchError
from hdp.runtime.launch import linux
from hdp.runtime.launch.failure import split_status
from hdp.runtime.launch.pipes import Pipe
from hdp.runtime.launch.position import HostInfo
from hdp.runtime.launch.reactor import Reactor

log = logging.getLogger(__name__)

SERVER_MODULE = "hdp.collectives.server"
_STDERR_TAIL_LINES = 10
#: From SIGTERM to SIGKILL. The server has nothing to save.
_END_SECONDS = 2.0
#: sun_path holds 108 bytes, with its final zero.
_SOCKET_PATH_BYTES = 107


@dataclass(frozen=True)
class ServerSettings:
    """What the server is told on its stdin, as JSON."""

    host_index: int
    hosts: tuple[HostInfo, ...]
    port: int
    socket: str
    secret_file: str
    start_timeout_seconds: float
    output_dir: str = ""
    """What becomes the job's output."""


class Server:
    """One reduction server."""

    def __init__(self, reactor: Reactor, children: linux.Children, on_lost: Callable[[LaunchError], None]) -> None:
        """on_lost: called, in the loop, when the server ends without having been asked to."""
        self._reactor = reactor
        self._children = children
        self._on_lost = on_lost
        self._process: subprocess.Popen[bytes] | None = None
        self._pipes: list[Pipe] = []
        self._stderr: deque[str] = deque(maxlen=_STDERR_TAIL_LINES)
        self._ended = False
        self._ending = False
        self.listening = False

    def start(self, settings: ServerSettings, module: str = SERVER_MODULE) -> None:
        """Start the server. Ranks may connect once `listening` is true. Raises LaunchError if it can't be started."""
        if len(os.fsencode(settings.socket)) > _SOCKET_PATH_BYTES:
            raise LaunchError(
                f"the socket path {settings.socket} is longer than {_SOCKET_PATH_BYTES} bytes; set a shorter TMPDIR"
            )
        process = self._children.spawn_tethered(
            [sys.executable, "-m", module], os.environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        self._process = process
        self._watch(process)
        assert process.stdin is not None
        try:
            with process.stdin as stdin:
                stdin.write(json.dumps(asdict(settings)).encode())
        except BrokenPipeError:
            return  # it has ended already; its pidfd tells

    def end(self) -> None:
        """SIGTERM, then, if need be, SIGKILL. Nothing if it isn't running."""
        self._ending = True
        if self._process is None:
            return
        if not self._ended:
            linux.send_signal(self._process.pid, signal.SIGTERM)
            if not self._reactor.run_until(lambda: self._ended, _END_SECONDS):
                log.warning("the reduction server did not end within %g s of SIGTERM; it is killed", _END_SECONDS)
                linux.kill_group(self._process.pid)
                self._reactor.run_until(lambda: self._ended, 1.0)
        for pipe in self._pipes:
            pipe.close()

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        out_fd, err_fd = os.dup(process.stdout.fileno()), os.dup(process.stderr.fileno())
        process.stdout.close()
        process.stderr.close()
        self._pipes = [Pipe(self._reactor, out_fd, self._on_stdout), Pipe(self._reactor, err_fd, self._on_stderr)]
        pidfd = os.pidfd_open(process.pid)
        self._reactor.watch(pidfd, lambda: self._on_exit(process, pidfd))

    def _on_stdout(self, text: str) -> None:
        if text.strip() == "listening":
            self.listening = True
        else:
            log.info("server: %s", text)

    def _on_stderr(self, text: str) -> None:
        self._stderr.append(text)
        log.info("server: %s", text)

    def _on_exit(self, process: subprocess.Popen[bytes], pidfd: int) -> None:
        self._reactor.forget(pidfd)
        os.close(pidfd)
        returncode = self._children.wait(process)
        self._ended = True
        for pipe in self._pipes:
            pipe.drain()
        if not self._ending:
            code, by_signal = split_status(returncode)
            how = f"killed by {by_signal}" if by_signal else f"exit code {code}"
            last = "\n".join(self._stderr)
            self._on_lost(
                LaunchError(f"the reduction server of this host ended ({how})" + (f":\n{last}" if last else ""))
            )


def wait_listening(server: Server, reactor: Reactor, interrupted: Callable[[], bool], timeout: float) -> None:
    """Wait until ranks may connect, or `interrupted()`. Raises LaunchError when the time is up."""
    start = time.monotonic()
    if not reactor.run_until(lambda: server.listening or interrupted(), timeout):
        raise LaunchError(
            f"the reduction server of this host wasn't listening after {time.monotonic() - start:.0f} s; the servers "
            "wait for each other at start: are their ports (HDP_SERVER_PORT) open between the hosts?"
        )
