"""``python -m hdp.collectives.explain``: the plan of one operation as JSON, for the command `hdp explain`.

Reads one JSON object on stdin: ``kind``, ``size`` (bytes), ``wire_ratio``, and either ``topology`` (as
`Topology.to_json` gives it) or ``hosts``, ``ranks``, ``rate`` (bits a second; null: no limit), ``latency`` (seconds),
``cores``, ``shared`` (whether the hosts share them). Writes ``{"cluster", "plan", "peers"}``, or ``{"error"}``.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from hdp.collectives import cost, peers
from hdp.collectives.library import Kind
from hdp.collectives.machine import Cluster, Link, Machine, cluster_of
from hdp.collectives.topology import Topology
from hdp.contract.errors import HdpError, InvalidCollective

#: What a token bucket of an emulated link lets pass at once.
EMULATED_BURST_BYTES = 128 << 10


def explain(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to a request, both as the module's docstring has them. Raises HdpError."""
    kind = _kind(asked["kind"])
    cluster = _cluster(asked)
    plan = cost.plan(kind, asked["size"], cluster, wire_ratio=asked.get("wire_ratio", 1.0))
    compared = [asdict(peer(asked["size"], cluster)) for peer in peers.ALL] if kind == Kind.ALLREDUCE else []
    return {"cluster": _plain(cluster), "plan": asdict(plan), "peers": compared}


def _kind(name: str) -> Kind:
    try:
        return Kind[name.upper()]
    except KeyError:
        known = ", ".join(kind.name.lower() for kind in Kind)
        raise InvalidCollective(f"no collective {name!r}; there are {known}") from None


def _cluster(asked: Mapping[str, Any]) -> Cluster:
    if "topology" in asked:
        return cluster_of(Topology.from_json(asked["topology"]))
    hosts, shared = asked["hosts"], asked["shared"]
    rate = math.inf if asked["rate"] is None else asked["rate"] / 8
    link = Link(rate, asked["latency"], EMULATED_BURST_BYTES if shared else 0)
    return Cluster((asked["ranks"],) * hosts, link, Machine(asked["cores"], hosts if shared else 1))


def _plain(cluster: Cluster) -> dict[str, Any]:
    """JSON has no infinity: a link without a limit is null."""
    value = asdict(cluster)
    if math.isinf(cluster.link.rate):
        value["link"]["rate"] = None
    return value


def main() -> int:
    """Answer one request. Exit code 1: it can't be, and why is in the answer."""
    try:
        answer = explain(json.load(sys.stdin))
    except HdpError as exc:
        answer = {"error": str(exc)}
    json.dump(answer, sys.stdout)
    return int("error" in answer)


if __name__ == "__main__":
    sys.exit(main())
