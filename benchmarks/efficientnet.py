"""Images a second of EfficientNet-B0 over 1, 2 and 4 hosts: backend smddp (hdp by its other name), gloo, one process.

    python benchmarks/efficientnet.py --hosts 1,2,4 --rate 250mbit --json efficientnet.json --plot efficientnet.png

The published comparison of SMDDP with NCCL, in small: the same network on images of 32 x 32, on processors instead of
GPUs, gloo in NCCL's place. Every rank trains on a batch of its own, under DistributedDataParallel with the one line
changed that names the backend. The libraries are alive at once and measured in turn, in rounds; before that their
parameters are compared (see training.py).

The emulated hosts share this machine's processors, so images a second can't grow with the hosts as on a cluster once
there are more ranks than processors. So the table also has the same ranks' images a second with nothing between them
("alone"), and what share of it each backend keeps: that is what the article's scaling efficiency is about. "exposed" is
the part of a step that is communication which nothing hides: the step less that of the same ranks alone.

    python benchmarks/efficientnet.py --device cuda --amp bf16 --model efficientnet_b4_380 --hosts 1 --ranks 4 \
        --batch 16 --backends hdp,gloo

measures it on this machine's GPUs, which the ranks share where there are fewer, on images of the published size. Losses
of --curve steps are compared then too. --loopback: hosts are addresses of this machine, and nothing limits their links.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import training
import training_report
from allreduce import DEVICES, machine, network_of, say
from rich.console import Console
from rich.table import Table
from training_options import add_training, exit_with, faults_of, parser_of, write

_ONE = "one process"


@dataclass(frozen=True)
class Row:
    """One backend on so many hosts; medians over rounds."""

    hosts: int
    backend: str
    images: float
    """Images a second, of all ranks."""
    lower: float
    upper: float
    alone: float | None
    """The same, of the same ranks at once with nothing between them."""
    kept: float | None
    """``images / alone``."""
    exposed: float | None
    """Seconds of a step that are communication which nothing hides."""
    bytes_sent: float
    """A step, by the busiest host."""


def hosts_list(text: str) -> tuple[int, ...]:
    """Numbers of hosts with commas between, for argparse."""
    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError as exc:
        raise argparse.ArgumentTypeError(f"hosts {text!r}; expected for example 1,2,4") from exc


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; what can't be measured ends the program here, before anything is started."""
    parser = parser_of(__doc__)
    add = parser.add_argument
    add("--hosts", type=hosts_list, default=(1, 2, 4), help="numbers of emulated hosts (default 1,2,4)")
    add("--ranks", type=int, default=1, help="ranks a host (default 1)")
    add("--rate", default="250mbit", help="of each host's link, each way (default 250mbit)")
    add("--loopback", action="store_true", help="hosts are addresses of this machine, with nothing between them")
    add("--backends", type=training.names_list, default=("smddp", "gloo"), help="default smddp,gloo")
    add("--device", choices=DEVICES, default="", help="train there, images channels-last (default: the processor)")
    add("--amp", choices=("off", "bf16"), default="off", help="bf16: mixed precision (default off)")
    add("--together", action="store_true", help="start all libraries at once: with a processor for each of their ranks")
    add("--no-alone", action="store_true", help="leave out the one process by itself")
    add("--curve", type=int, default=0, help="steps whose losses are compared beside the three that are checked")
    add_training(parser, model="efficientnet_b0", batch=8, steps=2)
    options = parser.parse_args(arguments)
    faults = [f"--hosts has {n}; expected 1 or more" for n in options.hosts if n < 1]
    if options.curve < 0:
        faults.append(f"--curve is {options.curve}; expected 0 or more")
    if faults := faults + faults_of(options, max(options.hosts)):
        parser.error("; ".join(faults))
    return options


def measured(options: argparse.Namespace) -> dict[int, training.Results]:
    """Results by number of hosts; 0: one process by itself, which takes its turn beside the first number's backends."""
    workload = training.Workload(options.model, options.batch, options.device, options.amp, options.curve)
    halves = options.steps if options.device else 1  # a GPU's steps are short
    rounds = training.Rounds(options.rounds, options.steps, options.limit, half_steps=halves, together=options.together)
    out: dict[int, training.Results] = {}
    for hosts in options.hosts:
        say(f"{hosts} hosts x {options.ranks} ranks")
        names = options.backends if out or options.no_alone else (*options.backends, training.ALONE)
        with network_of(hosts, options.rate, options.loopback) as network:
            results = training.run(network, options.ranks, names, workload, rounds, say)
        if training.ALONE in names:
            alone = results.samples.pop(training.ALONE)
            out[0] = training.Results(samples={training.ALONE: alone}, parameters=results.parameters)
        out[hosts] = results
    return out


