"""How fast bytes go between host memory and the device: GB/s each way, alone and both at once, pinned and pageable.

    python benchmarks/copies.py --device cuda --json copies.json

What a collective on a GPU's tensors can't beat, while they are staged through host memory: every rank's bytes have to
get off the device and back on it. Each way is checked, then timed --repeats times; the table has the medians. With
--device cpu copies within memory take their place, to try the benchmark.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from allreduce import size_bytes
from torch import Tensor


@dataclass(frozen=True)
class Rates:
    """GB/s, medians. both: of each way, while the other one runs too."""

    off_pinned: float
    on_pinned: float
    both_pinned: float
    off_pageable: float
    on_pageable: float


class Cuda:
    """A GPU's memory, with a stream for each way."""

    name = "cuda"

    def __init__(self) -> None:
        self.device = torch.device("cuda")
        self._off, self._on = torch.cuda.Stream(), torch.cuda.Stream()

    def host(self, size: int, pinned: bool) -> Tensor:
        return torch.zeros(size, dtype=torch.uint8, pin_memory=pinned)

    def copy_off(self, device: Tensor, host: Tensor) -> None:
        with torch.cuda.stream(self._off):
            host.copy_(device, non_blocking=True)

    def copy_on(self, host: Tensor, device: Tensor) -> None:
        with torch.cuda.stream(self._on):
            device.copy_(host, non_blocking=True)

    def settle(self) -> None:
        torch.cuda.synchronize()


class Cpu:
    """Memory in a device's place."""

    name = "cpu"
    device = torch.device("cpu")

    def host(self, size: int, pinned: bool) -> Tensor:  # noqa: ARG002  (all of it is alike)
        return torch.zeros(size, dtype=torch.uint8)

    def copy_off(self, device: Tensor, host: Tensor) -> None:
        host.copy_(device)

    def copy_on(self, host: Tensor, device: Tensor) -> None:
        device.copy_(host)

    def settle(self) -> None:
        """Nothing is done later."""


def measure(place: Cuda | Cpu, size: int, repeats: int) -> Rates:
    """Copy `size` bytes each way, `repeats` times. Raises AssertionError: something else arrived."""
    there, back = (torch.zeros(size, dtype=torch.uint8, device=place.device) for _ in range(2))
    pattern = (torch.arange(size) % 251).to(torch.uint8)
    rates = {}
    for kind in ("pinned", "pageable"):
        source, target = place.host(size, kind == "pinned"), place.host(size, kind == "pinned")
        source.copy_(pattern)
        place.copy_on(source, there)
        place.settle()
        place.copy_off(there, target)
        place.settle()
        if not torch.equal(target, pattern):
            raise AssertionError(f"{kind}: other bytes came back than were sent")
        on, off = (lambda s=source: place.copy_on(s, back)), (lambda t=target: place.copy_off(there, t))
        rates[f"on_{kind}"] = _rate(place, size, repeats, on)
        rates[f"off_{kind}"] = _rate(place, size, repeats, off)
        if kind == "pinned":
            rates["both_pinned"] = _rate(place, size, repeats, lambda a=on, b=off: (a(), b()))
    return Rates(**rates)


def _rate(place: Cuda | Cpu, size: int, repeats: int, copy: Callable[[], object]) -> float:
    copy()
    place.settle()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        copy()
        place.settle()
        times.append(time.perf_counter() - began)
    return size / statistics.median(times) / 1e9


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    about, _, more = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=about, epilog=more, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--size", type=size_bytes, default=256 << 20, help="of a copy (default 256MiB)")
    parser.add_argument("--repeats", type=int, default=10, help="default 10")
    parser.add_argument("--json", type=Path, help="write what was measured to this file")
    options = parser.parse_args(arguments)
    if options.repeats < 1:
        parser.error(f"--repeats is {options.repeats}; expected 1 or more")
    place = Cuda() if options.device == "cuda" else Cpu()
    rates = measure(place, options.size, options.repeats)
    print(
        f"pinned    {rates.off_pinned:6.1f} GB/s off the device, {rates.on_pinned:6.1f} on it, "
        f"{rates.both_pinned:6.1f} each way at once"
        f"\npageable  {rates.off_pageable:6.1f} GB/s off the device, {rates.on_pageable:6.1f} on it"
    )
    if options.json:
        found = {"command": shlex.join(sys.argv), "size": options.size, "repeats": options.repeats, **asdict(rates)}
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
