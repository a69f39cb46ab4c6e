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
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict

import training
import training_report
from allreduce import bytes_per_second, machine, network_of, say
from training_options import add_training, exit_with, faults_of, parser_of, write


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; what can't be measured ends the program here, before anything is started."""
    parser = parser_of(__doc__)
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
    add_training(parser, model="resnet50", batch=4, steps=1)
    options = parser.parse_args(arguments)
    faults = [f"--hosts is {options.hosts}; expected 2 or more"] if options.hosts < 2 else []
    if faults := faults + faults_of(options, options.hosts):
        parser.error("; ".join(faults))
    return options


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
    with network_of(options.hosts, options.rate) as network:
        results = training.run(network, options.ranks, names, workload, rounds, say)
    table = training_report.rows(results, options.hosts, bytes_per_second(options.rate))
    title = (
        f"{options.model}, {results.parameters:,} parameters, batch {options.batch} a rank; "
        f"{options.hosts} hosts x {options.ranks} ranks, {options.rate}; {options.rounds} rounds"
    )
    training_report.show(table, results, title)
    print(f"{before['cpu']}, {before['processors']} processors; load {before['load'][0]:.1f} before")
    if options.json:
        found = {"rows": [asdict(row) for row in table], "measured": asdict(results)}
        write(options.json, options, before, absent=absent, **found)
    if options.plot and table:
        training_report.plot(table, title, options.plot)
    return 1 if results.failed else 0


if __name__ == "__main__":
    exit_with(main, "step.py")
