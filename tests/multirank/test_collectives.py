"""Every operation against NumPy, bit for bit, on emulated hosts with equal and unequal numbers of ranks."""

import itertools

import numpy as np
import pytest
import reference
from steps import PIECES, Step, check, run

import hdp.collectives as hc

TOPOLOGIES = [[1], [2], [4], [1, 1], [2, 2], [3, 1], [1, 2, 1]]
DTYPES = ["float16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool"]
#: None, one, fewer than hosts, no multiple of anything, a few chunks, many chunks.
COUNTS = [0, 1, 2, 1003, 40_009, 700_001]

on_all = pytest.mark.parametrize("cluster", TOPOLOGIES, indirect=True, ids=str)


def _allreduce(comm, count, dtype, op, in_place):
    source = reference.data(comm.rank, count, dtype)
    out = source if in_place else None
    result = hc.allreduce(source, comm.world, hc.ReduceOp[op], out=out).wait(60)
    assert not in_place or result is source
    return result.tobytes()


@on_all
@pytest.mark.parametrize("dtype", DTYPES)
def test_allreduce_sums_in_rank_order(cluster, dtype):
    """Each rank has random elements; all get the bits of the reference."""
    for count in COUNTS:
        expected = reference.allreduce(cluster.sizes, count, dtype, "SUM").tobytes()
        assert cluster.run(_allreduce, count, dtype, "SUM", False) == [expected] * cluster.size


@on_all
@pytest.mark.parametrize("op", ["AVG", "MIN", "MAX", "PRODUCT"])
def test_allreduce_other_reductions(cluster, op):
    for dtype, count in itertools.product(DTYPES, [3, 40_009]):
        if op == "AVG" and not dtype.startswith("float"):
            continue
        expected = reference.allreduce(cluster.sizes, count, dtype, op).tobytes()
        assert cluster.run(_allreduce, count, dtype, op, True) == [expected] * cluster.size, (dtype, count)


def _special(comm, dtype):
    values = np.array([np.nan, np.inf, -np.inf, 65504, 6e-8, -0.0, 1e-4, 1.0], dtype)
    if comm.rank == 1:
        values[-1] = np.nan
    return hc.allreduce(values, comm.world, hc.ReduceOp.MAX).wait(30)


@pytest.mark.parametrize("cluster", [[2], [1, 1]], indirect=True, ids=str)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_nan_inf_and_subnormals_survive(cluster, dtype):
    """max of equal special values is the value; a NaN on one rank wins."""
    for result in cluster.run(_special, dtype):
        expected = np.array([np.nan, np.inf, -np.inf, 65504, 6e-8, -0.0, 1e-4, np.nan], dtype)
        np.testing.assert_array_equal(result, expected)


def _broadcast(comm, count, dtype, root):
    array = reference.data(comm.rank, count, dtype)
    return hc.broadcast(array, comm.world, root).wait(60).tobytes()


@on_all
def test_broadcast_from_every_root(cluster):
    for count, root in itertools.product(COUNTS, range(cluster.size)):
        expected = reference.data(root, count, "float32").tobytes()
        assert cluster.run(_broadcast, count, "float32", root) == [expected] * cluster.size


def _allgather(comm, count, dtype):
    return hc.allgather(reference.data(comm.rank, count, dtype), comm.world).wait(60).tobytes()


@on_all
@pytest.mark.parametrize("dtype", ["float64", "uint8"])
def test_allgather_stacks_by_rank(cluster, dtype):
    for count in COUNTS:
        expected = b"".join(reference.data(r, count, dtype).tobytes() for r in range(cluster.size))
        assert cluster.run(_allgather, count, dtype) == [expected] * cluster.size


def _steps(world):
    """Every other kind, with equal and unequal pieces, for each root or sender, over all ranks but in another order."""
    members = tuple(reversed(range(world)))
    unequal = tuple(tuple((i * 7 + j * 3) % 5 * 900 for j in range(world)) for i in range(world))
    for root in range(world):
        peer = (root + 1) % world
        for kind in ["reduce", "gather", "scatter"] + ["message"] * (world > 1):
            yield Step(kind, "float32", "SUM", members, root, peer, (1003, 3), None, root % 2 == 0)
    for kind in PIECES:
        yield Step(kind, "float64", "MAX", members, world - 1, 0, (2,), unequal, False)
    for kind, dtype in [("reduce_scatter", "bfloat16"), ("alltoall", "int64"), ("reduce", "float16")]:
        yield Step(kind, dtype, "SUM", members, 0, 0, (40_009,), None, True)
        yield Step(kind, dtype, "SUM", members, 0, 0, (0,), None, False)


@on_all
def test_every_other_operation(cluster):
    """All at once, in another order on each rank; shapes and bits of the reference."""
    program = list(_steps(cluster.size))
    results = cluster.run(run, program, 1, timeout=60)
    check(cluster.sizes, program, results)


