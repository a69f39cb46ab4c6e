"""What the command lines of step.py and efficientnet.py have in common, and the files that they write."""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import training_report
from allreduce import bytes_per_second, say
from models import MODELS

from hdp.contract.errors import HdpError

MOST_RANKS = 32  # a rank with its framework, twice the model and its gradients has most of a gigabyte


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """A parser whose help is the script's docstring."""
    about, _, more = (doc or "").partition("\n\n")
    return argparse.ArgumentParser(description=about, epilog=more, formatter_class=argparse.RawDescriptionHelpFormatter)


def add_training(parser: argparse.ArgumentParser, *, model: str, batch: int, steps: int) -> None:
    """Options of the model, the rounds and the files, with these defaults."""
    add = parser.add_argument
    add("--model", choices=sorted(MODELS), default=model, help=f"default {model}")
    add("--batch", type=int, default=batch, help=f"images a rank (default {batch})")
    add("--rounds", type=int, default=5, help="default 5; every library once in a round")
    add("--steps", type=int, default=steps, help=f"timed steps a round (default {steps})")
    add("--limit", type=float, default=120.0, help="seconds a step after which a library is given up (default 120)")
    add("--json", type=Path, help="write everything measured to this file")
    add("--plot", type=Path, help="draw the table into this file (.png, .svg)")


def faults_of(o: argparse.Namespace, hosts: int) -> list[str]:
    """What can't be measured over so many hosts."""
    faults = [
        f"--{name} is {value}; expected {least} or more"
        for name, value, least in (
            ("ranks", o.ranks, 1),
            ("batch", o.batch, 2),  # batch normalisation needs two where an image has shrunk to one pixel
            ("rounds", o.rounds, 1),
            ("steps", o.steps, 1),
        )
        if value < least
    ]
    if hosts * o.ranks > MOST_RANKS:
        faults.append(f"{hosts} hosts x {o.ranks} ranks: {hosts * o.ranks} ranks; at most {MOST_RANKS}")
    if not 0 < o.limit < math.inf:
        faults.append(f"--limit is {o.limit}; expected more than 0")
    try:
        bytes_per_second(o.rate)
    except argparse.ArgumentTypeError as exc:
        faults.append(f"--rate: {exc}")
    return faults + training_report.folder_faults(o.json, o.plot)


def write(path: Path, options: argparse.Namespace, before: Mapping[str, Any], **more: Any) -> None:
    """Everything that was measured, and how, as JSON. before: the machine, before the run."""
    everything = {
        "command": shlex.join(sys.argv),
        "options": {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items()},
        "machine": before,
        "load_after": os.getloadavg(),
        **more,
    }
    path.write_text(json.dumps(everything, indent=1) + "\n")


def exit_with(main: Callable[[], int], script: str) -> None:
    """Run a script's `main`, and end with its exit code."""
    try:
        sys.exit(main())
    except HdpError as exc:
        say(f"{script}: {exc}")
        sys.exit(1)
    except KeyboardInterrupt:
        say("interrupted; everything that was started has been ended")
        sys.exit(130)
