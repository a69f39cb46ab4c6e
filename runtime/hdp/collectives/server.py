"""The server process of one host: ``python -m hdp.collectives.server``, with its configuration as JSON on stdin.

It binds a Unix socket for this host's ranks and a TCP port for the other hosts' servers, and says ``listening`` on
stdout. When all local ranks have connected it connects to the other servers, hands every rank the arena, and runs
the core (`hdp_server_run`) until the ranks have left. Then it serves the next generation: a script may leave and join
again. Connections are authenticated here, in Python; the core sees only connections that passed.

Configuration: ``host_index``; ``hosts`` (name, address, local_size, and a port of its own or the common ``port``);
``socket`` (path); ``secret_file``; ``start_timeout_seconds``; ``once`` (end after one generation); ``listen_fd`` (a
listening TCP socket that is already bound); ``slots`` and ``slot_bytes`` (of the arena).
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import shutil
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hdp.collectives import handshake, library
from hdp.collectives.lobby import Lobby, dial, tune
from hdp.collectives.world import SLOT_BYTES, SLOTS, World
from hdp.contract.errors import CollectiveError, HdpError
from hdp.contract.secret import read_secret

logger = logging.getLogger(__name__)

_PEER_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True)
class Config:
    """Configuration of a server; see the module."""

    host_index: int
    world: World
    socket: str
    secret_file: str
    start_timeout: float
    once: bool = False
    listen_fd: int | None = None
    slots: int = SLOTS
    slot_bytes: int = SLOT_BYTES

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Config:
        """Read the configuration that a launcher wrote."""
        return Config(
            host_index=value["host_index"],
            world=World.from_json(value["hosts"], value.get("port", 0)),
            socket=value["socket"],
            secret_file=value["secret_file"],
            start_timeout=float(value.get("start_timeout_seconds", 600)),
            once=bool(value.get("once", False)),
            listen_fd=value.get("listen_fd"),
            slots=int(value.get("slots", SLOTS)),
            slot_bytes=int(value.get("slot_bytes", SLOT_BYTES)),
        )

    @property
    def fingerprint(self) -> dict[str, Any]:
        """What all servers of a job must agree on."""
        return {
            "abi": library.ABI_VERSION,
            "slots": self.slots,
            "slot_bytes": self.slot_bytes,
            "sizes": self.world.local_sizes,
        }


class Server:
    """One host's server, over all generations."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.secret = read_secret(config.secret_file)
        self.stop_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.stopped = False
        self._in_core = False
        self._unix = _listen_unix(config.socket)
        self._tcp = _listen_tcp(config)
        self.ranks = Lobby(self._unix, self.secret, "rank", lambda h: int(h["local_rank"]))
        self.peers = (
            Lobby(self._tcp, self.secret, "server", lambda h: (int(h["generation"]), int(h["host"])))
            if self._tcp
            else None
        )

    def stop(self, *_: object) -> None:
        """Make the running generation end, and no other begin. For a signal handler."""
        self.stopped = True
        os.eventfd_write(self.stop_fd, 1)
        if not self._in_core:
            raise SystemExit(0)  # the main thread waits for ranks or servers

    def run(self) -> None:
        """Serve generations until stopped."""
        generation = 0
        while not self.stopped:
            self._generation(generation)
            generation += 1
            if self.config.once:
                return

    def _generation(self, generation: int) -> None:
        local_size = self.config.world.hosts[self.config.host_index].local_size
        keys = list(range(local_size))
        self.ranks.wait_for_any(self.config.start_timeout if self.config.once else None)
        ranks = self.ranks.take(keys, time.monotonic() + self.config.start_timeout)
        peers: dict[int, socket.socket] = {}
        try:
            missing = [k for k in keys if k not in ranks]
            if missing:
                raise CollectiveError(self._missing_text(missing))
            self._check_ranks({k: hello for k, (_, hello) in ranks.items()})
            peers = self._mesh(generation)
            self._serve([ranks[k][0] for k in keys], peers)
        except CollectiveError as exc:
            logger.error("%s", exc)
            for sock, _ in ranks.values():
                _try_send(sock, {"error": str(exc)})
        finally:
            for sock in [*(s for s, _ in ranks.values()), *peers.values()]:
                sock.close()

    def _first_rank(self) -> int:
        return sum(self.config.world.local_sizes[: self.config.host_index])

    def _check_ranks(self, hellos: Mapping[int, Mapping[str, Any]]) -> None:
        for local, hello in hellos.items():
            expected = self._first_rank() + local
            if hello.get("rank") != expected:
                raise CollectiveError(
                    f"the process with local rank {local} says that it is rank {hello.get('rank')}, "
                    f"expected {expected}: RANK and LOCAL_RANK do not fit the hosts"
                )

    def _missing_text(self, missing: list[int]) -> str:
        host = self.config.world.hosts[self.config.host_index]
        names = ", ".join(f"rank {self._first_rank() + k}" for k in missing)
        return (
            f"{names} on {host.name} did not join within {self.config.start_timeout:g} s, while others wait; "
            "every rank must initialise the collective library"
        )

    def _mesh(self, generation: int) -> dict[int, socket.socket]:
        """Connect to the servers of lower index, and take the connections of the others."""
        deadline = time.monotonic() + self.config.start_timeout
        me, hosts = self.config.host_index, self.config.world.hosts
        hello = {"host": me, "generation": generation, **self.config.fingerprint}
        peers: dict[int, socket.socket] = {}
        try:
            for index in range(me):
                peers[index] = dial(hosts[index].address, hosts[index].port, self.secret, hello, deadline)
            if self.peers is not None:
                wanted = [(generation, index) for index in range(me + 1, len(hosts))]
                came = self.peers.take(wanted, deadline)
                for (_, index), (sock, theirs) in came.items():
                    peers[index] = sock
                    _check_fingerprint(hosts[index].name, theirs, self.config.fingerprint)
                    handshake.send_json(sock, {"ok": True})
            missing = [hosts[i].name for i in range(len(hosts)) if i != me and i not in peers]
            if missing:
                raise CollectiveError(
                    f"no connection from the servers of {', '.join(missing)} within {self.config.start_timeout:g} s"
                )
        except BaseException:
            for sock in peers.values():
                sock.close()
            raise
        for sock in peers.values():
            tune(sock)
        return peers

    def _serve(self, ranks: list[socket.socket], peers: Mapping[int, socket.socket]) -> None:
        """Hand out the arena and run the core."""
        lib = library.load()
        world, me = self.config.world, self.config.host_index
        text = library.ErrorText()
        arena = os.memfd_create("hdp-arena", os.MFD_CLOEXEC)
        bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            size = (len(ranks), self.config.slots, self.config.slot_bytes)
            os.ftruncate(arena, lib.hdp_arena_bytes(*size))
            text.check(lib.hdp_arena_init(arena, *size, *text.arguments))
            for sock in ranks:
                handshake.send_json(sock, {"ok": True, "host": me, "hosts": world.to_json()})
                socket.send_fds(sock, [b"f"], [arena, bell])
            config = library.ServerConfig(
                layout=library.make_layout(me, world.local_sizes, world.names),
                arena_fd=arena,
                event_fd=bell,
                stop_fd=self.stop_fd,
                rank_fds=(ctypes.c_int32 * len(ranks))(*(s.fileno() for s in ranks)),
                rank_pids=(ctypes.c_int32 * len(ranks))(*(_pid_of(s) for s in ranks)),
                peer_fds=(ctypes.c_int32 * len(world.hosts))(
                    *(peers[i].fileno() if i in peers else -1 for i in range(len(world.hosts)))
                ),
                log=_log_function,
            )
            status = self._run_core(lib, config, text)
            if status != library.Status.OK:
                logger.warning("the groups were poisoned: %s", text)
        finally:
            os.close(arena)
            os.close(bell)

    def _run_core(self, lib: ctypes.CDLL, config: library.ServerConfig, text: library.ErrorText) -> int:
        # In a thread of its own, so that this one can take signals.
        result: list[int] = []
        thread = threading.Thread(
            target=lambda: result.append(lib.hdp_server_run(ctypes.byref(config), *text.arguments)), name="core"
        )
        self._in_core = True
        thread.start()
        thread.join()
        self._in_core = False
        return result[0]

    def close(self) -> None:
        """Close the listeners and remove the socket file."""
        for listener in (self._unix, self._tcp):
            if listener is not None:
                listener.close()
        Path(self.config.socket).unlink(missing_ok=True)
        if self.config.once:  # its folder was made for this server alone
            shutil.rmtree(Path(self.config.socket).parent, ignore_errors=True)
        os.close(self.stop_fd)


