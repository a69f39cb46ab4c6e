"""The connections between all servers of a job: each pair has one, made by the server of the higher index."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from hdp.collectives.handshake import Channel
from hdp.collectives.lobby import Lobby, dial, tune
from hdp.collectives.server_config import Config
from hdp.contract.errors import CollectiveError


def mesh(config: Config, secret: bytes, lobby: Lobby | None, generation: int) -> dict[int, Channel]:
    """A connection to every other server, by host index, for one generation of ranks. lobby: None for a single host.

    Raises CollectiveError that names who did not come, or was started differently.
    """
    deadline = time.monotonic() + config.start_timeout
    peers: dict[int, Channel] = {}
    try:
        _dial_lower(config, secret, generation, deadline, peers)
        if lobby is not None:
            _take_higher(config, lobby, generation, deadline, peers)
    except BaseException:
        for channel in peers.values():
            channel.close()
        raise
    for channel in peers.values():
        tune(channel.socket)
    return peers


def _dial_lower(config: Config, secret: bytes, generation: int, deadline: float, peers: dict[int, Channel]) -> None:
    hello = {"host": config.host_index, "generation": generation, **config.fingerprint}
    for index, host in enumerate(config.world.hosts[: config.host_index]):
        peers[index] = dial(host.address, host.port, secret, hello, deadline)


def _take_higher(config: Config, lobby: Lobby, generation: int, deadline: float, peers: dict[int, Channel]) -> None:
    hosts = config.world.hosts
    wanted = [(generation, index) for index in range(config.host_index + 1, len(hosts))]
    came = lobby.take(wanted, deadline)
    peers.update({index: channel for (_, index), (channel, _) in came.items()})
    for (_, index), (_, theirs) in came.items():
        _refuse_different(hosts[index].name, theirs, config.fingerprint, [channel for channel, _ in came.values()])
    for channel, _ in came.values():
        channel.send({"ok": True})
    missing = [hosts[index].name for _, index in wanted if index not in peers]
    if missing:
        names = ", ".join(missing)
        raise CollectiveError(f"no connection from the servers of {names} within {config.start_timeout:g} s")


def _refuse_different(name: str, theirs: Mapping[str, Any], ours: Mapping[str, Any], all_: list[Channel]) -> None:
    """Tell all who came, and raise, where a server was started otherwise than this one."""
    different = {k: (theirs.get(k), v) for k, v in ours.items() if theirs.get(k) != v}
    if not different:
        return
    text = f"the server of {name} was started differently (theirs, ours): {different}"
    for channel in all_:
        channel.send({"error": text})
    raise CollectiveError(text)