def rows(measured: dict[int, training.Results], per_host: int, batch: int) -> list[Row]:
    """A row for each number of hosts and backend."""
    return [
        _row(hosts, name, samples, batch * (hosts * per_host if hosts else 1))
        for hosts, results in measured.items()
        for name, samples in results.samples.items()
        if samples
    ]


def _row(hosts: int, name: str, samples: Sequence[training.Sample], images: int) -> Row:
    rates = [images / statistics.median(sample.steps) for sample in samples]
    middle = statistics.median(rates)
    lower, _, upper = statistics.quantiles(rates, n=4, method="inclusive") if len(rates) > 1 else [middle] * 3
    alone = exposed = None
    computed = [sample.compute for sample in samples if sample.compute is not None]
    if hosts and computed:
        alone = images / statistics.median(computed)
        exposed = images / middle - statistics.median(computed)
    return Row(
        hosts=hosts or 1,
        backend=name if hosts else _ONE,
        images=middle,
        lower=lower,
        upper=upper,
        alone=alone,
        kept=middle / alone if alone else None,
        exposed=exposed,
        bytes_sent=statistics.median(max(sample.sent, default=0.0) for sample in samples),
    )


def show(table: Sequence[Row], everything: dict[int, training.Results], title: str) -> None:
    """Print the table, and what was checked."""
    console = Console(width=None if Console().is_terminal else 130)
    shown = Table(title=title, title_justify="left")
    for name in (
        *("hosts", "backend", "images/s", "quartiles of rounds", "alone", "kept", "exposed ms", "MB sent a step"),
        "over gloo",
    ):
        shown.add_column(name, justify="left" if name == "backend" else "right")
    gloo = {row.hosts: row.images for row in table if row.backend == "gloo"}
    for row in table:
        with_gloo = row.backend != _ONE and row.hosts in gloo
        shown.add_row(
            str(row.hosts),
            row.backend,
            f"{row.images:.1f}",
            f"{row.lower:.1f} .. {row.upper:.1f}",
            "-" if row.alone is None else f"{row.alone:.1f}",
            "-" if row.kept is None else f"{row.kept:.0%}",
            "-" if row.exposed is None else f"{row.exposed * 1e3:.1f}",
            f"{row.bytes_sent / 1e6:.1f}",
            f"{row.images / gloo[row.hosts]:.2f}" if with_gloo else "-",
        )
    console.print(shown)
    for hosts, results in everything.items():
        if hosts:
            console.print(f"{hosts} hosts:")
            training_report.show_checks(console, results)


def plot(table: Sequence[Row], title: str, path: Path) -> None:
    """Draw images a second by hosts, a bar for each backend, with the ranks' own speed above."""
    figure, axes = training_report.figure_of(6.4, 4.4)
    hosts = sorted({row.hosts for row in table if row.backend != _ONE})
    width = 0.36
    for number, backend in enumerate(dict.fromkeys(row.backend for row in table if row.backend != _ONE)):
        mine = [row for row in table if row.backend == backend]
        at = [hosts.index(row.hosts) + (number - 0.5) * width for row in mine]
        errors = [[row.images - row.lower for row in mine], [row.upper - row.images for row in mine]]
        bars = axes.bar(at, [row.images for row in mine], width * 0.94, yerr=errors, capsize=3, label=backend)
        axes.bar_label(bars, [f"{row.images:.1f}\n{row.kept or 0:.0%}" for row in mine], fontsize=7, padding=2)
        label = "the same ranks with nothing between them" if not number else None
        axes.scatter(at, [row.alone for row in mine], marker="_", s=300, color="black", linewidth=1, label=label)
    for row in table:
        if row.backend == _ONE:
            axes.axhline(row.images, color="gray", linewidth=0.8, linestyle="--", label=_ONE)
    axes.set_xticks(range(len(hosts)), [f"{n} host{'s' if n > 1 else ''}" for n in hosts])
    axes.set_ylabel("images/s")
    training_report.finish(figure, axes, title, path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write. Exit code 1: a backend failed, or gave something else than the others."""
    options = parsed(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    before = machine()
    everything = measured(options)
    table = rows(everything, options.ranks, options.batch)
    title = (
        f"{options.model}, {next(iter(everything.values())).parameters:,} parameters, batch {options.batch} a rank; "
        f"{options.ranks} rank{'s' if options.ranks > 1 else ''} a host, "
        f"{'loopback' if options.loopback else options.rate}; "
        f"{options.device or 'cpu'}, amp {options.amp}; {options.rounds} rounds"
    )
    show(table, everything, title)
    print(f"{before['cpu']}, {before['processors']} processors; load {before['load'][0]:.1f} before")
    if options.json:
        found = {hosts or _ONE: asdict(results) for hosts, results in everything.items()}
        write(options.json, options, before, rows=[asdict(row) for row in table], measured=found)
    if options.plot and table:
        plot(table, title, options.plot)
    return 1 if any(results.failed for results in everything.values()) else 0


if __name__ == "__main__":
    exit_with(main, "efficientnet.py")