def _shapes(comm):
    grid = np.arange(24, dtype=np.float32).reshape(4, 6)
    reduced = hc.allreduce(grid.T[::2], comm.world).wait(30)
    gathered = hc.allgather(grid[:, ::3], comm.world).wait(30)
    scalar = hc.allreduce(2.5, comm.world).wait(30)
    raw = hc.allreduce(memoryview(bytearray(b"\x01\x02")), comm.world).wait(30)
    return reduced, gathered, scalar, raw


@pytest.mark.parametrize("cluster", [[2, 2]], indirect=True, ids=str)
def test_any_shape_and_buffer(cluster):
    """Non-contiguous input is copied, shapes are kept, 0-d arrays and other buffers work."""
    for reduced, gathered, scalar, raw in cluster.run(_shapes):
        grid = np.arange(24, dtype=np.float32).reshape(4, 6)
        np.testing.assert_array_equal(reduced, grid.T[::2] * 4)
        np.testing.assert_array_equal(gathered, np.stack([grid[:, ::3]] * 4))
        assert scalar == 10.0 and scalar.shape == ()
        np.testing.assert_array_equal(raw, np.array([4, 8], np.uint8))


def _out_of_order(comm, count, rounds):
    order = np.random.default_rng(comm.rank).permutation(rounds)
    works = {
        int(i): hc.allreduce(np.full(count, comm.rank + i, np.float32), comm.world, tag=f"layer/{i}") for i in order
    }
    return [float(works[i].wait(60)[-1]) for i in range(rounds)]


@pytest.mark.parametrize("cluster", [[4], [2, 2], [1, 2, 1]], indirect=True, ids=str)
@pytest.mark.parametrize("count", [7, 1_200_000])
def test_tagged_operations_in_any_order(cluster, count):
    """Each rank submits 12 tagged allreduces in its own order; 1.2 million floats are more than the whole arena."""
    ranks = sum(range(cluster.size))
    expected = [ranks + cluster.size * i for i in range(12)]
    assert cluster.run(_out_of_order, count, 12, timeout=90) == [expected] * cluster.size


def _groups(comm, members_of, count):
    groups = {name: comm.group(m, name) for name, m in members_of.items() if comm.rank in m}
    names = list(groups)
    np.random.default_rng(comm.rank).shuffle(names)
    works = {}
    for name in names:
        array = np.full(count, 10.0**comm.rank)
        works[name] = [
            hc.allreduce(array, groups[name]),
            hc.broadcast(array.copy(), groups[name], 0),
            hc.allgather(np.array([comm.rank]), groups[name]),
            hc.barrier(groups[name]),
        ]
    return {name: [w.wait(60) for w in ws] for name, ws in works.items()}


@pytest.mark.parametrize("cluster", [[4], [2, 2], [3, 1]], indirect=True, ids=str)
def test_overlapping_groups_in_any_order(cluster):
    """Groups share ranks, list them in odd orders, and are used in a different order on every rank."""
    members = {"ends": [3, 0], "middle": [1, 2], "most": [2, 0, 1], "one": [2], "all": [3, 2, 1, 0]}
    results = cluster.run(_groups, members, 300_000)
    for name, ranks in members.items():
        for rank in ranks:
            total, first, everybody, nothing = results[rank][name]
            assert total[-1] == sum(10.0**r for r in ranks)
            assert first[0] == 10.0 ** ranks[0]
            assert everybody.ravel().tolist() == ranks
            assert nothing is None


def _timing(comm, late, seconds):
    import time

    if comm.rank == late:
        time.sleep(seconds)
    start = time.monotonic()
    hc.barrier(comm.world).wait(30)
    return time.monotonic() - start


@pytest.mark.parametrize("cluster", [[2, 2]], indirect=True, ids=str)
def test_barrier_waits_for_the_last(cluster):
    """Rank 2 comes half a second late; the others wait for it."""
    waited = cluster.run(_timing, 2, 0.5)
    assert min(waited[r] for r in (0, 1, 3)) > 0.4


def _many(comm, count):
    works = [hc.barrier(comm.world, timeout=20) for _ in range(count)]
    works += [hc.allreduce(np.ones(0), comm.world) for _ in range(count)]
    return sum(w.wait(30) is None for w in works)


@pytest.mark.parametrize("cluster", [[2], [1, 1]], indirect=True, ids=str)
def test_more_operations_in_flight_than_anything_holds(cluster):
    """2,000 barriers and 2,000 empty allreduces at once; a rank's grant ring has room for 256."""
    assert cluster.run(_many, 2000) == [2000] * cluster.size


def _large_mean(comm):
    return hc.allreduce(np.full(100, 40_000, np.float16), comm.world, hc.ReduceOp.AVG).wait().tolist()


@pytest.mark.parametrize("cluster", [[4], [2, 2], [3, 1]], indirect=True, ids=str)
def test_an_average_of_half_types_does_not_overflow_on_its_way(cluster):
    """The sum of two 40,000 is no float16; the average of any number of them is."""
    assert cluster.run(_large_mean) == [[40_000.0] * 100] * 4
