"""What memory gives: a plain copy, as STREAM measures it."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence

import numpy as np

_BYTES = 64 << 20  # well beyond the caches
_REPEATS = 5


def copy_rates() -> dict[str, float]:
    """Bytes a second, read and written together, of copying 64 MiB a thread: the best of five, for 1 and 2 threads."""
    return {str(threads): _copy_rate(threads) for threads in (1, 2)}


def _copy_rate(threads: int) -> float:
    pairs = [(np.ones(_BYTES // 8), np.zeros(_BYTES // 8)) for _ in range(threads)]
    best = 0.0
    for _ in range(_REPEATS):
        workers = [threading.Thread(target=np.copyto, args=(target, source)) for source, target in pairs]
        start = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        best = max(best, 2 * threads * _BYTES / (time.perf_counter() - start))
    return best


def summary(rounds: Sequence[dict[str, float]]) -> str:
    """A line about all rounds."""
    rates = {threads: statistics.median(r[threads] for r in rounds) / 1e9 for threads in rounds[0]}
    shown = ", ".join(f"{rate:.1f} GB/s with {threads} thread(s)" for threads, rate in rates.items())
    return f"A NumPy copy of 64 MiB a thread, read and written, median of the rounds: {shown}."
