"""One peer, alive: its processes, the connections to its ranks, and what they are asked.

Ranks connect to a Unix socket of the coordinator, which crosses network namespaces and costs nothing on the emulated
links. A process is held by a pidfd from the moment it connects, also where mpirun started it.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import barrier
import launch
from peers import Peer
from processes import cpu_seconds

_HERE = Path(__file__).parent
_START_LIMIT = 90.0  # seconds for all ranks to import their framework and to join, on two busy cores


class PeerFailed(Exception):
    """The peer can't go on; its processes are to be ended."""


@dataclass
class _Connection:
    socket: socket.socket
    pid: int
    pidfd: int
    pending: bytes = b""
    answers: list[dict[str, Any]] = field(default_factory=list)


class Session:
    """The ranks of one peer. Once `ready` has returned they answer `ask`; leaving the ``with`` block ends them."""

    def __init__(self, peer: Peer, network: launch.Hosts, per_host: int, base_file: Path, wire: str = "") -> None:
        self.peer, self.network = peer, network
        self.size = per_host * len(network.hosts)
        self.versions: dict[str, str] = {}
        self._connections: list[_Connection] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._folder = base_file.parent / peer.name
        self._selector = selectors.DefaultSelector()
        self._folder.mkdir()
        control, meeting = self._folder / "control", self._folder / "barrier"
        barrier.make(meeting, self.size)
        self._listener.bind(str(control))
        self._listener.listen(self.size)
        arguments = [peer.module, str(control), str(meeting), str(base_file), wire if peer.name == "hdp" else ""]
        self.job: launch.Job | None = None
        with self._failures():
            self.job = peer.start(network, per_host, [str(peer.python), str(_HERE / "rank.py"), *arguments], {})

    def ready(self) -> Session:
        """Wait until the ranks have joined. Raises PeerFailed: they can't, or take too long."""
        with self._failures():
            self._accept(time.monotonic() + _START_LIMIT)
        return self

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except (launch.RanksFailed, ConnectionError, ProcessLookupError) as exc:
            text = str(exc) if isinstance(exc, launch.RanksFailed) else f"a rank has ended: {self._why()}"
            self.close()
            raise PeerFailed(text) from exc
        except BaseException:
            self.close()
            raise

    def _accept(self, deadline: float) -> None:
        self._listener.settimeout(0.2)
        while len(self._connections) < self.size:
            self._check(deadline, f"{self.size - len(self._connections)} of {self.size} ranks did not start")
            with contextlib.suppress(TimeoutError):
                sock, _ = self._listener.accept()
                pid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
                one = _Connection(sock, pid, os.pidfd_open(pid))
                self._connections.append(one)
                self._selector.register(sock, selectors.EVENT_READ, one)
        hellos = self._collect(deadline, "did not join")
        if sorted(h["rank"] for h in hellos) != list(range(self.size)):
            raise PeerFailed(f"the ranks say that they are {[h['rank'] for h in hellos]} of {hellos[0]['size']}")
        self.versions = hellos[0]["versions"]

    def ask(self, what: str, limit: float, **more: Any) -> list[dict[str, Any]]:
        """Every rank's answer to a request. Raises PeerFailed: one failed, or there was none within `limit` seconds."""
        line = json.dumps({"do": what, **more}).encode() + b"\n"
        for one in self._connections:
            try:
                one.socket.sendall(line)
            except OSError as exc:
                raise PeerFailed(f"a rank has ended: {self._why()}") from exc
        return self._collect(time.monotonic() + limit, f"gave no answer to {what} within {limit:.0f} s")

    def _collect(self, deadline: float, late: str) -> list[dict[str, Any]]:
        while any(not one.answers for one in self._connections):
            waiting = sum(not one.answers for one in self._connections)
            self._check(deadline, f"{waiting} of {self.size} ranks {late}")
            for key, _ in self._selector.select(0.2):
                self._receive(key.data)
        answers = [one.answers.pop(0) for one in self._connections]
        for answer in answers:
            if "error" in answer:
                raise PeerFailed(answer["error"].strip())
        return answers

    def _receive(self, one: _Connection) -> None:
        try:
            data = one.socket.recv(1 << 20)
        except ConnectionError:  # it ended with something unread
            data = b""
        if not data:
            raise PeerFailed(f"a rank has ended: {self._why()}")
        *lines, one.pending = (one.pending + data).split(b"\n")
        one.answers += [json.loads(line) for line in lines]
        for answer in one.answers:
            if "error" in answer:  # the others may wait for this one for ever
                raise PeerFailed(answer["error"].strip())

    def _check(self, deadline: float, late: str) -> None:
        if text := self.job and self.job.failure():
            raise PeerFailed(text)
        if time.monotonic() > deadline:
            raise PeerFailed(late)

    def _why(self) -> str:
        time.sleep(0.2)  # its exit code and its last words may still be on the way
        return (self.job and self.job.failure()) or "without a word"

    def pause(self) -> None:
        """Stop the ranks of a peer that does something while it has nothing to do."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let the ranks go on."""
        if not self.peer.rests:
            self._signal(signal.SIGCONT)
            time.sleep(0.1)  # for what was due meanwhile

    def _signal(self, number: int) -> None:
        if not self.peer.rests:
            for one in self._connections:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(one.pidfd, number)

    def server_seconds(self) -> float:
        """Processor time that processes beside the ranks have used, but for mpirun and its daemons.

        Raises PeerFailed: one has ended.
        """
        try:
            return sum(cpu_seconds(s.process.pid) for s in self.job.servers) if self.job else 0.0
        except OSError as exc:
            raise PeerFailed(f"a server has ended: {self._why()}") from exc

    def close(self) -> None:
        """End everything, the ranks that are out of reach of the launcher too."""
        self._signal(signal.SIGCONT)
        if self.job:
            self.job.stop()
        for one in self._connections:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(one.pidfd, signal.SIGKILL)
            os.close(one.pidfd)
            one.socket.close()
        self._connections = []
        self._selector.close()
        self._listener.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.resume()
            with contextlib.suppress(PeerFailed):
                self.ask("leave", 5.0)
        self.close()
