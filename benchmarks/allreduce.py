"""hdp and every peer that is installed, side by side on emulated hosts: time, bytes on the wire, processor time.

    python benchmarks/allreduce.py --hosts 2 --ranks 4 --rate 1gbit --sizes 64KiB,1MiB,64MiB

Peers are all alive at once and measured in turn, in rounds; each result is checked to the last bit before the clock
counts and after (what --wire compresses: to 2^-7). Sizes, as torch's calls have them: allreduce, each rank's buffer;
allgather, each rank's output (`all_gather_into_tensor`); reduce_scatter, each rank's input (`reduce_scatter_tensor`).
The bound is the least that a host must send over the link's rate: 2(N-1)/N x size for allreduce, (N-1)/N x size for the
others. An operation's time is its slowest rank's own. Barriers before and after are off the wire and not in the time.

With --device, buffers are tensors of torch.distributed: on the GPU (which the ranks share), or in memory to try that.
Each rank's buffer then has to get off the device and back on it: the bound is the bytes of all ranks over --copy-rate,
both ways at once. With --loopback hosts are addresses of this machine, so that nothing is emulated or limited.

Peers: `make peers` installs Open MPI and MPICH, `make horovod` Horovod. With --hosts 1 there is no network.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import peers
import report
import stream
from measure import Options, Results, run
from onehost import Loopback, OneHost

from hdp.contract.errors import HdpError

_UNITS = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_BITS = {"bit": 1, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_MOST_RANKS = 64
_DTYPES = ("float32", "float64", "int32", "int64")
_WIRES = ("bfloat16", "float16")
#: As `device_place` has them, which imports torch.
DEVICES = ("cuda", "fake", "cpu")


def size_bytes(text: str) -> int:
    """``64KiB`` -> 65536."""
    found = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", text.lower())
    if not found or found[2] not in _UNITS or not int(found[1]):
        raise argparse.ArgumentTypeError(f"size {text!r}; expected for example 4KiB, 64MiB or 1000000")
    return int(found[1]) * _UNITS[found[2]]


def sizes_list(text: str) -> tuple[int, ...]:
    """Sizes with commas between."""
    return tuple(dict.fromkeys(size_bytes(part) for part in text.split(",")))


def bytes_per_second(text: str) -> float:
    """``1gbit`` -> 125e6."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?bit)", text.lower())
    if not found or not float(found[1]):
        raise argparse.ArgumentTypeError(f"rate {text!r}; expected for example 250mbit or 1gbit")
    return float(found[1]) * _BITS[found[2]] / 8


def peers_list(text: str) -> tuple[str, ...]:
    """Names of peers with commas between."""
    names = tuple(dict.fromkeys(text.split(",")))
    unknown = [n for n in names if n not in peers.ALL]
    if unknown:
        raise argparse.ArgumentTypeError(f"no peer {', '.join(unknown)}; there are {', '.join(peers.ALL)}")
    return names


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; what can't be measured ends the program here, before anything is started."""
    about, _, more = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=about, epilog=more, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--hosts", type=int, default=2, help="emulated hosts (default 2); 1: no network")
    add("--ranks", type=int, default=2, help="ranks a host (default 2)")
    add("--rate", default="1gbit", help="of each host's link, each way (default 1gbit)")
    add("--loopback", action="store_true", help="hosts are addresses of this machine, with nothing between them")
    add("--device", choices=DEVICES, default="", help="buffers are tensors there (default: NumPy arrays)")
    add("--copy-rate", type=float, help="GB/s between host and device, each way, for the bound with --device")
    add("--sizes", type=sizes_list, default=sizes_list("64KiB,1MiB,64MiB"), help="default 64KiB,1MiB,64MiB")
    add("--peers", type=peers_list, default=tuple(peers.ALL), help=f"default {','.join(peers.ALL)}")
    add("--collective", choices=peers.EVERYTHING, default="allreduce")
    add("--dtype", choices=_DTYPES, default="float32")
    add("--wire", choices=_WIRES, default="", help="hdp's dtype on the links between hosts (default: the data's)")
    add("--rounds", type=int, default=5, help="default 5; each peer once at each size in a round")
    add("--iterations", type=int, help="operations a round (default: about --seconds of them, 3 to 300)")
    add("--seconds", type=float, default=1.0, help="per peer, size and round, without --iterations (default 1)")
    add("--gap", type=float, help="milliseconds without traffic before an operation (default 1.5 below 1 MiB, else 0)")
    add("--together", action="store_true", help="start all peers at once: with a processor for each of their ranks")
    add("--limit", type=float, default=60.0, help="seconds after which a peer that hangs is given up (default 60)")
    add("--json", type=Path, help="write everything measured to this file")
    add("--plot", type=Path, help="draw the table into this file (.png, .svg)")
    options = parser.parse_args(arguments)
    faults = _faults(options)
    if faults:
        parser.error("; ".join(faults))
    return options


