"""One host's part of a job under mpirun.

::

    first host   agent ── starts ──> mpirun ── runs in place of ssh ──> rsh.py ──> Requests
                                                                                      │ message "start"
    every host   agent (Daemons) <────────── by the coordinator ─────────────────────┘
                   └─ MPI's daemon ── starts ──> shepherd.py, one a rank ── "give me my rank" ──> agent (Shepherds)
                   └─ rank, with the environment that its shepherd was given

So a rank is its agent's child here too, and mpirun sees only shepherds. A shepherd ends with 0 when its rank does. A
rank that fails is not told to mpirun, which would kill the others at once and bury the reason under its own: the agents
end the job as they do under every launcher, and mpirun last.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hdp.contract import env, mpi
from hdp.contract.errors import LaunchError
from hdp.contract.mpirun import find
from hdp.contract.redact import redact_argv, redact_mpi_options
from hdp.runtime.launch import linux
from hdp.runtime.launch.failure import signal_name
from hdp.runtime.launch.local import Listener
from hdp.runtime.launch.mpirun import Mpirun
from hdp.runtime.launch.position import Position, World
from hdp.runtime.launch.ranks import RankPlan
from hdp.runtime.launch.reactor import Reactor
from hdp.runtime.launch.remote import Daemons, Requests
from hdp.runtime.launch.supervisor import Supervisor
from hdp.runtime.launch.wire import Message

log = logging.getLogger(__name__)

#: Messages between agents that are for `MpiHost.hear`.
MESSAGES = frozenset({"start", "exit", "launcher_ended"})
#: From mpirun's end to that of its daemons.
_END_SECONDS = 2.0
#: From the answer to the end of what stands in for ssh.
_ANSWERED_SECONDS = 0.05
_SHEPHERD = str(Path(__file__).with_name("shepherd.py"))
_RSH = str(Path(__file__).with_name("rsh.py"))
_RANK = (("OMPI_COMM_WORLD_RANK", "PMI_RANK"), ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"))
_SIZE = (("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"))
#: What a shepherd's environment doesn't say about its rank: each host's agent knows it better than mpirun does.
_AGENTS = ("SM_", "HDP_", "SAGEMAKER_")
#: Lists of folders: the user's go before ours.
_SEARCHED = frozenset({"PYTHONPATH", "LD_LIBRARY_PATH"})
#: mpirun hands paths to shells, real and pretended, without quotes.
_PLAIN = re.compile(r"[\w./+,:@%=-]+", re.ASCII)
_AGENTS_NAMES = frozenset({"TMPDIR", "PWD", "OLDPWD", "_", "SHLVL"})


@dataclass(frozen=True)
class Wanted:
    """A rank that mpirun wants on this host."""

    position: Position
    environ: Mapping[str, str]
    """What MPI has to tell the rank: to be added to what the agent gives it."""
    cpus: frozenset[int]
    """Processors to which mpirun has bound it."""
    channel: int | None
    """Descriptor of MPICH's channel between rank and launcher, whose number is in `environ`."""


class Shepherds:
    """The shepherds on this host, by their connections."""

    def __init__(
        self, reactor: Reactor, path: Path, supervisor: Supervisor, plan: Callable[[Wanted], RankPlan]
    ) -> None:
        """plan: how to start the rank that a shepherd wants."""
        self.environ: Mapping[str, str] = {}
        """What MPI's daemon was started with."""
        self.refusing = False
        self._supervisor = supervisor
        self._plan = plan
        self._rank_of: dict[socket.socket, int] = {}
        self._listener = Listener(reactor, path, self._heard)

    def close(self) -> None:
        """Leave the shepherds to mpirun's end."""
        self._listener.close()

    def _heard(self, connection: socket.socket, message: Mapping[str, Any], fds: Sequence[int]) -> None:
        if connection in self._rank_of:
            self._supervisor.abort(self._rank_of[connection], int(message.get("abort", 1)))
            return
        try:
            if not self.refusing:
                wanted = read_wanted(message, fds, self.environ)
                self._rank_of[connection] = wanted.position.rank
                self._supervisor.start([self._plan(wanted)], lambda code: self._ended(connection, code))
        finally:
            for fd in fds:
                os.close(fd)

    def _ended(self, connection: socket.socket, code: int) -> None:
        """Let the shepherd end, where that tells mpirun nothing but that the rank is through."""
        if code == 0:
            self._listener.send(connection, {"code": 0})
            self._listener.drop(connection)


