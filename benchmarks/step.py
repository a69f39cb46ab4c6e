"""A training step with hdp, gloo and Horovod, side by side on emulated hosts: how much of the communication is hidden.

    python benchmarks/step.py --hosts 4 --ranks 1 --rate 250mbit
    python benchmarks/step.py --hosts 2 --ranks 2 --rate 1gbit --json step.json --plot step.png

Every rank trains a 23.5 million parameter ResNet-50 for images of 32 x 32 (94.1 MB of gradients) on a batch of its own:
hdp and gloo under DistributedDataParallel, Horovod with its DistributedOptimizer. They are alive at once and measured
in turn, in rounds; before that, their parameters are compared (see training.py).

The bound on a step's communication is 2(N-1)/N x gradients over the link's rate; TCP's own headers make 1.05 the least.
"Hidden" is (compute + exchange - step) / min(compute, exchange), with both halves measured alone in the same rounds.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import training
import training_report
from allreduce import bytes_per_second, machine, network_of, say
from models import MODELS

from hdp.contract.errors import HdpError

_MOST_RANKS = 32  # a rank with its framework, twice the model and its gradients has most of a gigabyte


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; what can't be measured ends the program here, before anything is started."""
    about, _, more = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=about, epilog=more, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--hosts", type=int, default=2, help="emulated hosts (default 2)")
    add("--ranks", type=int, default=2, help="ranks a host (default 2)")
    add("--rate", default="1gbit", help="of each host's link, each way (default 1gbit)")
    add(
        "--peers",
        type=training.names_list,
        default=("hdp", "gloo", "horovod-gloo"),
        help="default hdp,gloo,horovod-gloo",
    )
    add("--model", choices=sorted(MODELS), default="resnet50", help="default resnet50")
    add("--batch", type=int, default=4, help="images a rank (default 4)")
    add("--rounds", type=int, default=5, help="default 5; every library once in a round")
    add("--steps", type=int, default=1, help="timed steps a round (default 1)")
    add("--limit", type=float, default=120.0, help="seconds a step after which a library is given up (default 120)")
    add("--json", type=Path, help="write everything measured to this file")
    add("--plot", type=Path, help="draw the table into this file (.png, .svg)")
    options = parser.parse_args(arguments)
    if faults := _faults(options):
        parser.error("; ".join(faults))
    return options


def _faults(o: argparse.Namespace) -> list[str]:
    faults = [
        f"--{name} is {value}; expected {least} or more"
        for name, value, least in (
            ("hosts", o.hosts, 2),
            ("ranks", o.ranks, 1),
            ("batch", o.batch, 2),  # batch normalisation needs two where an image has shrunk to one pixel
            ("rounds", o.rounds, 1),
            ("steps", o.steps, 1),
        )
        if value < least
    ]
    if o.hosts * o.ranks > _MOST_RANKS:
        faults.append(f"--hosts {o.hosts} --ranks {o.ranks}: {o.hosts * o.ranks} ranks; at most {_MOST_RANKS}")
    if not 0 < o.limit < math.inf:
        faults.append(f"--limit is {o.limit}; expected more than 0")
    try:
        bytes_per_second(o.rate)
    except argparse.ArgumentTypeError as exc:
        faults.append(f"--rate: {exc}")
    return faults + training_report.folder_faults(o.json, o.plot)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write. Exit code 1: a library failed, or gave something else than the others."""
    options = parsed(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    names, absent = training.available(options.peers, say)
    if not names:
        say("nothing is left to measure")
        return 1
    before = machine()
    workload = training.Workload(options.model, options.batch)
    rounds = training.Rounds(options.rounds, options.steps, options.limit)
    with network_of(options) as network:
        results = training.run(network, options.ranks, names, workload, rounds, say)
    table = training_report.rows(results, options.hosts, bytes_per_second(options.rate))
    title = (
        f"{options.model}, {results.parameters:,} parameters, batch {options.batch} a rank; "
        f"{options.hosts} hosts x {options.ranks} ranks, {options.rate}; {options.rounds} rounds"
    )
    training_report.show(table, results, title)
    print(f"{before['cpu']}, {before['processors']} processors; load {before['load'][0]:.1f} before")
    if options.json:
        everything: dict[str, Any] = {
            "command": shlex.join(sys.argv),
            "options": {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items()},
            "machine": before,
            "load_after": os.getloadavg(),
            "absent": absent,
            "rows": [asdict(row) for row in table],
            "measured": asdict(results),
        }
        options.json.write_text(json.dumps(everything, indent=1) + "\n")
    if options.plot and table:
        training_report.plot(table, title, options.plot)
    return 1 if results.failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HdpError as exc:
        say(f"step.py: {exc}")
        sys.exit(1)
    except KeyboardInterrupt:
        say("interrupted; everything that was started has been ended")
        sys.exit(130)
