"""``python -m hdp.runtime.emulation.keeper DESCRIPTOR CREATOR``: builds a network, then ends it when its creator ends.

The creator sends the plan. The keeper answers with a packet for each host, with its namespaces as descriptors, and a
last one with what else is to be known, or with one that holds ``error``. After that the creator asks for counters.
See the package for the whole.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hdp.contract.zipping import zip_strict
from hdp.runtime.emulation import inhabitants, namespaces, packets
from hdp.runtime.emulation.errors import EmulationError

INSTALL = "pyroute2, which talks to the kernel's network stack, is missing: pip install 'hdp-train[emulation]'"


@dataclass(frozen=True)
class Plan:
    """What to build."""

    names: tuple[str, ...]
    rates_bytes: tuple[int | None, ...]
    """Bytes a second of each host's link, in each direction; None: unshaped."""


def main(descriptor: str, creator: str) -> None:
    """Build, serve until the creator closes the socket or ends, and leave nothing behind."""
    with socket.socket(fileno=int(descriptor)) as channel:
        keeper = _Keeper()
        try:
            order, _ = packets.receive(channel)
            if order is not None:
                keeper.build(Plan(**order), channel)
                _serve(keeper, channel, int(creator))
        except EmulationError as exc:
            with contextlib.suppress(OSError):
                packets.send(channel, {"error": str(exc)})
        except BrokenPipeError:
            pass  # The creator has ended; there is nobody to tell.
        finally:
            inhabitants.evict(keeper.identities)


class _Keeper:
    """The network's namespaces."""

    def __init__(self) -> None:
        self._hosts: list[dict[str, int]] = []

    @property
    def identities(self) -> set[inhabitants.Identity]:
        """The network namespaces in which only programs of this network are."""
        return {inhabitants.identity(host["net"]) for host in self._hosts}

    def build(self, plan: Plan, channel: socket.socket) -> None:
        """Make the switch and the hosts, sending each host's namespaces as soon as it is complete."""
        means = namespaces.isolate()
        # Only now: it may start threads, with which the kernel refuses a user namespace.
        wiring, IPRoute = _netlink()  # noqa: N806
        shared = [namespaces.current("user")] if means == "user" else []
        hosts_file = "127.0.0.1 localhost\n" + "".join(
            f"{wiring.address(host)} {name}\n" for host, name in enumerate(plan.names)
        )
        refusals = set()
        with IPRoute() as outside:
            switch = wiring.make_switch(outside)
            for number, (name, rate) in enumerate(zip_strict(plan.names, plan.rates_bytes)):
                host = namespaces.make_host(name, hosts_file)
                self._hosts.append(host)
                wiring.plug(outside, switch, number, host["net"], rate)
                with namespaces.inside({"net": host["net"]}), IPRoute() as route:
                    refusals.add(wiring.configure_host(route, number, rate))
                packets.send(
                    channel, {"address": wiring.address(number), "interface": wiring.INTERFACE}, list(host.values())
                )
        packets.send(channel, {"warnings": sorted(refusals - {""})}, [namespaces.current("net"), *shared])

    def counters(self, number: int) -> dict[str, Any]:
        """What went over a host's link, at both of its ends."""
        wiring, IPRoute = _netlink()  # noqa: N806
        with IPRoute() as route:
            switch = wiring.traffic(route, wiring.port(number))
        with namespaces.inside({"net": self._hosts[number]["net"]}), IPRoute() as route:
            host = wiring.traffic(route, wiring.INTERFACE)
        return {"host": asdict(host), "switch": asdict(switch)}


def _netlink() -> tuple[Any, Any]:
    try:
        from pyroute2 import IPRoute  # type: ignore[import-untyped]  # it has no annotations
    except ImportError as exc:
        raise EmulationError(INSTALL) from exc
    from hdp.runtime.emulation import wiring

    return wiring, IPRoute


def _serve(keeper: _Keeper, channel: socket.socket, creator: int) -> None:
    """Answer the creator until it is gone. Its end is seen by the process, since a child may hold the socket too."""
    watched = os.pidfd_open(creator)
    try:
        if os.getppid() != creator:
            return
        poll = select.poll()
        poll.register(watched, select.POLLIN)
        poll.register(channel, select.POLLIN)
        while watched not in dict(poll.poll()):
            request, _ = packets.receive(channel)
            if request is None:
                return
            packets.send(channel, _answer(keeper, request))
    finally:
        os.close(watched)


def _answer(keeper: _Keeper, request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return keeper.counters(request["counters"])
    except EmulationError as exc:
        return {"error": str(exc)}


if __name__ == "__main__":
    main(*sys.argv[1:])
