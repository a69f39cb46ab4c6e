"""Many hosts that all send to one at once: what the switch drops, what TCP sends again, and how far from the bound.

    python benchmarks/incast.py --hosts 16 --rate 250mbit --size 8MiB

One rank a host, on emulated hosts. In an allreduce every host gets its share from all others at once; in a gather one
host gets everything; in an alltoall all get from all. The bound is the least that the busiest link must carry over its
rate. Every result is checked. Drops are those of the links' token buckets, whose queues hold 1 MiB; retransmissions
are those that the hosts' kernels count.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

OPERATIONS = ("allreduce", "allgather", "reduce_scatter", "gather", "alltoall")


def least_bytes(operation: str, size: int, hosts: int) -> float:
    """What the busiest link has to carry. size: of the whole array."""
    return (2 if operation == "allreduce" else 1) * (hosts - 1) / hosts * size


# ---- a rank ----------------------------------------------------------------------------------------------------------


def _calls(comm: Any, size: int) -> dict[str, tuple[Callable[[], Any], Callable[[Any], bool]]]:
    """Operation -> how it is called, and whether a result is right. Element i of rank r is i + r."""
    import hdp.collectives as hc

    world, rank = comm.world, comm.rank
    n = size // 4 // world.size * world.size
    whole = np.arange(n, dtype=np.float32) % 1000
    mine = whole + rank
    piece = n // world.size
    rows = mine.reshape(world.size, piece)
    total = whole * world.size + sum(range(world.size))
    blocks = np.stack([whole[:piece] + other for other in range(world.size)])
    crossed = np.stack([whole.reshape(world.size, piece)[rank] + other for other in range(world.size)])
    return {
        "allreduce": (lambda: hc.allreduce(mine, world), lambda got: np.array_equal(got, total)),
        "allgather": (lambda: hc.allgather(mine[:piece], world), lambda got: np.array_equal(got, blocks)),
        "reduce_scatter": (
            lambda: hc.reduce_scatter(rows, world),
            lambda got: np.array_equal(got, total.reshape(world.size, piece)[rank]),
        ),
        "gather": (lambda: hc.gather(mine[:piece], world), lambda got: got is None or np.array_equal(got, blocks)),
        "alltoall": (lambda: hc.alltoall(rows, world), lambda got: np.array_equal(got, crossed)),
    }


def _segments_sent_again() -> int:
    """Of this host's TCP, since it was made."""
    names, values = (line.split() for line in Path("/proc/net/snmp").read_text().splitlines() if line[:4] == "Tcp:")
    return int(values[names.index("RetransSegs")])


def rank_main(size: int, rounds: int) -> int:
    """One rank: prints its times and its host's retransmissions as JSON."""
    import hdp.collectives as hc

    comm = hc.init()
    found: dict[str, Any] = {}
    for operation, (call, right) in _calls(comm, size).items():
        assert right(call().wait()), f"rank {comm.rank}: a wrong {operation}"
        again, times = _segments_sent_again(), []
        for _ in range(rounds):
            hc.barrier(comm.world).wait()
            began = time.perf_counter()
            call().wait()
            times.append(time.perf_counter() - began)
        found[operation] = {"times": times, "retransmitted": _segments_sent_again() - again}
    json.dump(found, sys.stdout)
    comm.close()
    return 0


# ---- all of them -----------------------------------------------------------------------------------------------------


def measure(hosts: int, rate: str, size: int, rounds: int) -> dict[str, Any]:
    """Run it; by operation: seconds, over_bound, retransmitted; for all together: dropped, sent_bytes, connections."""
    from hdp.runtime.emulation import Network
    from hdp.runtime.rehearsal import rehearse

    script = [sys.executable, __file__, "--as-rank", "--size", str(size), "--rounds", str(rounds)]
    with Network(hosts=hosts, rate=rate) as network:
        assert network.rate_bits_per_second is not None
        began = time.perf_counter()
        outputs = rehearse(network, 1, script, timeout=300)
        lasted = time.perf_counter() - began
        counters = [network.counters(host) for host in range(hosts)]
        per_second = network.rate_bits_per_second / 8
    ranks = [json.loads(output) for output in outputs]
    results = {}
    for operation in OPERATIONS:
        slowest = [max(times) for times in zip(*(rank[operation]["times"] for rank in ranks), strict=True)]
        seconds = statistics.median(slowest)
        results[operation] = {
            "seconds": seconds,
            "over_bound": seconds * per_second / least_bytes(operation, size, hosts),
            "retransmitted": sum(rank[operation]["retransmitted"] for rank in ranks),
        }
    return {
        "hosts": hosts,
        "rate": rate,
        "size": size,
        "rounds": rounds,
        "operations": results,
        "sent_bytes": sum(c.sent_bytes for c in counters),
        "dropped_by_host": sum(c.dropped_by_host for c in counters),
        "dropped_by_switch": sum(c.dropped_by_switch for c in counters),
        "connections": hosts * (hosts - 1) // 2,
        "seconds": lasted,
    }


def show(found: dict[str, Any]) -> None:
    """Print it."""
    from hdp.contract.units import format_size

    print(
        f"{found['hosts']} hosts x 1 rank, {found['rate']}, {format_size(found['size'])}, median of {found['rounds']}; "
        f"{found['connections']} connections"
    )
    for operation, row in found["operations"].items():
        print(
            f"  {operation:15} {row['seconds'] * 1e3:8.1f} ms  {row['over_bound']:.3f} x bound  "
            f"{row['retransmitted']} segments sent again"
        )
    print(
        f"  {format_size(found['sent_bytes'])} in all; packets dropped: {found['dropped_by_switch']} by the switch, "
        f"{found['dropped_by_host']} by the hosts' own queues"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    from hdp.contract.units import parse_size

    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=16, help="emulated hosts, 2 or more (default 16)")
    parser.add_argument("--rate", default="250mbit", help="of each host's link (default 250mbit)")
    parser.add_argument("--size", default="8MiB", help="of the whole array (default 8MiB)")
    parser.add_argument("--rounds", type=int, default=5, help="default 5")
    parser.add_argument("--json", type=Path, help="write everything to this file")
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    size = parse_size(options.size)
    if options.as_rank:
        return rank_main(size, options.rounds)
    if options.hosts < 2 or options.rounds < 1 or size < 4 * options.hosts:
        parser.error("expected 2 hosts or more, 1 round or more, and an element of 4 bytes for each rank")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    found = measure(options.hosts, options.rate, size, options.rounds)
    show(found)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
