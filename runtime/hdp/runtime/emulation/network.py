"""The creator's side of an emulated network: its hosts, the programs in them, and the counters of their links."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from hdp.contract import links
from hdp.contract.links import MAX_HOSTS
from hdp.contract.zipping import zip_strict
from hdp.runtime.emulation import inhabitants, packets
from hdp.runtime.emulation.errors import EmulationError

_START_SECONDS = 60.0
_END_SECONDS = 15.0
_KINDS = ("net", "uts", "mnt")
_REFUSED = {
    "shell": 'give ["sh", "-c", command]',
    "executable": "give the program as argv[0]",
    "preexec_fn": "it would run outside the host",
    "close_fds": "a host's programs get pass_fds and nothing else",
    "user": "the host has to be entered as the network's creator",
    "group": "the host has to be entered as the network's creator",
    "extra_groups": "the host has to be entered as the network's creator",
}
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Host:
    """One host of a network."""

    name: str
    """Its host name, which every host of the network resolves."""
    address: str
    """Its IPv4 address."""
    interface: str
    """Its link's name inside."""
    rate_bits_per_second: int | None
    """Of its link, in each direction; None: not shaped."""


@dataclass(frozen=True)
class Counters:
    """What went over a host's link since the network was made.

    Bytes are those of Ethernet frames as the host's stack handed them over: a packet that is offloaded (up to 64 KiB)
    counts one header, not one for each frame that it would be on a wire.
    """

    sent_bytes: int
    received_bytes: int
    sent_packets: int
    received_packets: int
    dropped_by_host: int
    """Packets that the bucket on the host's own side dropped: what it sent."""
    dropped_by_switch: int
    """Packets that the bucket of the switch's port dropped: what was sent to it."""

    @property
    def dropped(self) -> int:
        """Packets dropped on both sides."""
        return self.dropped_by_host + self.dropped_by_switch


