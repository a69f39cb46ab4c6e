"""Build the core, check it and measure it on this machine's GPU: `device.sh` sets the path and runs this.

Steps, each with a time limit; one that fails is reported, and the rest goes on:

- build      libhdp_core.so, by cmake, into build/device
- copies     GB/s between host memory and the GPU: what bounds everything else (copies.py)
- checks     every collective and dtype on tensors of the GPU, several programs beside each other
- allreduce  hdp beside gloo: 1 x 2 and 1 x 4 ranks that share the GPU, 2 hosts x 2 over loopback (allreduce.py)
- train      EfficientNet-B0 and B4 under DDP on 2 and 4 ranks: hdp, gloo and one process (efficientnet.py)

The folder --out gets a log and a JSON file of every part, and ``device.json`` with all of it. Exit code 1: a check or a
measurement failed; 2: there is no GPU. --device cpu goes through all of it on the processor, to try it, and --device
fake with the tests' fake driver in a GPU's place: those numbers say nothing about a GPU.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import allreduce
import device_plan
import device_report
from device_plan import Plan, Step

ROOT = Path(__file__).resolve().parents[1]


def no_gpu() -> str | None:
    """Why there is none; None: the driver has one. It's asked itself, since torch takes seconds to."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as exc:
        return f"the driver's library can't be loaded: {exc}"
    count = ctypes.c_int()
    if error := driver.cuInit(0):
        return f"the driver does not start: error {error}"
    if error := driver.cuDeviceGetCount(ctypes.byref(count)):
        return f"the driver does not count its devices: error {error}"
    return None if count.value else "the driver has no device"


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    about, _, more = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="device.sh", description=about, epilog=more, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--device", choices=device_plan.DEVICES, default="cuda", help="cpu, fake: try it without a GPU (default cuda)")
    add("--quick", action="store_true", help="less of everything: one shape, two sizes, B0 on small images")
    add("--only", type=steps_list, default=tuple(device_plan.STEPS), help="steps with commas between (default: all)")
    add("--out", type=Path, default=ROOT / "build" / "device-results", help="folder of logs and results")
    add("--limit", type=float, default=345.0, help="seconds for all steps together (default 345)")
    options = parser.parse_args(arguments)
    if not options.limit > 0:
        parser.error(f"--limit is {options.limit}; expected more than 0")
    return options


def steps_list(text: str) -> tuple[str, ...]:
    """Names of steps with commas between, for argparse; in their order."""
    names = set(text.split(","))
    if unknown := sorted(names - set(device_plan.STEPS)):
        raise argparse.ArgumentTypeError(f"no step {', '.join(unknown)}; there are {', '.join(device_plan.STEPS)}")
    return tuple(name for name in device_plan.STEPS if name in names)


_ASKED = """
import json, torch
gpus = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
names = [torch.cuda.get_device_name(i) for i in gpus]
print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda, "gpus": names}))
"""


def machine(device: str) -> dict[str, Any]:
    """What the numbers depend on beside the code. Another process asks torch: this one stays off the GPU."""
    environ = os.environ if device == "cuda" else {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", _ASKED]
    try:
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=True)
        said = json.loads(done.stdout)
    except (subprocess.SubprocessError, ValueError) as exc:
        said = {"torch": f"can't be asked: {exc}"}
    return {**allreduce.machine(), **said, "architecture": platform.machine(), "commit": commit()}


def commit() -> str:
    """Of this tree; "": it is no clone."""
    try:
        asked = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
        return subprocess.run(asked, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps, print the tables, write the results."""
    options = parsed(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if options.device == "cuda" and (why := no_gpu()):
        print(f"device.sh: there is no GPU here ({why}); --device cpu tries the program without one", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    plan = Plan(ROOT, options.out.resolve(), options.device, options.quick, began + options.limit)
    where, steps = machine(options.device), []
    for name in options.only:
        device_report.say(f"-- {name}")
        steps.append(device_plan.run(name, plan))
        device_report.say(device_report.line_of(steps[-1]))
    everything = {
        "command": shlex.join(["sh", "benchmarks/device.sh", *sys.argv[1:]]),
        "machine": where,
        "device": options.device,
        "quick": options.quick,
        "seconds": round(time.monotonic() - began, 1),
        "steps": {step.name: step.to_json() for step in steps},
    }
    (options.out / "device.json").write_text(json.dumps(everything, indent=1) + "\n")
    device_report.show(everything)
    device_report.say(f"{options.out / 'device.json'} has all of it, the logs are beside it")
    return exit_code(steps)


def exit_code(steps: Sequence[Step]) -> int:
    """1: a step failed."""
    return 1 if any(step.faults for step in steps) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        device_report.say("interrupted; everything that was started has been ended")
        sys.exit(130)