def _faults(o: argparse.Namespace) -> list[str]:
    counts = {"--hosts": o.hosts, "--ranks": o.ranks, "--rounds": o.rounds, "--iterations": o.iterations}
    faults = [f"{name} is {n}; expected 1 or more" for name, n in counts.items() if n is not None and n < 1]
    world = o.hosts * o.ranks
    if world < 2:
        faults.append(f"--hosts {o.hosts} --ranks {o.ranks}: a collective needs two ranks or more")
    if world > _MOST_RANKS:
        faults.append(f"--hosts {o.hosts} --ranks {o.ranks}: {world} ranks; at most {_MOST_RANKS}")
    faults += [f"--{n} is {getattr(o, n)}; expected more than 0" for n in ("seconds", "limit") if not getattr(o, n) > 0]
    if o.gap is not None and not 0 <= o.gap <= 1000:
        faults.append(f"--gap is {o.gap}; expected 0 to 1000 ms")
    if o.device and o.wire:
        faults.append("--device measures what torch.distributed has, and that has no --wire")
    if o.copy_rate is not None and not (o.device and o.copy_rate > 0):
        faults.append(f"--copy-rate is {o.copy_rate}; expected more than 0, and --device")
    if o.wire and (o.collective == "allgather" or o.dtype != "float32"):
        faults.append("--wire compresses float32 sums; leave out --dtype, and use allreduce or reduce_scatter")
    try:
        bytes_per_second(o.rate)
    except argparse.ArgumentTypeError as exc:
        faults.append(f"--rate: {exc}")
    unit = np.dtype(o.dtype).itemsize * (1 if o.collective == "allreduce" else max(world, 1))
    faults += [f"size {s} is not a multiple of {unit} bytes, the same share for each rank" for s in o.sizes if s % unit]
    if not any(o.collective in peers.ALL[n].collectives for n in o.peers):
        faults.append(f"none of {', '.join(o.peers)} has {o.collective}")
    for path in (o.json, o.plot):
        if path is not None and not path.resolve().parent.is_dir():
            faults.append(f"{path}: its folder is not there")
    return faults


def chosen(options: argparse.Namespace) -> tuple[list[peers.Peer], dict[str, str]]:
    """The peers that can run, and why the others can't."""
    run_them, absent = [], {}
    for peer in (peers.ALL[name] for name in options.peers):
        why = peer.missing()
        if options.device and not peer.devices:
            why = "it isn't measured with --device"
        if options.collective not in peer.collectives:
            why = f"it isn't measured with {options.collective}"
        if why:
            absent[peer.name] = why
        else:
            run_them.append(peer.on(options.device) if options.device else peer)
    return run_them, absent


