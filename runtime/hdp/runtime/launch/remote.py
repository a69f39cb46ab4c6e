"""mpirun's remote start without ssh: the agents start each other's daemons, over the line that they have anyway.

On the host of mpirun, `Requests` listens on a Unix socket in the agent's own folder (0700). mpirun runs `rsh.py` there
in place of ssh; what that asks for goes to the agent of the host in question, as a message between agents who have all
proved that they know the job's secret, and the exit code comes back the same way. On that host, `Daemons` starts what
`read_command` lets through: the daemon of the MPI that is installed there, with its options, and nothing else. No shell
is involved.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hdp.contract.errors import LaunchError
from hdp.runtime.launch import linux
from hdp.runtime.launch.local import Listener
from hdp.runtime.launch.pipes import Pipe
from hdp.runtime.launch.reactor import Reactor

log = logging.getLogger(__name__)

#: What an MPI starts on another host.
DAEMONS = frozenset({"prted", "orted", "hydra_pmi_proxy"})
#: What its command line may set before that.
_ASSIGNED = frozenset({"PRTE_PREFIX", "PMIX_PREFIX", "OPAL_PREFIX", "PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"})
_ASSIGNMENT = re.compile(r"([A-Z_]+)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:([A-Z_]+)\b|\{([A-Z_]+)(?::-)?\})")
#: What Open MPI puts around the line for a user whose login shell is a plain ``sh``, which reads no profile by itself.
_PROFILE = re.compile(r"\( test ! -r \./\.profile \|\| \. \./\.profile;(.*?)\s*\)\s*", re.DOTALL)
#: They would mean something to a shell. There is none here, so whoever sends them expects something else.
_SHELL = re.compile(r"[`|&<>(){}*?\[\]~#!\n\\]|\$\(")

Start = Callable[[str, int, str], None]
"""Host's name, number of the request, command line."""


class Requests:
    """What mpirun's rsh agents ask for, on mpirun's own host."""

    def __init__(self, reactor: Reactor, path: Path, names: Mapping[str, str], start: Start) -> None:
        """names: address or name by which mpirun knows a host -> its name in the job. start: called in the loop."""
        self._names = names
        self._start = start
        self._waiting: dict[int, socket.socket] = {}
        self._asked_for = 0
        self._listener = Listener(reactor, path, self._asked)

    def _asked(self, connection: socket.socket, message: Mapping[str, Any], fds: Sequence[int]) -> None:
        for fd in fds:
            os.close(fd)
        self._asked_for += 1
        number = self._asked_for
        self._waiting[number] = connection
        host = self._names.get(str(message.get("host")))
        if host is None:
            self.answer(number, 1, f"{message.get('host')!r} isn't a host of this job")
        else:
            self._start(host, number, str(message.get("command")))

    @property
    def waiting(self) -> bool:
        """Whether something that was asked for hasn't ended."""
        return bool(self._waiting)

    def answer(self, number: int, code: int, error: str) -> None:
        """The command of the request has ended."""
        if connection := self._waiting.pop(number, None):
            self._listener.send(connection, {"code": code, "error": error})
            self._listener.drop(connection)

    def close(self) -> None:
        """Take no more requests."""
        self._listener.close()


class Daemons:
    """The MPI daemons on this host."""

    def __init__(
        self, reactor: Reactor, children: linux.Children, folder: Path, ended: Callable[[int, int, str], None]
    ) -> None:
        """folder: where this host's MPI has its programs. ended: the request's number, return code, what went wrong."""
        self._reactor = reactor
        self._children = children
        self._folder = folder
        self._ended = ended
        self._pipes: list[Pipe] = []
        self.running = 0
        """How many there are now."""

    def start(self, number: int, command: str, environ: Mapping[str, str], cwd: Path) -> None:
        """Start what `command` asks for, or say why not."""
        try:
            argv, assigned = read_command(command, self._folder, environ)
            process = self._children.spawn_tethered(
                argv, {**environ, **assigned}, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        except (LaunchError, OSError) as exc:
            log.warning("%s", exc)
            self._ended(number, 1, str(exc))
            return
        log.debug("started %s", argv[0])
        assert process.stdout is not None
        self.running += 1
        self._pipes.append(Pipe(self._reactor, os.dup(process.stdout.fileno()), lambda text: log.info("MPI: %s", text)))
        process.stdout.close()
        pidfd = os.pidfd_open(process.pid)
        self._reactor.watch(pidfd, lambda: self._on_exit(number, process, pidfd))

    def close(self) -> None:
        """Give out what is left in their pipes."""
        for pipe in self._pipes:
            pipe.close()

    def _on_exit(self, number: int, process: subprocess.Popen[bytes], pidfd: int) -> None:
        self._reactor.forget(pidfd)
        os.close(pidfd)
        self.running -= 1
        self._ended(number, self._children.wait(process), "")


def read_command(command: str, folder: Path, environ: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """The argument vector in mpirun's shell line, and the variables that it sets.

    Such as ``PRTE_PREFIX=/p;export PRTE_PREFIX;/p/bin/prted --prtemca ess "env" ...``: assignments of the variables
    that MPI needs to find itself, exports of them, and a daemon that is installed in `folder`. Raises LaunchError for
    anything else.
    """
    assigned: dict[str, str] = {}
    wrapped = _PROFILE.fullmatch(command)
    *before, last = _statements(wrapped[1] if wrapped else command)
    for words in before:
        _take(words, assigned, environ, command)
    program = Path(last[0]) if last else Path()
    if program.name not in DAEMONS or not _same_folder(program.parent, folder):
        raise _refusal(command, f"only {', '.join(sorted(DAEMONS))} of {folder} may be started")
    return [str(program), *last[1:]], assigned


def _statements(command: str) -> list[list[str]]:
    lexer = shlex.shlex(command, posix=True, punctuation_chars=";")
    lexer.whitespace_split, lexer.commenters = True, ""
    if _SHELL.search(_unquoted(command)):
        raise _refusal(command, "it has words that only a shell understands")
    try:
        words = list(lexer)
    except ValueError as exc:
        raise _refusal(command, str(exc)) from exc
    statements: list[list[str]] = [[]]
    for word in words:
        if word and not word.strip(";"):
            statements.append([])
        else:
            statements[-1].append(word)
    return [s for i, s in enumerate(statements) if s or i == len(statements) - 1]


def _unquoted(command: str) -> str:
    """`command` without what stands in double quotes, in which MPI puts values of its own, and without variables."""
    return _VARIABLE.sub("", re.sub(r'"[^"`$\\]*"', "", command))


def _take(words: Sequence[str], assigned: dict[str, str], environ: Mapping[str, str], command: str) -> None:
    """One statement before the daemon: an assignment or an export."""
    if len(words) == 2 and words[0] == "export" and words[1] in _ASSIGNED:
        return
    found = _ASSIGNMENT.fullmatch(words[0]) if len(words) == 1 else None
    if found is None or found[1] not in _ASSIGNED:
        raise _refusal(command, f"{' '.join(words)[:80]!r} is neither the program nor a variable that MPI sets")
    known = {**environ, **assigned}
    value = _VARIABLE.sub(lambda match: known.get(match[1] or match[2], ""), found[2])
    assigned[found[1]] = value.strip(":") if found[1] != "PATH" else value


def _same_folder(one: Path, other: Path) -> bool:
    return one.is_absolute() and os.path.realpath(one) == os.path.realpath(other)


def _refusal(command: str, why: str) -> LaunchError:
    return LaunchError(f"this host doesn't start {command[:200]!r} for mpirun: {why}")
