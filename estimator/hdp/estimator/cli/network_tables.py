"""What `hdp topology` and `hdp explain` show: their JSON to tables and facts. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hdp.contract.units import format_rate, format_size, format_time
from hdp.estimator.cli.text import Block, Facts, Table

#: Data in an Ethernet frame of 1514 bytes is 1448.
_FRAMING = 1514 / 1448


def topology_report(found: Mapping[str, Any]) -> list[Block]:
    """Hosts, and the links between them."""
    summary, hosts = found["summary"], found["hosts"]
    facts = _facts(
        ("hosts", f"{len(hosts)}, {summary['ranks']} ranks"),
        ("link", "none: a single host" if not found["flows"] else _link(summary)),
        (
            "operation",
            f"{format_time(found['barrier'])} for a barrier over one rank a host" if found["barrier"] else "",
        ),
        ("measured", f"in {format_time(found['seconds'])}"),
        ("note", _sharing(summary["hosts_on_a_machine"])),
    )
    return [facts, _hosts_table(found)]


def explanation(answer: Mapping[str, Any]) -> list[Block]:
    """How an operation goes."""
    plan, cluster = answer["plan"], answer["cluster"]
    what = plan["kind"] if plan["kind"] == "barrier" else f"{plan['kind']} of {format_size(plan['size'])}"
    rows = [
        ("operation", f"{what} over {_cluster(cluster)}"),
        ("algorithm", plan["algorithm"]),
    ]
    if plan["chunks"]:
        at_once = f", {cluster['slots']} at once" if plan["chunks"] > 1 else ""
        rows.append(("chunks", f"{plan['chunks']:,} of {format_size(plan['chunk_bytes'])}{at_once}"))
    if plan["hops"]:
        least = plan["sent_bytes"] / plan["least_bytes"] if plan["least_bytes"] else 1.0
        busiest = f"{format_size(plan['sent_bytes'])} on the busiest link, {least:.2f} x the least possible"
        rows += [("hops", str(plan["hops"])), ("bytes", busiest), ("messages", f"{plan['messages']:,} a host")]
    rows += [("time", f"{format_time(plan['seconds'])}, limited by {plan['limit']}")]
    parts: list[Block] = [_facts(*rows), _parts_table(plan)]
    if answer["peers"] and plan["seconds"]:
        parts.append(_peers_table(plan, answer["peers"]))
    return parts


def _link(summary: Mapping[str, Any]) -> str:
    rate, latency = summary["link_rate_bits_per_second"], summary["latency_seconds"]
    way = "" if latency is None else f", {format_time(latency)} from server to server"
    return f"{format_rate(rate)} the slowest{way}"


def _sharing(hosts_on_a_machine: int) -> str:
    if hosts_on_a_machine == 1:
        return ""
    return f"{hosts_on_a_machine} hosts share a machine: processors and memory are counted for each of them"


def _hosts_table(found: Mapping[str, Any]) -> Table:
    best: dict[tuple[str, int], float] = {}
    for flow in found["flows"]:
        for place in (("out", flow["source"]), ("in", flow["target"])):
            best[place] = max(best.get(place, 0.0), flow["rate"])
    rows = [
        (
            host["name"],
            host["address"],
            str(host["ranks"]),
            str(host["cpus"]),
            " + ".join(str(len(node["cpus"])) for node in host["numa"]),
            format_size(host["memory_bytes"]),
            f"{host['copy_rate'] / 1e9:.1f} GB/s",
            *(format_rate(best[way, index] * 8 * _FRAMING) if (way, index) in best else "-" for way in ("out", "in")),
        )
        for index, host in enumerate(found["hosts"])
    ]
    return Table(("host", "address", "ranks", "cpus", "NUMA", "memory", "core copies", "sends", "receives"), rows)


def _cluster(cluster: Mapping[str, Any]) -> str:
    ranks: Sequence[int] = cluster["ranks"]
    each = f"{ranks[0]}" if len(set(ranks)) == 1 else f"{min(ranks)} to {max(ranks)}"
    hosts = f"{len(ranks)} host{'s' * (len(ranks) > 1)} x {each} rank{'s' * (each != '1')}"
    if len(ranks) == 1:
        return hosts
    rate = cluster["link"]["rate"]
    link = "links without a limit" if rate is None else format_rate(rate * 8)
    shared = cluster["machine"]["hosts"]
    cores = cluster["machine"]["cores"]
    where = f"{shared} hosts share {cores} processors" if shared > 1 else f"{cores} processors a host"
    return f"{hosts}, {link}, {format_time(cluster['link']['latency'])} latency, {where}"


def _parts_table(plan: Mapping[str, Any]) -> Table:
    rows = []
    for part in plan["parts"]:
        share = part["seconds"] / plan["seconds"] if plan["seconds"] else 0.0
        rows.append((part["name"], format_time(part["seconds"]), f"{share:.0%}", part["what"]))
    return Table(("part", "time", "share", "what"), rows, prose=True)


def _peers_table(plan: Mapping[str, Any], peers: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        (
            peer["algorithm"],
            format_time(peer["seconds"]),
            f"{peer['seconds'] / plan['seconds']:.2f} x",
            str(peer["hops"]),
            format_size(peer["sent_bytes"]),
        )
        for peer in peers
    ]
    return Table(("by another algorithm", "time", "to ours", "steps", "bytes on the busiest link"), rows)


def _facts(*rows: tuple[str, str]) -> Facts:
    return Facts([(name, value) for name, value in rows if value])
