"""Operations on CUDA memory, with a driver whose copies take their time and whose memory the host can't touch."""

import device_steps
import pytest
from steps import DTYPES, PIECES, Step

#: Copies that are slow enough to be overtaken by whoever doesn't wait for them.
SLOW = {"gbps": 2.0, "latency_us": 30}
on_devices = pytest.mark.parametrize("own_cluster", [[1], [3], [2, 2]], indirect=True, ids=str)


def _sums(world):
    """Every dtype and reduction."""
    members = tuple(range(world))
    for index, dtype in enumerate(DTYPES):
        for op in ["SUM", "MAX", "PRODUCT"] + ["AVG"] * ("float" in dtype):
            yield Step("allreduce", dtype, op, members, 0, 0, (40_009 + index,), None, index % 2 == 0)
    for op in ["SUM", "AVG"]:
        yield Step("allreduce", "float32", op, members, 0, 0, (1_000_003,), None, op == "SUM")
    yield Step("allreduce", "float32", "SUM", members, 0, 0, (7,), None, False)


def _kinds(world):
    """Every kind with equal and unequal pieces, for each root, over all ranks in another order."""
    members = tuple(reversed(range(world)))
    unequal = tuple(tuple((i * 7 + j * 3) % 5 * 900 for j in range(world)) for i in range(world))
    for root in range(world):
        peer = (root + 1) % world
        for kind in ["reduce", "broadcast", "gather", "scatter"] + ["message"] * (world > 1):
            yield Step(kind, "float32", "SUM", members, root, peer, (1003, 37), None, root % 2 == 0)
    for kind in PIECES:
        yield Step(kind, "float64", "MAX", members, world - 1, 0, (2,), unequal, False)
        yield Step(kind, "int32", "SUM", members, 0, 0, (70_001,), None, False)
    for kind, dtype in [("reduce_scatter", "bfloat16"), ("alltoall", "int64"), ("reduce", "float16")]:
        yield Step(kind, dtype, "SUM", members, 0, 0, (40_009,), None, True)
        yield Step(kind, dtype, "SUM", members, 0, 0, (0,), None, False)


def _copies(comm, count):
    driver = device_steps.load()
    program = [Step("allreduce", "float32", "SUM", (0, 1), 0, 0, (count,), None, True)]
    before = driver.calls("cuMemcpyDtoHAsync_v2")
    device_steps.run(comm, program, 1, {})
    return driver.calls("cuMemcpyDtoHAsync_v2") - before


@pytest.mark.parametrize("own_cluster", [[2]], indirect=True, ids=str)
def test_chunks_on_a_device_are_large(own_cluster):
    """16 MiB of two ranks in copies of 512 KiB, and two of the trial of the device; in host memory it would be 128."""
    assert own_cluster.run(_copies, 4 << 20) == [34, 34]


@on_devices
@pytest.mark.parametrize("steps", [_sums, _kinds])
def test_every_operation(own_cluster, steps):
    """All at once, in another order on each rank, with inputs that are written late; the bits of the reference."""
    program = list(steps(own_cluster.size))
    results = own_cluster.run(device_steps.run, program, 1, SLOW, timeout=100)
    device_steps.check(own_cluster.sizes, program, results)
