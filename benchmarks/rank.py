"""One rank of one peer: ``rank.py MODULE CONTROL_SOCKET BARRIER_FILE BASE_FILE WIRE``. It does what `session` asks.

MODULE may have arguments for its `join`: ``tensors:gloo:cuda``.

A timed operation: the buffer is refilled, as training would; the gap, if any, passes with nobody on the wire; all ranks
meet at a barrier off the wire; the clock runs around the operation alone; all ranks meet again. Processor time is this
process's, from the clock's start to behind the second barrier, so that what a library does in threads of its own
counts, and the refill does not.

Element i of rank r's data is i % 97 + r: sums are exact in every dtype that is offered, and differ by index and rank.
"""

from __future__ import annotations

import gc
import importlib
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from barrier import Barrier
from control import serve
from peers.rank import Array, Rank

#: Relative error of a sum of bfloat16, of which each term and then the sum was rounded to 8 bits.
_ROUNDED_TWICE = (1 + 2.0**-8) ** 2 - 1 + 2.0**-20
_CHECKED_AT_ONCE = 1 << 20  # elements, so that a check needs little memory


class Run:
    """One collective of one size: its buffers, checked and timed."""

    def __init__(self, rank: Rank, base: Array, asked: dict[str, Any], exact: bool) -> None:
        self._me, self._tolerance = rank, 0.0 if exact else _ROUNDED_TWICE
        elements = asked["bytes"] // base.itemsize
        self._base = base[:elements]
        self._wanted: Array | None = None
        """What is summed over the ranks into the output; None: the ranks' inputs follow one another in it."""
        share = elements // rank.size
        memory = self._memory = rank.memory
        whole = memory.empty(elements, base.dtype)
        own = slice(rank.rank * share, (rank.rank + 1) * share)
        if asked["collective"] == "allreduce":
            self._input, self._output, self._wanted = whole, whole, self._base
            self.operation = rank.allreduce(whole)
        elif asked["collective"] == "allgather":
            self._input, self._output = memory.empty(share, base.dtype), whole
            self.operation = rank.allgather(self._input, whole)
        else:
            self._input, self._output, self._wanted = whole, memory.empty(share, base.dtype), self._base[own]
            self.operation = rank.reduce_scatter(whole, self._output)
        self._source = memory.source(self._base[: len(self._input)])

    def refill(self) -> None:
        """The input of a new operation."""
        self._memory.add(self._source, self._me.rank, self._input)
        self._memory.settle()

    def check(self) -> None:
        """Raise AssertionError unless the last operation's output is what it must be."""
        size, sum_of_ranks = self._me.size, sum(range(self._me.size))
        for at in range(0, len(self._output), _CHECKED_AT_ONCE):
            got = self._memory.host(self._output[at : at + _CHECKED_AT_ONCE])
            if self._wanted is not None:
                expected = self._wanted[at : at + _CHECKED_AT_ONCE] * size + sum_of_ranks
            else:
                index = np.arange(at, at + len(got))
                share = len(self._input)
                expected = self._base[index % share] + (index // share).astype(self._base.dtype)
            wrong = np.abs(got - expected) > np.abs(expected) * self._tolerance
            if wrong.any():
                i = int(np.argmax(wrong))
                raise AssertionError(
                    f"rank {self._me.rank}: element {at + i} is {got[i]}, expected {expected[i]}; {int(wrong.sum())} "
                    f"of {len(got)} elements from {at} on are wrong"
                )

    def time(self, barrier: Barrier, iterations: int, gap: float) -> dict[str, list[float]]:
        """Times of operations, in seconds: clock's start, clock's stop, and processor time."""
        started, stopped, cpu = [], [], []
        clock, used, operation, settle = time.monotonic, time.process_time, self.operation, self._memory.settle
        gc.disable()
        for _ in range(iterations):
            self.refill()
            if gap:
                time.sleep(gap)
            barrier.wait()
            before, start = used(), clock()
            operation()
            settle()
            stop = clock()
            barrier.wait()
            cpu.append(used() - before)
            started.append(start)
            stopped.append(stop)
        gc.enable()
        return {"started": started, "stopped": stopped, "cpu": cpu}


class Loop:
    """Answers to the coordinator's requests, until it closes the connection."""

    def __init__(self, rank: Rank, barrier: Barrier, base_file: str, exact: bool) -> None:
        self._me, self._barrier, self._exact = rank, barrier, exact
        self._base = np.memmap(base_file, np.uint8, "r")
        self._run: Run | None = None

    def hello(self) -> dict[str, Any]:
        """Who this is."""
        return {"rank": self._me.rank, "size": self._me.size, "versions": self._me.versions}

    def close(self) -> None:
        """Leave."""
        self._me.close()

    def prepare(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Make the buffers, check one operation, and time some more."""
        self._run = Run(self._me, np.asarray(self._base).view(asked["dtype"]), asked, self._exact)
        self._run.refill()
        self._barrier.wait()
        self._run.operation()
        self._me.memory.settle()
        self._run.check()
        return self._run.time(self._barrier, asked["iterations"], asked["gap"])

    def measure(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Time operations, and check the last one."""
        assert self._run is not None
        times = self._run.time(self._barrier, asked["iterations"], asked["gap"])
        self._run.check()
        return times

    def drop(self, _: dict[str, Any]) -> dict[str, Any]:
        """Give the buffers back."""
        self._run = None
        return {}


def main(module: str, control: str, barrier_file: str, base_file: str, wire: str) -> int:
    """Join, then answer."""

    def join() -> Loop:
        name, *arguments = module.split(":")
        rank: Rank = importlib.import_module(f"peers.{name}").join(wire, *arguments)
        return Loop(rank, Barrier(barrier_file, rank.rank, rank.size), base_file, not wire)

    return serve(control, join)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    sys.exit(main(*sys.argv[1:]))