@dataclass(frozen=True)
class Terms:
    """What `MpiHost` needs to know of its host and job."""

    world: World
    node: int
    folder: Path
    """The agent's own, 0700."""
    cwd: Path
    interface: str
    custom_options: str
    path: str
    """Where to look for MPI, folders as in PATH."""


class MpiHost:
    """This host's shepherds and daemons, and on the first host mpirun."""

    def __init__(
        self,
        reactor: Reactor,
        children: linux.Children,
        supervisor: Supervisor,
        terms: Terms,
        *,
        plan: Callable[[Wanted], RankPlan],
        send: Callable[[Message], None],
        lost: Callable[[str], None],
    ) -> None:
        """plan: how to start a rank. send: to the coordinator. lost: one of MPI's own processes was killed.

        Raises LaunchError: there is no MPI here, or the user's options can't be used.
        """
        self._reactor = reactor
        self._terms = terms
        self._send = send
        self._installed = find(terms.path)
        self._check_places()
        self.variables = self._variables()
        """What the user's options set in every rank's environment."""
        self.environ: Mapping[str, str] = {}
        self._shepherds = Shepherds(reactor, terms.folder / "ranks", supervisor, plan)
        self._daemons = Daemons(reactor, children, self._installed.mpirun.parent, self._daemon_ended)
        names = {name: host.name for host in terms.world.hosts for name in (host.address, host.name)}
        self._requests = Requests(reactor, terms.folder / "rsh", names, self._request)
        self._mpirun = Mpirun(reactor, children, self._mpirun_ended)
        self._lost = lost
        self.over: int | None = None
        """mpirun's return code, once it has ended."""
        self.said = ""
        """The last lines of mpirun, where it ran here."""

    def ready(self, environ: Mapping[str, str]) -> None:
        """Serve. environ: what every rank of this host has; `self.environ` has what MPI and the user add, too."""
        added = {env.MPI_SOCKET.name: str(self._terms.folder / "ranks"), **self.variables}
        # What the user's folders lack is looked for in those that are needed to run at all.
        for name in _SEARCHED & added.keys():
            added[name] = os.pathsep.join([added[name], *filter(None, [environ.get(name)])])
        if libraries := self._installed.libraries:
            theirs = added.get("LD_LIBRARY_PATH") or environ.get("LD_LIBRARY_PATH")
            added["LD_LIBRARY_PATH"] = os.pathsep.join([*filter(None, [theirs]), str(libraries)])
        self.environ = {**environ, **added}
        self._shepherds.environ = self.environ

    def of_rank(self, wanted: Wanted) -> dict[str, str]:
        """The environment of a rank, without its place.

        mpirun gives every rank the first host's OMPI_* variables, so what differs by host comes last.
        """
        environ = {**self.environ, **wanted.environ}
        if temporary := self.environ.get("TMPDIR"):  # goes with the job; what a killed rank has in /dev/shm may not
            backing = "sm" if self._installed.major >= 5 else "vader"
            environ.setdefault(f"OMPI_MCA_btl_{backing}_backing_directory", temporary)
        return environ

    def start(self) -> None:
        """On the first host: run mpirun. Raises LaunchError."""
        if not self.first:
            return
        argv = self._command()
        log.info("starting %s %s: %s", self._installed.flavour, self._installed.version, shlex.join(redact_argv(argv)))
        self._mpirun.start(argv, self.environ, self._terms.cwd)

    def hear(self, message: Message) -> None:
        """Handle a message from another agent."""
        if message["type"] == "start":
            self._daemons.start(int(message["id"]), str(message["command"]), self.environ, self._terms.cwd)
        elif message["type"] == "exit":
            self._requests.answer(int(message["id"]), int(message["code"]), str(message["error"]))
        else:
            self.over = int(message["code"])

    @property
    def first(self) -> bool:
        """Whether mpirun runs on this host."""
        return self._terms.node == 0

    def refuse(self) -> None:
        """Start no more ranks: the job is ending. Those that run need their shepherds until they end."""
        self._shepherds.refusing = True
        self._mpirun.level = logging.DEBUG

    def close(self) -> None:
        """Take no more requests; what runs is the agent's to kill, but what is ending by itself gets a moment."""
        if self.over == 0:
            self._reactor.run_until(lambda: not (self._daemons.running or self._requests.waiting), _END_SECONDS)
            self._reactor.run_until(lambda: False, _ANSWERED_SECONDS)
        self._shepherds.close()
        self._requests.close()
        self._daemons.close()
        self._mpirun.close()

    def _command(self) -> list[str]:
        agent = self._terms.folder / "agent"
        words = [sys.executable, "-I", "-S", _RSH, str(self._terms.folder / "rsh")]
        agent.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
        agent.chmod(0o700)
        places = [mpi.Place(host.address, host.local_size) for host in self._terms.world.hosts]
        return mpi.command(
            self._installed.flavour, str(self._installed.mpirun), places, str(agent), self._terms.custom_options,
            [sys.executable, "-I", "-S", _SHEPHERD], interface=self._terms.interface, major=self._installed.major,
        )  # fmt: skip

    def _check_places(self) -> None:
        for what, path in (("TMPDIR", self._terms.folder), ("the place of mpirun", self._installed.mpirun)):
            if not _PLAIN.fullmatch(str(path)):
                raise LaunchError(
                    f"mpirun can't do with {str(path)!r}, which has characters that mean something to a shell; choose "
                    f"another place for {what}, of letters, digits and ./+,:@%=-_"
                )

    def _variables(self) -> dict[str, str]:
        options = self._terms.custom_options
        try:
            parsed = mpi.parse(options, self._installed.flavour)
            if wrong := mpi.refused(parsed):
                raise ValueError("; ".join(wrong))
        except ValueError as exc:
            raise LaunchError(f"custom_mpi_options={redact_mpi_options(options)!r} can't be used: {exc}") from exc
        return mpi.variables(parsed)

    def _request(self, host: str, number: int, command: str) -> None:
        self._send({"type": "start", "to": host, "id": number, "command": command})

    def _daemon_ended(self, number: int, code: int, error: str) -> None:
        if error:
            self._lost(error)
        elif code < 0:
            self._lost(f"MPI's daemon was killed by {signal_name(-code)}")
        code = code if code >= 0 else 128 - code
        self._send({"type": "exit", "id": number, "code": code, "error": error})

    def _mpirun_ended(self, code: int) -> None:
        self.said = self._mpirun.said
        if code < 0:
            self._lost(f"mpirun was killed by {signal_name(-code)}")
        self._send({"type": "launcher_ended", "code": code})