def machine() -> dict[str, Any]:
    """What the numbers depend on beside the code."""
    models = re.findall(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return {
        "cpu": models[0] if models else platform.processor(),
        "processors": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "load": os.getloadavg(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def say(text: str) -> None:
    """One line about what happens, beside the results."""
    print(text, file=sys.stderr, flush=True)


def network_of(hosts: int, rate: str, loopback: bool = False) -> Any:
    """The hosts to run on, as a context manager. One host has no link: what its ranks send stays inside."""
    if hosts == 1:
        return OneHost()
    if loopback:
        return Loopback(hosts)
    from hdp.runtime.emulation import Network

    return Network(hosts=hosts, rate=rate)


def measured(options: argparse.Namespace, run_them: Sequence[peers.Peer]) -> Results:
    """Run the rounds."""
    asked = Options(
        sizes=options.sizes,
        per_host=options.ranks,
        collective=options.collective,
        dtype=options.dtype,
        wire=options.wire,
        rounds=options.rounds,
        iterations=options.iterations,
        seconds=options.seconds,
        gap=None if options.gap is None else options.gap / 1e3,
        limit=options.limit,
        together=options.together,
    )
    with network_of(options.hosts, options.rate, options.loopback) as network:
        between = stream.copy_rates if options.hosts == 1 and not options.device else None
        return run(network, run_them, asked, say, between)


def bound_of(options: argparse.Namespace) -> report.Bound:
    """What no library can be faster than."""
    if options.device:
        world = options.hosts * options.ranks
        return report.Bound(lambda size: world * size, options.copy_rate and options.copy_rate * 1e9)
    rate = None if options.hosts == 1 or options.loopback else bytes_per_second(options.rate)
    return report.Bound(lambda size: report.least_bytes(options.collective, size, options.hosts), rate)


def title_of(options: argparse.Namespace) -> str:
    """What was measured, in a line."""
    rate = "loopback" if options.loopback else options.rate
    place = f"{options.hosts} hosts x {options.ranks} ranks, {rate}"
    if options.hosts == 1:
        place = f"1 host x {options.ranks} ranks, no network"
    wire = f", hdp with {options.wire} on the wire" if options.wire else ""
    gap = "1.5 ms below 1 MiB, else 0" if options.gap is None else f"{options.gap:g} ms"
    device = f" on {options.device}" if options.device else ""
    return f"{options.collective} of {options.dtype}{device}, {place}{wire}; gap {gap}; {options.rounds} rounds"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write. Exit code 1: hdp or a peer failed."""
    options = parsed(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    run_them, absent = chosen(options)
    for name, why in absent.items():
        say(f"{name} is left out: {why}")
    if not run_them:
        say("nothing is left to measure")
        return 1
    before = machine()
    results = measured(options, run_them)
    bound = bound_of(options)
    bounds = {size: bound.seconds(size) for size in options.sizes} if bound.rate else {}
    table = report.rows(results.samples, bound)
    judged = report.verdicts(table)
    report.show(table, judged, title_of(options), bounds)
    print(_notes(options, results, before))
    if options.json:
        everything = {
            "command": shlex.join(sys.argv),
            "options": {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items()},
            "machine": before,
            "load_after": os.getloadavg(),
            "absent": absent,
            "bound_seconds": bounds,
            **report.to_json(table, judged),
            "measured": asdict(results),
        }
        options.json.write_text(json.dumps(everything, indent=1) + "\n")
    if options.plot and table:
        report.plot(table, title_of(options), options.plot, bounds)
    return 1 if results.failed else 0


def _notes(options: argparse.Namespace, results: Results, before: dict[str, Any]) -> str:
    lines = [
        "CPU: all ranks, and hdp's servers, during the operations; not mpirun and its daemons.",
        f"{before['cpu']}, {before['processors']} processors; load {before['load'][0]:.1f} before, "
        f"{os.getloadavg()[0]:.1f} after. " + ", ".join(f"{n} {v}" for n, v in _versions(results).items()),
    ]
    if options.hosts > 1 and not options.loopback:
        lines.insert(0, "sent: the busiest host's bytes over the least possible; raw as the interface counts them.")
    if results.between:
        lines.insert(0, stream.summary(results.between))
    lines += [f"{name} FAILED: {why}" for name, why in results.failed.items()]
    return "\n".join(lines)


def _versions(results: Results) -> dict[str, str]:
    return {name: version for versions in results.versions.values() for name, version in versions.items()}


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HdpError as exc:
        say(f"allreduce.py: {exc}")
        sys.exit(1)
    except KeyboardInterrupt:
        say("interrupted; everything that was started has been ended")
        sys.exit(130)
