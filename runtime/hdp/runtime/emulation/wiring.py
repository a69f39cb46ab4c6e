"""Cables, ports and token buckets, by netlink: every function works in the network namespace of its `IPRoute`."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hdp.runtime.emulation.errors import step

if TYPE_CHECKING:
    from pyroute2 import IPRoute  # type: ignore[import-untyped]  # it has no annotations

INTERFACE = "eth0"
SUBNET = IPv4Network("10.77.0.0/16")
"""Of every emulated network: they are in namespaces of their own, so they can't meet each other or the outside."""

CONGESTION_CONTROL = "cubic"
QUEUE_BYTES = 1 << 20
MIN_BURST_BYTES = 128 << 10
BURST_SECONDS = 500e-6
"""How much passes at once. Offloaded packets have up to 64 KiB, and a timer that fires late must find enough tokens
to make up for it: a virtual machine's is up to some 100 us late."""

_SWITCH = "switch"
_NO_PREFIX_ROUTE = 0x200


@dataclass(frozen=True)
class Traffic:
    """Counters of one interface since it was made."""

    sent_bytes: int
    received_bytes: int
    sent_packets: int
    received_packets: int
    dropped: int
    """By the token bucket of its outgoing side."""


def address(host: int) -> str:
    """IPv4 address of host number `host`."""
    return str(SUBNET[host + 1])


def make_switch(route: IPRoute) -> int:
    """Make the bridge. Returns its index."""
    with step("make a bridge", "the kernel's bridge module (CONFIG_BRIDGE)"):
        # Without snooping there are no queries on the wire that nobody sent.
        route.link("add", ifname=_SWITCH, kind="bridge", br_mcast_snooping=0, br_stp_state=0)
        _no_ipv6(_SWITCH)
        index = index_of(route, _SWITCH)
        route.link("set", index=index, state="up")
    return index


def plug(route: IPRoute, switch: int, host: int, namespace: int, rate_bytes: int | None) -> None:
    """Lay a cable from a new port of the switch to `INTERFACE` in the host's network namespace, a descriptor."""
    with step("make a veth pair", "the kernel's veth module (CONFIG_VETH)"):
        peer = {"ifname": INTERFACE, "net_ns_fd": namespace}
        route.link("add", ifname=port(host), kind="veth", peer=peer)
        index = index_of(route, port(host))
        _no_ipv6(port(host))
        route.link("set", index=index, master=switch, state="up")
    _shape(route, index, rate_bytes)


def configure_host(route: IPRoute, host: int, rate_bytes: int | None) -> str:
    """Bring up the host's interfaces. Returns why congestion control is not cubic, or an empty text."""
    _no_ipv6(INTERFACE)
    with step("configure a host's interface", "CAP_NET_ADMIN in its network namespace"):
        index = index_of(route, INTERFACE)
        route.link("set", index=index_of(route, "lo"), state="up")
        route.link("set", index=index, state="up")
        route.addr("add", index=index, address=address(host), prefixlen=SUBNET.prefixlen, IFA_FLAGS=_NO_PREFIX_ROUTE)
    _shape(route, index, rate_bytes)
    return _add_route(route, index, host)


def traffic(route: IPRoute, interface: str) -> Traffic:
    """What went through `interface`."""
    with step(f"read the counters of {interface}", "a kernel that has them (RTM_GETLINK)"):
        index = index_of(route, interface)
        (link,) = route.get_links(index)
        stats = link.get_attr("IFLA_STATS64")
        buckets = [q for q in route.get_qdiscs(index) if q.get_attr("TCA_KIND") == "tbf"]
    return Traffic(
        sent_bytes=stats["tx_bytes"],
        received_bytes=stats["rx_bytes"],
        sent_packets=stats["tx_packets"],
        received_packets=stats["rx_packets"],
        dropped=sum(bucket.get_attr("TCA_STATS2").get_attr("TCA_STATS_QUEUE")["drops"] for bucket in buckets),
    )


def port(host: int) -> str:
    """Name of the switch's port towards a host."""
    return f"port{host}"


def index_of(route: IPRoute, interface: str) -> int:
    """Index of an interface that is there."""
    return int(route.link_lookup(ifname=interface)[0])


def _shape(route: IPRoute, index: int, rate_bytes: int | None) -> None:
    if rate_bytes is None:
        return
    burst = max(MIN_BURST_BYTES, round(rate_bytes * BURST_SECONDS))
    with step("shape a link", "the kernel's sch_tbf module (CONFIG_NET_SCH_TBF)"):
        limit = max(QUEUE_BYTES, 2 * burst)
        route.tc("add", "tbf", index, 0x10000, rate=rate_bytes, burst=burst, limit=limit)


def _add_route(route: IPRoute, index: int, host: int) -> str:
    """Set congestion control on the route: a namespace's own default can't be set without the machine's root."""
    options: dict[str, Any] = {"dst": str(SUBNET), "oif": index, "scope": "link", "prefsrc": address(host)}
    try:
        route.route("add", metrics={"cc_algo": CONGESTION_CONTROL}, **options)
        return ""
    except Exception as exc:
        if not isinstance(getattr(exc, "code", None), int):
            raise
        refused = f"the kernel refuses congestion control {CONGESTION_CONTROL} on a route ({exc})"
    with step("add a host's route", "CAP_NET_ADMIN in its network namespace"):
        route.route("add", **options)
    return refused


def _no_ipv6(interface: str) -> None:
    """Keep an interface off IPv6, whose own messages would be on the wire. Where that is refused, they are few."""
    try:
        Path(f"/proc/sys/net/ipv6/conf/{interface}/disable_ipv6").write_text("1", encoding="ascii")
    except OSError:
        return