def read_wanted(message: Mapping[str, Any], fds: Sequence[int], common: Mapping[str, str]) -> Wanted:
    """What a shepherd asks for. common: the environment that MPI's daemon was started with. Raises LaunchError."""
    if not fds:
        raise LaunchError("a shepherd sent no environment")
    theirs = _read_environ(fds[0])
    added = {
        k: v for k, v in theirs.items() if common.get(k) != v and not k.startswith(_AGENTS) and k not in _AGENTS_NAMES
    }
    channel = fds[1] if len(fds) > 1 else None
    if channel is not None:
        added["PMI_FD"] = str(channel)
    (rank, local_rank), (size, local_size) = _numbers(theirs, _RANK), _numbers(theirs, _SIZE)
    position = Position(rank=rank, local_rank=local_rank, size=size, local_size=local_size)
    return Wanted(position, added, frozenset(message.get("cpus", ())), channel)


def _read_environ(fd: int) -> dict[str, str]:
    with os.fdopen(os.dup(fd), "rb") as file:
        file.seek(0)
        pairs = (entry.partition(b"=") for entry in file.read().split(b"\0") if entry)
        return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def _numbers(environ: Mapping[str, str], names: Sequence[Sequence[str]]) -> list[int]:
    found = []
    for choice in names:
        text = next((environ[name] for name in choice if name in environ), None)
        if text is None or not text.isdigit():
            raise LaunchError(f"mpirun gave a rank none of {', '.join(choice)}; is it Open MPI's or MPICH's?")
        found.append(int(text))
    return found