def _log(line: bytes) -> None:
    """What the core wants to have said."""
    logger.warning("%s", line.decode(errors="replace"))


_log_function = library.LogFunction(_log)


def _listen_unix(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        Path(path).chmod(0o600)
    except OSError as exc:
        listener.close()
        raise CollectiveError(f"the server's socket {path} can't be made: {exc}") from exc
    listener.listen(1024)
    return listener


def _listen_tcp(config: Config) -> socket.socket | None:
    if len(config.world.hosts) == 1:
        return None
    if config.listen_fd is not None:
        return socket.socket(fileno=config.listen_fd)
    host = config.world.hosts[config.host_index]
    try:
        family, _, _, _, where = socket.getaddrinfo(host.address, host.port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
    except OSError as exc:
        raise CollectiveError(f"the server can't listen on {host.address}:{host.port}: {exc}") from exc
    listener.listen(1024)
    return listener


def _check_fingerprint(name: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    different = {k: (theirs.get(k), v) for k, v in ours.items() if theirs.get(k) != v}
    if different:
        raise CollectiveError(f"the server of {name} was started differently (theirs, ours): {different}")


def _pid_of(sock: socket.socket) -> int:
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    return int(_PEER_CREDENTIALS.unpack(credentials)[0])


def _try_send(sock: socket.socket, value: dict[str, Any]) -> None:
    try:
        handshake.send_json(sock, value)
    except handshake.HandshakeError:
        logger.debug("a rank left before it could be told")


def main() -> int:
    """Read the configuration from stdin and serve."""
    logging.basicConfig(level=logging.INFO, format="hdp server: %(message)s", stream=sys.stderr)
    try:
        library.load()
        server = Server(Config.from_json(json.load(sys.stdin)))
    except HdpError as exc:
        logger.error("%s", exc)
        return 1
    signal.signal(signal.SIGTERM, server.stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the launcher
    sys.stdout.write("listening\n")
    sys.stdout.flush()
    try:
        server.run()
    finally:
        server.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
