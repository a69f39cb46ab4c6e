"""Memory and descriptors: bounded during one huge operation, flat over many small ones."""

import ctypes
import gc
import itertools
import os
import statistics
import threading
from pathlib import Path

import numpy as np
import pytest
from cluster import Cluster

import hdp.collectives as hc
from hdp.collectives.library import DType, Kind, ReduceOp

MIB = 1 << 20


# ---- one huge operation ----------------------------------------------------------------------------------------------

HUGE_BYTES = 1 << 30
BOUND_BYTES = 200 * MIB
#: What the machine needs beside the tensors: the bound for each host, and the rest of the test.
NEEDED_BYTES = 4 * HUGE_BYTES + 2 * BOUND_BYTES + (1 << 30)
_tensor = None  # of a rank


def _allocate(comm):
    """A tensor of 1 GiB that repeats 0 .. 65520, times the rank + 1. No other memory stays in use."""
    global _tensor
    _tensor = np.empty(HUGE_BYTES // 4, np.float32)
    for start in range(0, _tensor.size, 65521):
        part = _tensor[start : start + 65521]
        np.multiply(np.arange(part.size, dtype=np.float32), comm.rank + 1, out=part)


def _reduce_in_place(comm):
    """Elements that differ from the sum."""
    assert hc.allreduce(_tensor, comm.world, out=_tensor).wait(100) is _tensor
    wanted = np.arange(65521, dtype=np.float32) * sum(range(1, comm.world.size + 1))
    pieces = (_tensor[start : start + 65521] for start in range(0, _tensor.size, 65521))
    return sum(int(np.count_nonzero(piece != wanted[: piece.size])) for piece in pieces)


class _Peak:
    """Samples what the processes of each host use together, until it is stopped; pages they share count once."""

    def __init__(self, cluster):
        ranks = iter(cluster.ranks)
        self._pids = [
            [server.pid, *(next(ranks).pid for _ in range(n))]
            for server, n in zip(cluster.servers, cluster.sizes, strict=True)
        ]
        self.samples = []  # bytes by host
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        while not self._stop.wait(0.02):
            self.samples.append([sum(map(_pss, pids)) for pids in self._pids])

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def beyond(self, sizes):
        """By host, the most bytes beyond its ranks' tensors."""
        return [
            max(of_host) - n * HUGE_BYTES for of_host, n in zip(zip(*self.samples, strict=True), sizes, strict=True)
        ]


def _pss(pid):
    """Bytes of a process, shared pages in equal parts."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) * 1024


def _available_bytes():
    text = Path("/proc/meminfo").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("MemAvailable:")) * 1024


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [pytest.param([4], marks=pytest.mark.exhaustive), [2, 2]], ids=str)
def test_an_allreduce_of_1_gib_needs_little_beyond_the_tensors(sizes, record_property):
    """4 ranks reduce 1 GiB each, in place. The bound holds for all of a host: interpreters, libraries, the arena."""
    if _available_bytes() < NEEDED_BYTES:
        pytest.skip(f"{_available_bytes() >> 20} MiB of memory are available, {NEEDED_BYTES >> 20} MiB are needed")
    with Cluster(sizes) as cluster:
        cluster.run(_allocate, timeout=60)
        with _Peak(cluster) as peak:
            wrong = cluster.run(_reduce_in_place, timeout=110)
    assert wrong == [0] * 4
    beyond = peak.beyond(sizes)
    print(f"beyond the tensors, MiB by host: {[b >> 20 for b in beyond]} in {len(peak.samples)} samples")
    assert len(peak.samples) > 10
    assert 0 < max(beyond) < BOUND_BYTES, beyond


# ---- many small operations -------------------------------------------------------------------------------------------

WARM_UP = 8000
WINDOWS, IN_WINDOW = 5, 2000
#: What leaks grows in every window; 48 bytes an operation are this much. Pools grow once, by 1 MiB in Python's case.
WINDOW_BYTES = 96 << 10
TOTAL_BYTES = 3 * MIB


def _mixed(comm, first, count):
    """`count` operations of all kinds, in world and groups, numbered from `first`; every result is checked."""
    size = comm.world.size
    groups = [comm.world, comm.group(range(size), "all"), comm.group(range(size - 1, -1, -1), "reversed")]
    for number in range(first, first + count):
        group = groups[number // len(_OPERATIONS) % len(groups)]
        array = np.full(number % 3000, comm.rank + number, np.float64)
        what = _OPERATIONS[number % len(_OPERATIONS)]
        got, wanted = what(group, array, number)
        assert got is wanted is None or np.all(got == wanted), (number, what)


def _warm_up(comm):
    """Touch the whole arena, and let pools grow."""
    hc.allreduce(np.zeros(2_000_000), comm.world).wait(20)
    _mixed(comm, 0, WARM_UP)


def _total(group, number):
    return group.size * (group.size - 1) / 2 + group.size * number


def _column(group, number):
    """What each rank's array is full of, by rank."""
    return (np.array(group.ranks, np.float64) + number).reshape(-1, 1)


def _allreduce(group, array, number):
    return hc.allreduce(array, group).wait(20), _total(group, number)


def _tagged(group, array, number):
    return hc.allreduce(array, group, tag=f"layer {number % 50}").wait(20), _total(group, number)


def _burst(group, array, number):
    works = [hc.allreduce(array, group, tag=f"burst {i}") for i in range(8)]
    return [work.wait(20) for work in works][-1], _total(group, number)


def _reduce(group, array, number):
    root = number % group.size
    return hc.reduce(array, group, root).wait(20), _total(group, number) if group.rank == root else None


def _broadcast(group, array, number):
    root = number % group.size
    return hc.broadcast(array, group, root).wait(20), group.ranks[root] + number


def _allgather(group, array, number):
    return hc.allgather(array, group).wait(20), _column(group, number)


def _gather(group, array, number):
    root = number % group.size
    return hc.gather(array, group, root).wait(20), _column(group, number) if group.rank == root else None


def _scatter(group, array, number):
    root, pieces = number % group.size, np.repeat(_column(group, number), array.size, axis=1)
    return hc.scatter(pieces, group, root, out=array).wait(20), group.ranks[group.rank] + number


def _reduce_scatter(group, array, number):
    return hc.reduce_scatter(np.tile(array, (group.size, 1)), group).wait(20), _total(group, number)


def _alltoall(group, array, number):
    return hc.alltoall(np.tile(array, (group.size, 1)), group).wait(20), _column(group, number)


def _messages(group, array, number):
    """To the next rank, from the one before."""
    before, after = (group.rank - 1) % group.size, (group.rank + 1) % group.size
    sent = hc.send(array, group, after, tag=number % 50)
    got = hc.recv(np.empty_like(array), group, before, tag=number % 50).wait(20)
    assert sent.wait(20) is None
    return got, group.ranks[before] + number


def _barrier(group, array, number):
    return hc.barrier(group).wait(20), None


def _used_once(group, array, number):
    """A tag that never comes again, as TensorFlow's are with a step's number."""
    out = np.empty_like(array)
    addresses = [a.__array_interface__["data"][0] for a in (array, out)]
    more = {"op": ReduceOp.MAX, "tag": f"once {number}", "once": True}
    ticket = group.start(Kind.ALLREDUCE, DType.FLOAT64, *addresses, array.size, **more)
    assert group.comm.wait(ticket, 20)
    group.comm.release(ticket)
    return out, group.size - 1 + number


_OPERATIONS = [_allreduce, _tagged, _burst, _reduce, _broadcast, _allgather, _gather, _scatter, _reduce_scatter]
_OPERATIONS += [_alltoall, _messages, _barrier, _used_once]


def _settle(comm):
    """Give back what is free, so that what stays is in use."""
    hc.barrier(comm.world).wait(20)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def _use(cluster):
    """(resident bytes, descriptors) by process."""
    cluster.run(_settle)
    pids = {f"server {i}": server.pid for i, server in enumerate(cluster.servers)}
    pids |= {f"rank {i}": rank.pid for i, rank in enumerate(cluster.ranks)}
    return {name: (_resident(pid), len(list(Path(f"/proc/{pid}/fd").iterdir()))) for name, pid in pids.items()}


def _resident(pid):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _check_flat(before, after):
    """`before`: uses at the start of each window; `after`: at the end of the last one."""
    for name, (first, fds) in before[0].items():
        levels = [use[name][0] for use in before] + [after[name][0]]
        grown = [b - a for a, b in itertools.pairwise(levels)]
        print(f"{name}: grown by {[g >> 10 for g in grown]} KiB, {fds} descriptors")
        assert statistics.median(grown) < WINDOW_BYTES, (name, grown)
        assert levels[-1] - first < TOTAL_BYTES, (name, grown)
        assert after[name][1] == fds, name


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [[2], pytest.param([2, 1], marks=pytest.mark.exhaustive)], ids=str)
def test_ten_thousand_operations_leave_memory_and_descriptors_flat(sizes):
    """In five windows, after 8,000 operations to warm up; one of `_burst` is eight."""
    before = []
    with Cluster(sizes) as cluster:
        cluster.run(_warm_up, timeout=60)
        for window in range(WINDOWS):
            before.append(_use(cluster))
            cluster.run(_mixed, WARM_UP + window * IN_WINDOW, IN_WINDOW, timeout=60)
        _check_flat(before, _use(cluster))


def _leak(comm, what):
    """Lose 50 bytes, or a descriptor, for each of 2,000 operations."""
    if what == "memory":
        _lost.extend(bytes(50) + bytes([i % 256]) for i in range(IN_WINDOW))
    else:
        _lost.append(os.open("/dev/null", os.O_RDONLY))


_lost = []  # of a rank


@pytest.mark.slow
@pytest.mark.parametrize("what", ["memory", "descriptors"])
def test_a_leak_is_noticed(what):
    """The test above fails of a leak of 50 bytes an operation, and of one descriptor."""
    before = []
    with Cluster([1]) as cluster:
        for _ in range(WINDOWS):
            before.append(_use(cluster))
            cluster.run(_leak, what)
        with pytest.raises(AssertionError, match="rank 0"):
            _check_flat(before, _use(cluster))
