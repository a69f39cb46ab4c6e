"""A training step of Keras with hdp and Horovod, side by side on emulated hosts: what communication adds to it.

    python benchmarks/keras_step.py --hosts 4 --ranks 1 --rate 250mbit
    python benchmarks/keras_step.py --hosts 2 --ranks 2 --rate 1gbit --json keras.json --plot keras.png
    python benchmarks/keras_step.py --hosts 2 --ranks 2 --rate 1gbit --small

Every rank trains a ResNet for images of 32 x 32 on a batch of its own: the same script, in which one line differs, the
DistributedGradientTape (Horovod's DistributedOptimizer does not reduce under Keras 3). The libraries are alive at once
and measured in turn, in rounds; before that, gradients, parameters and losses are compared. `make horovod-tensorflow`
installs Horovod.

"Compute" is the step of the bare model, on all ranks at once, since they share the processors; "exposed" is what a step
takes beyond that; "communication" the reduction of a step's gradients by itself. The bound is 2(N-1)/N x gradients over
the link's rate; TCP's own headers make 1.05 the least. When hdp's buckets left in its last step says its timeline.

--small: no model, but 1,000 gradients of 4 KiB that are there already.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import keras_report
import keras_timeline
import peers
import training
from allreduce import bytes_per_second, machine, network_of, say
from processes import own_folder
from training_options import exit_with, faults_of, parser_of, write

MODELS = ("resnet26", "resnet50", "tiny")
_CHECKED_STEPS = 8
_PYTHON = peers.environment("horovod-tensorflow") / "bin" / "python"
LIBRARIES = {
    "hdp": peers.ALL["hdp"],
    **{
        name: replace(peers.ALL[name], module="horovod", python=_PYTHON, make="make horovod-tensorflow")
        for name in ("horovod-gloo", "horovod-mpi")
    },
}


def names_list(text: str) -> tuple[str, ...]:
    """Names of libraries with commas between, for argparse."""
    names = tuple(dict.fromkeys(text.split(",")))
    if unknown := [name for name in names if name not in LIBRARIES]:
        raise argparse.ArgumentTypeError(
            f"no library {', '.join(map(repr, unknown))}; there are {', '.join(LIBRARIES)}"
        )
    return names


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; what can't be measured ends the program here, before anything is started."""
    parser = parser_of(__doc__)
    add = parser.add_argument
    add("--hosts", type=int, default=2, help="emulated hosts (default 2)")
    add("--ranks", type=int, default=2, help="ranks a host (default 2)")
    add("--rate", default="1gbit", help="of each host's link, each way (default 1gbit)")
    add("--peers", type=names_list, default=("hdp", "horovod-gloo"), help="default hdp,horovod-gloo")
    add("--model", choices=MODELS, default=MODELS[0], help=f"default {MODELS[0]}")
    add("--small", action="store_true", help="no model: 1,000 gradients of 4 KiB")
    add("--batch", type=int, default=4, help="images a rank (default 4)")
    add("--bucket-cap", type=float, help="megabytes of hdp's buckets (by default the library's own choice)")
    add("--rounds", type=int, default=5, help="default 5; every library once in a round")
    add("--steps", type=int, default=5, help="timed steps a round (default 5)")
    add("--limit", type=float, default=120.0, help="seconds a step after which a library is given up (default 120)")
    add("--json", type=Path, help="write everything measured to this file")
    add("--plot", type=Path, help="draw the table into this file (.png, .svg)")
    options = parser.parse_args(arguments)
    faults = [f"--hosts is {options.hosts}; expected 2 or more"] if options.hosts < 2 else []
    if options.bucket_cap is not None and not options.bucket_cap > 0:
        faults.append(f"--bucket-cap is {options.bucket_cap}; expected more than 0")
    if faults := faults + faults_of(options, options.hosts):
        parser.error("; ".join(faults))
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write. Exit code 1: a library failed, or gave something else than the others."""
    options = parsed(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    before, workload = machine(), training.Workload("small" if options.small else options.model, options.batch)
    rounds = training.Rounds(options.rounds, options.steps, options.limit, not options.small, _CHECKED_STEPS)
    with tempfile.TemporaryDirectory(dir=own_folder()) as folder, network_of(options.hosts, options.rate) as network:
        program = _program(options, Path(folder))
        names, absent = training.available(options.peers, say, program)
        if not names:
            say("nothing is left to measure")
            return 1
        results = training.run(network, options.ranks, names, workload, rounds, say, program)
        traced = keras_timeline.read(Path(folder))
    _compare_losses(results)
    table = keras_report.rows(results, options.hosts, bytes_per_second(options.rate))
    title = _title(options, results)
    keras_report.show(table, results, title)
    if traced:
        print(keras_timeline.text_of(traced[-1]))
    print(f"{before['cpu']}, {before['processors']} processors; load {before['load'][0]:.1f} before")
    if options.json:
        found: dict[str, Any] = {"rows": [asdict(row) for row in table], "measured": asdict(results)}
        write(options.json, options, before, absent=absent, timeline=[asdict(step) for step in traced], **found)
    if options.plot and table:
        keras_report.plot(table, title, options.plot)
    return 1 if results.failed else 0


def _title(options: argparse.Namespace, results: training.Results) -> str:
    what = f"Keras {options.model}, {results.parameters:,} parameters, batch {options.batch} a rank"
    if options.small:
        what = "1,000 gradients of 4 KiB, reduced in a tf.function"
    return f"{what}; {options.hosts} hosts x {options.ranks} ranks, {options.rate}; {options.rounds} rounds"


def _program(options: argparse.Namespace, folder: Path) -> training.Program:
    """What the ranks run. hdp's write timelines, a few events a step, into `folder`."""
    hdp = keras_timeline.writing(LIBRARIES["hdp"], folder)
    if options.bucket_cap is not None:
        hdp = replace(hdp, module=f"hdp:{options.bucket_cap}")
    return training.Program("keras_rank.py", {**LIBRARIES, "hdp": hdp})


def _compare_losses(results: training.Results) -> None:
    """Note it as a failure where libraries that train the same have other losses."""
    if len(results.losses) > 1 and not (far := keras_report.apart(results.losses)) <= keras_report.LOSS_TOLERANCE:
        results.failed["losses"] = (
            f"they differ by {far:.3g} of their size between {', '.join(results.losses)}, and rounding explains "
            f"{keras_report.LOSS_TOLERANCE:g}"
        )


if __name__ == "__main__":
    exit_with(main, "keras_step.py")