class Network:
    """Hosts that see each other over links of a given rate, and nothing else. Close it, or use it in a ``with``.

    Its methods may be called from any thread.
    """

    def __init__(self, hosts: int, rate: str | None = None, rates: Mapping[int, str | None] | None = None) -> None:
        """Build the network; it is up when this returns.

        hosts: how many. rate: of every host's link, in each direction, as ``tc`` writes it: ``250mbit``, ``10gbit``;
        None: not shaped. rates: by a host's number, its own instead of `rate`.
        Raises ValueError for bad arguments, EmulationError where this machine can't do it.
        """
        bits = _rates(hosts, rate, rates or {})
        self.rate_bits_per_second = None if rate is None else links.parse_rate(rate)
        """Of hosts without a rate of their own."""
        if sys.platform != "linux":
            raise EmulationError(f"hosts are emulated by Linux's network namespaces; this is {sys.platform}")
        self._lock = threading.Lock()
        self._processes: list[subprocess.Popen[Any]] = []
        self._namespaces: list[dict[str, int]] = []
        self._outside: dict[str, int] = {}
        self._channel, theirs = packets.pair()
        self._channel.settimeout(_START_SECONDS)
        with theirs:
            self._keeper = _start_keeper(theirs)
        try:
            self.hosts = self._receive_hosts([f"algo-{number + 1}" for number in range(hosts)], bits)
        except BaseException:
            self.close()
            raise

    def popen(self, host: int, argv: Sequence[str | os.PathLike[str]], **options: Any) -> subprocess.Popen[Any]:
        """Start a program in a host, as `subprocess.Popen` does; it is a child of this process.

        It ends with this process at the latest, and so does all that it starts. options: those of Popen, but for a
        few that make no sense here, which are TypeErrors. Raises what Popen raises; EmulationError after `close`.
        """
        if not 0 <= host < len(self.hosts):
            raise IndexError(f"host {host} of a network of {len(self.hosts)}")
        for name in sorted(_REFUSED.keys() & options.keys()):
            raise TypeError(f"popen takes no {name}: {_REFUSED[name]}")
        words = [os.fspath(word) for word in argv]
        program = _find(words, options)
        with self._lock:
            if self._channel.fileno() < 0:
                raise EmulationError("the network is closed")
            joined = {**self._user, **self._namespaces[host]}
            options["pass_fds"] = (*options.get("pass_fds", ()), *joined.values())
            process = subprocess.Popen([*_entering(joined), program, *words], **options)
            self._processes = [*(p for p in self._processes if p.returncode is None), process]
        return process

    def counters(self, host: int) -> Counters:
        """What went over a host's link until now. Raises EmulationError once network or keeper are gone."""
        if not 0 <= host < len(self.hosts):
            raise IndexError(f"host {host} of a network of {len(self.hosts)}")
        with self._lock:
            if self._channel.fileno() < 0:
                raise EmulationError("the network is closed")
            try:
                packets.send(self._channel, {"counters": host})
            except OSError as exc:
                raise EmulationError(f"the network's keeper (process {self._keeper.pid}) has ended: {exc}") from exc
            answer, _ = self._receive(0)
        return Counters(
            sent_bytes=answer["host"]["sent_bytes"],
            received_bytes=answer["host"]["received_bytes"],
            sent_packets=answer["host"]["sent_packets"],
            received_packets=answer["host"]["received_packets"],
            dropped_by_host=answer["host"]["dropped"],
            dropped_by_switch=answer["switch"]["dropped"],
        )

    def close(self) -> None:
        """Kill whatever runs in the hosts, and free the network. May be called again."""
        with self._lock:
            if self._channel.fileno() < 0:
                return
            self._channel.close()
            try:
                self._keeper.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                self._keeper.kill()
                self._keeper.wait()
            # The keeper has done it, unless somebody killed the keeper.
            left = inhabitants.evict({inhabitants.identity(host["net"]) for host in self._namespaces})
            for held in (*self._namespaces, self._outside):
                for descriptor in held.values():
                    os.close(descriptor)
            for process in self._processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(1.0)
        if left:
            raise EmulationError(f"processes {left} of the network could not be killed")

    def __enter__(self) -> Network:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @property
    def keeper_pid(self) -> int:
        """Process ID of the keeper: its own session, so not found by who looks for our group."""
        return self._keeper.pid

    @property
    def in_user_namespace(self) -> bool:
        """Whether the hosts are in a user namespace, because the creator isn't root."""
        return "user" in self._outside

    @property
    def _user(self) -> dict[str, int]:
        """The user namespace to enter first, where the keeper had to make one."""
        return {kind: descriptor for kind, descriptor in self._outside.items() if kind == "user"}

    def _receive_hosts(self, names: Sequence[str], rates: Sequence[int | None]) -> tuple[Host, ...]:
        """Order the network from the keeper, and take over its namespaces."""
        rates_bytes = [None if rate is None else rate // 8 for rate in rates]
        packets.send(self._channel, {"names": names, "rates_bytes": rates_bytes})
        hosts = []
        for name, rate in zip_strict(names, rates):
            message, descriptors = self._receive(len(_KINDS))
            self._namespaces.append(dict(zip_strict(_KINDS, descriptors)))
            hosts.append(Host(name, message["address"], message["interface"], rate))
        message, descriptors = self._receive(2)
        # The switch's namespace is held here too, so that links outlast a keeper that somebody kills.
        self._outside = dict(zip(("switch", "user"), descriptors))
        for warning in message["warnings"]:
            _warn_once(warning)
        return tuple(hosts)

    def _receive(self, max_descriptors: int) -> tuple[dict[str, Any], list[int]]:
        """One packet of the keeper's. Raises the EmulationError that it reports."""
        try:
            message, descriptors = packets.receive(self._channel, max_descriptors)
        except TimeoutError as exc:
            raise EmulationError(f"the network's keeper has not answered for {_START_SECONDS:.0f} s") from exc
        if message is None:
            raise EmulationError(
                f"the network's keeper (process {self._keeper.pid}) has ended; its reason is on stderr"
            )
        if "error" in message:
            raise EmulationError(f"hosts can't be emulated here: {message['error']}")
        return message, descriptors


def _rates(hosts: int, rate: str | None, rates: Mapping[int, str | None]) -> list[int | None]:
    """Bits a second of each host's link. Raises ValueError for whatever is wrong with the arguments."""
    if isinstance(hosts, bool) or not isinstance(hosts, int) or not 1 <= hosts <= MAX_HOSTS:
        raise ValueError(f"hosts is {hosts!r}; a network has 1 to {MAX_HOSTS}")
    for number in rates:
        if isinstance(number, bool) or number not in range(hosts):
            raise ValueError(f"rates has host {number!r}; the hosts of this network are 0 to {hosts - 1}")
    texts = [rates.get(number, rate) for number in range(hosts)]
    return [None if text is None else links.parse_rate(text) for text in texts]


def _start_keeper(channel: socket.socket) -> subprocess.Popen[bytes]:
    """In a session of its own, so that what kills the creator's group (Ctrl-C) leaves it time to tidy up."""
    return subprocess.Popen(
        [sys.executable, "-m", "hdp.runtime.emulation.keeper", str(channel.fileno()), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=[channel.fileno()],
        start_new_session=True,
    )


def _entering(namespaces: Mapping[str, int]) -> list[str]:
    """The words before the program that move it into a host."""
    joined = ",".join(f"{kind}={descriptor}" for kind, descriptor in namespaces.items())
    # The kernel's death signal comes when the *thread* that started a process ends; other threads end before this
    # process does, and their programs are left to the keeper.
    tether = threading.current_thread() is threading.main_thread()
    helper = str(Path(__file__).with_name("enter.py"))
    return [sys.executable, "-I", "-S", helper, joined, str(os.getpid()), str(int(tether))]


def _find(argv: Sequence[str], options: Mapping[str, Any]) -> str:
    """The file that argv[0] means, as Popen would find it. Raises what Popen would raise."""
    if not argv:
        raise ValueError("argv is empty; give a program and its arguments")
    if "/" in argv[0]:
        path = Path(options.get("cwd") or ".", argv[0])
        if not os.access(path, os.X_OK):
            raise (PermissionError if path.exists() else FileNotFoundError)(f"can't execute {path}")
        return argv[0]
    environ = options.get("env") or os.environ
    found = shutil.which(argv[0], path=environ.get("PATH", os.defpath))
    if found is None:
        raise FileNotFoundError(f"no program {argv[0]!r} in PATH")
    return str(Path(found).absolute())


@functools.cache
def _warn_once(warning: str) -> None:
    _logger.warning("emulated network: %s", warning)
