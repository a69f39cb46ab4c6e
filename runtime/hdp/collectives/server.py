"""The server process of one host: ``python -m hdp.collectives.server``, with its configuration as JSON on stdin.

It binds a Unix socket for this host's ranks and a TCP port for the other hosts' servers, and says ``listening`` on
stdout. When all local ranks have connected it connects to the other servers, hands every rank the arena, and runs
the core (`hdp_server_run`) until the ranks have left. Then it serves the next generation: a script may leave and join
again. Connections are authenticated here, in Python; the core sees only connections that passed.

Configuration: ``host_index``; ``hosts`` (name, address, local_size, and a port of its own or the common ``port``);
``socket`` (path); ``secret_file``; ``start_timeout_seconds``; ``once`` (end after one generation); ``listen_fd`` (a
listening TCP socket that is already bound); ``slots`` and ``slot_bytes`` (of the arena); ``encrypt`` (TLS between the
servers; by default $HDP_ENCRYPT says); ``output_dir`` (where timelines go that the environment asks for).
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
from pathlib import Path
from typing import Any

from hdp.collectives import handshake, library, openssl, timeline
from hdp.collectives.eventfd import eventfd, ring
from hdp.collectives.lobby import Lobby
from hdp.collectives.mesh import mesh
from hdp.collectives.server_config import Config
from hdp.contract.errors import CollectiveError, HdpError
from hdp.contract.secret import read_secret

logger = logging.getLogger(__name__)

_PEER_CREDENTIALS = struct.Struct("3i")


class Server:
    """One host's server, over all generations."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.secret = read_secret(config.secret_file)
        self.stop_fd = eventfd(blocking=False)
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
        ring(self.stop_fd)
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
        peers: dict[int, handshake.Channel] = {}
        try:
            missing = [k for k in keys if k not in ranks]
            if missing:
                raise CollectiveError(self._missing_text(missing))
            self._check_ranks({k: hello for k, (_, hello) in ranks.items()})
            peers = mesh(self.config, self.secret, self.peers, generation)
            self._serve([ranks[k][0] for k in keys], peers)
        except CollectiveError as exc:
            logger.error("%s", exc)
            for channel, _ in ranks.values():
                _try_send(channel, {"error": str(exc)})
        finally:
            for channel in [*(c for c, _ in ranks.values()), *peers.values()]:
                channel.close()

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

    def _serve(self, ranks: list[handshake.Channel], peers: Mapping[int, handshake.Channel]) -> None:
        """Hand out the arena and run the core."""
        lib = library.load()
        world, me = self.config.world, self.config.host_index
        text = library.ErrorText()
        arena = os.memfd_create("hdp-arena", os.MFD_CLOEXEC)
        bell = eventfd(blocking=False)
        folder = self.config.timeline_dir
        timeline_fd = 0 if folder is None else timeline.open_file(Path(folder), f"host-{world.hosts[me].name}")
        try:
            size = (len(ranks), self.config.slots, self.config.slot_bytes)
            os.ftruncate(arena, lib.hdp_arena_bytes(*size))
            text.check(lib.hdp_arena_init(arena, *size, *text.arguments))
            for channel in ranks:
                channel.send({"ok": True, "host": me, "hosts": world.to_json()})
                socket.send_fds(channel.socket, [b"f"], [arena, bell])
            config = library.ServerConfig(
                layout=library.make_layout(me, world.local_sizes, world.names),
                arena_fd=arena,
                event_fd=bell,
                stop_fd=self.stop_fd,
                timeline_fd=timeline_fd,
                rank_fds=(ctypes.c_int32 * len(ranks))(*(c.socket.fileno() for c in ranks)),
                rank_pids=(ctypes.c_int32 * len(ranks))(*(_pid_of(c.socket) for c in ranks)),
                peer_fds=(ctypes.c_int32 * len(world.hosts))(
                    *(peers[i].socket.fileno() if i in peers else -1 for i in range(len(world.hosts)))
                ),
                log=_log_function,
                **self._encryption(peers),
            )
            status = self._run_core(lib, config, text)
            if status != library.Status.OK:
                logger.warning("the groups were poisoned: %s", text)
        finally:
            os.close(arena)
            os.close(bell)
            if timeline_fd:
                os.close(timeline_fd)

    def _encryption(self, peers: Mapping[int, handshake.Channel]) -> dict[str, Any]:
        if not self.config.encrypt:
            return {}
        keys = [peers[i].key("tls") if i in peers else bytes(32) for i in range(len(self.config.world.hosts))]
        library_name = openssl.libssl_path() or ""  # "": the core looks for one by the usual names
        return {"tls_library": library_name.encode(), "tls_keys": (ctypes.c_uint8 * (32 * len(keys)))(*b"".join(keys))}

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
        for lobby in (self.ranks, self.peers):
            if lobby is not None:
                lobby.close()
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


def _pid_of(sock: socket.socket) -> int:
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    return int(_PEER_CREDENTIALS.unpack(credentials)[0])


def _try_send(channel: handshake.Channel, value: dict[str, Any]) -> None:
    try:
        channel.send(value)
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
