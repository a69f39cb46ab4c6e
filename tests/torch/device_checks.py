"""What must hold for tensors of a device. A program for torchrun, on a real GPU as well:

    PYTHONPATH=runtime python -m torch.distributed.run --nproc_per_node 2 tests/torch/device_checks.py \
        [--device cuda|fake|cpu] [--json FILE] [--list] [NAME ...]

--device cuda (the default): local rank r takes GPU ``r % torch.cuda.device_count()``, so ranks may share one.
--device fake: CPU tensors stand for a GPU's, behind the fake driver that $HDP_CUDA_DRIVER names (`fake_tensors`).
--device cpu: plain CPU tensors; only shows that the checks themselves are right.
NAME: some of `CHECKS`, else all of them, in this order. --list prints their names and exits.

Rank 0 prints ``NAME: fine, 1.23 s`` for each check; the first one that fails ends the program with its traceback on the
rank where it failed, and exit code 1. --json: rank 0 writes ``{"device": ..., "name": of the GPU, "world_size": ...,
"torch": version, "checks": {NAME: seconds}, "failed": {NAME: text}}``, also where a check fails. Any number of ranks
from 2 on, one node or several. Nothing but torch, NumPy and hdp's runtime is needed.
"""

import argparse
import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import device_parts
import torch
import torch.distributed as dist

CHECKS = {check.__name__: check for check in device_parts.CHECKS}


@dataclass
class Results:
    """What came of the checks."""

    checks: dict = field(default_factory=dict)
    failed: dict = field(default_factory=dict)


def everything(here, names, results):
    """Run checks on the device of `here`, in the default process group; the first failure ends it. Fills `results`."""
    for name in names or CHECKS:
        began = time.monotonic()
        try:
            with torch.device(here.device):
                CHECKS[name](here)
            dist.barrier()
        except BaseException as exc:
            results.failed[name] = f"rank {dist.get_rank()}: {type(exc).__name__}: {exc}"
            raise
        results.checks[name] = round(time.monotonic() - began, 2)
        if dist.get_rank() == 0:
            print(f"{name}: fine, {results.checks[name]:.2f} s", flush=True)


def _here(kind):
    """Where this rank's tensors are to be."""
    if kind == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        return device_parts.Here(torch.device("cuda", torch.cuda.current_device()))
    if kind == "fake":
        import fake_tensors  # needs the fake driver

        return device_parts.Here(torch.device("cpu"), fake_tensors.install())
    return device_parts.Here(torch.device("cpu"))


def main():
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("cuda", "fake", "cpu"), default="cuda")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("names", nargs="*", metavar="NAME")
    given = parser.parse_args()
    if given.list:
        print("\n".join(CHECKS))
        return
    unknown = sorted(set(given.names) - set(CHECKS))
    if unknown:
        sys.exit(f"no such check: {', '.join(unknown)}; there are {', '.join(CHECKS)}")
    here = _here(given.device)
    dist.init_process_group("hdp")
    results = Results()
    try:
        everything(here, given.names, results)
    finally:
        if given.json is not None and dist.get_rank() == 0:
            _write(given.json, given.device, here.device, results)
    dist.destroy_process_group()


def _write(path, kind, device, results):
    told = {
        "device": kind,
        "name": torch.cuda.get_device_name(device) if device.type == "cuda" else "",
        "world_size": dist.get_world_size(),
        "torch": torch.__version__,
        "checks": results.checks,
        "failed": results.failed,
    }
    path.write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()
