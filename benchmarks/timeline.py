"""What writing a timeline (HDP_TIMELINE=1) costs: hdp beside hdp, one of the two with it, in the same rounds.

    python benchmarks/timeline.py
    python benchmarks/timeline.py --sizes 8,1KiB,1MiB --rounds 9 --no-step --json timeline.json

Both are alive throughout and measured in turn, on the same emulated hosts: an allreduce at each size, one operation
after the other without a pause, and then the training step of `step.py` under DistributedDataParallel. Each round gives
a ratio of medians, with the timeline to without; shown are the ratios' median and quartiles. So what the machine does
meanwhile is in both halves of a ratio, and the quartiles say how much of it isn't.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import keras_timeline
import measure
import peers
import training
from allreduce import machine, network_of, say, sizes_list
from models import MODELS
from training_options import exit_with, write

PLAIN, TRACED = "hdp", "hdp-traced"
SIZES = "8,1KiB,16KiB,64KiB,256KiB,1MiB,16MiB"


@dataclass(frozen=True)
class Ratio:
    """With a timeline to without."""

    what: str
    seconds: float
    """Without; the median over rounds."""
    median: float
    lower: float
    upper: float
    rounds: int
    cpu: float
    """Processor time, likewise."""


def ratio_of(what: str, plain: Sequence[tuple[float, float]], traced: Sequence[tuple[float, float]]) -> Ratio:
    """plain, traced: seconds and processor seconds of each round, in the same order."""
    ratios = [with_it[0] / without[0] for without, with_it in zip(plain, traced, strict=True)]
    lower, middle, upper = statistics.quantiles(ratios, method="inclusive") if len(ratios) > 1 else ratios * 3
    cpu = statistics.median(with_it[1] / without[1] for without, with_it in zip(plain, traced, strict=True))
    seconds = statistics.median(without[0] for without in plain)
    return Ratio(what, seconds, middle, lower, upper, len(ratios), cpu)


def of_operations(samples: Mapping[str, Mapping[int, Sequence[measure.Sample]]]) -> list[Ratio]:
    """A ratio for each size, in bytes."""
    found = []
    for size, plain in samples[PLAIN].items():
        pairs = [[(statistics.median(s.times), s.cpu) for s in of] for of in (plain, samples[TRACED][size])]
        found.append(ratio_of(f"allreduce of {size:,} bytes", *pairs))
    return found


def of_steps(samples: Mapping[str, Sequence[training.Sample]]) -> Ratio:
    """The ratio of the training step."""
    pairs = [[(statistics.median(s.steps), s.cpu) for s in samples[name]] for name in (PLAIN, TRACED)]
    return ratio_of("training step, DDP", *pairs)


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    about, _, more = (__doc__ or "").partition("\n\n")
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=about, epilog=more, formatter_class=formatter)
    add = parser.add_argument
    add("--hosts", type=int, default=2, help="emulated hosts (default 2)")
    add("--ranks", type=int, default=2, help="ranks a host (default 2)")
    add("--rate", default="10gbit", help="of each host's link, each way (default 10gbit)")
    add("--sizes", type=sizes_list, default=sizes_list(SIZES), help=f"of the allreduce (default {SIZES})")
    add("--rounds", type=int, default=7, help="default 7")
    add("--seconds", type=float, default=1.0, help="about how long a size is measured in a round (default 1)")
    add("--step", action=argparse.BooleanOptionalAction, default=True, help="whether the training step is measured too")
    add("--model", choices=sorted(MODELS), default="resnet50", help="of the step (default resnet50)")
    add("--batch", type=int, default=4, help="images a rank and step (default 4)")
    add("--steps", type=int, default=2, help="steps a round (default 2)")
    add("--json", type=Path, help="write everything measured to this file")
    return parser.parse_args(arguments)


def measured(options: argparse.Namespace, folder: Path) -> tuple[list[Ratio], dict[str, str]]:
    """Ratios, and why something failed."""
    plain = peers.ALL["hdp"]
    traced = keras_timeline.writing(replace(plain, name=TRACED), folder)
    asked = measure.Options(
        sizes=options.sizes, per_host=options.ranks, rounds=options.rounds, seconds=options.seconds, gap=0.0
    )
    with network_of(options.hosts, options.rate) as network:
        operations = measure.run(network, [plain, traced], asked, say)
    if operations.failed:
        return [], operations.failed
    ratios = of_operations(operations.samples)
    if not options.step:
        return ratios, {}
    library = training.LIBRARIES["hdp"]
    both = {PLAIN: library, TRACED: keras_timeline.writing(replace(library, name=TRACED), folder)}
    rounds = training.Rounds(options.rounds, options.steps, halves=False)
    workload, program = training.Workload(options.model, options.batch), replace(training.TORCH, libraries=both)
    with network_of(options.hosts, options.rate) as network:
        steps = training.run(network, options.ranks, list(both), workload, rounds, say, program)
    return (ratios, steps.failed) if steps.failed else ([*ratios, of_steps(steps.samples)], {})


def show(ratios: Sequence[Ratio], options: argparse.Namespace) -> None:
    """A line a ratio."""
    print(
        f"HDP_TIMELINE=1 to without, {options.hosts} x {options.ranks} ranks, {options.rate}, {options.rounds} rounds"
    )
    print(f"{'':32}{'ms without':>12}{'ratio':>8}{'quartiles':>16}{'CPU ratio':>11}")
    for r in ratios:
        quartiles = f"{r.lower:.3f}-{r.upper:.3f}"
        print(f"{r.what:32}{1e3 * r.seconds:>12.3f}{r.median:>8.3f}{quartiles:>16}{r.cpu:>11.3f}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write. Exit code 1: hdp failed."""
    options = parsed(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    before = machine()
    with tempfile.TemporaryDirectory(prefix="hdp-bench-") as folder:
        ratios, failed = measured(options, Path(folder))
    for name, why in failed.items():
        say(f"{name} failed: {why}")
    show(ratios, options)
    print(f"{before['cpu']}, {before['processors']} processors; load {before['load'][0]:.1f} before")
    if options.json:
        write(options.json, options, before, ratios=[asdict(r) for r in ratios], failed=failed)
    return 1 if failed else 0


if __name__ == "__main__":
    exit_with(main, "timeline.py")
