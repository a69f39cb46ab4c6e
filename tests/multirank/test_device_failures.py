"""What goes wrong with CUDA memory: the driver, a peer, this rank leaving; copies in flight end before the memory is
the caller's again."""

import logging
import os
import signal
import time

import device_steps
import numpy as np
import pytest
from cluster import Cluster
from fake_device import load
from steps import Step
from test_device import _kinds

import hdp.collectives as hc
from hdp.collectives import library
from hdp.contract.errors import CollectiveError, PeerLost

own = pytest.mark.parametrize("own_cluster", [[2], [2, 2]], indirect=True, ids=str)


def _start(comm, driver, count, kind=hc.Kind.ALLREDUCE, **how):
    stream, buffer = driver.stream(), driver.empty((count,), np.float32)
    driver.write(stream, buffer, np.ones(count, np.float32))
    ticket = comm.world.start(
        kind, hc.DType.FLOAT32, buffer.address, buffer.address, count, device=0, stream=stream, **how
    )
    return stream, buffer, ticket


def _loop(comm, count, gbps):
    driver = load(gbps=gbps)
    try:
        while True:
            stream, buffer, ticket = _start(comm, driver, count)
            assert comm.wait(ticket, 60)
            buffer.free()
    except PeerLost as exc:
        flying = driver.flying()
        driver.synchronize(stream)  # the kernel that writes the input
        buffer.free()  # the driver ends the process where a copy is in flight
        return flying, str(exc)


@own
def test_a_rank_killed_in_the_middle_of_copies(own_cluster):
    """8 MB again and again at 0.2 GB/s each way; rank 0 is killed. The others raise once their copies are over."""
    for rank in range(own_cluster.size):
        own_cluster.call(rank, _loop, 2_000_000, 0.2)
    time.sleep(1.0)
    os.kill(own_cluster.ranks[0].pid, signal.SIGKILL)
    results = own_cluster.collect(timeout=10, ranks=range(1, own_cluster.size))
    for flying, text in results.values():
        assert flying == 0 and "rank 0 (algo-1)" in text


FAILURES = [
    ("cuMemcpyDtoHAsync_v2", 5),
    ("cuMemcpyHtoDAsync_v2", 3),
    ("cuEventQuery", 30),
    ("cuEventCreate", 3),
    ("cuMemHostAlloc", 1),
    ("cuLaunchHostFunc", 2),
    ("cuStreamWaitEvent", 2),
]


def _broken(comm, function, nth):
    driver = load(gbps=0.5, latency_us=100)
    _, _, ticket = _start(comm, driver, 10, kind=hc.Kind.BROADCAST)  # opens the device
    assert comm.wait(ticket, 10)
    if comm.rank == 1:
        driver.fail(function, nth)
    stream, buffer, ticket = _start(comm, driver, 2_000_000)
    try:
        comm.stream_wait(ticket, stream)
        driver.synchronize(stream)
        assert comm.wait(ticket, 30)
    except CollectiveError as exc:
        flying = driver.flying()
        buffer.free()
        return flying, type(exc).__name__, str(exc)


@pytest.mark.slow
@pytest.mark.parametrize(("function", "nth"), FAILURES, ids=str)
def test_a_call_of_the_driver_that_fails(function, nth):
    """On rank 1 of 2 x 2, in the middle of an allreduce: each rank raises, and names the call and rank 1."""
    with Cluster([2, 2]) as cluster:
        results = cluster.run(_broken, function, nth)
    name = function.removesuffix("_v2")
    for rank, (flying, kind, text) in enumerate(results):
        assert flying == 0 and kind == "CollectiveError"
        assert f"{name}: CUDA_ERROR_UNKNOWN (as the test wants it)" in text
        assert ("rank 1 (algo-1): " in text) == (rank != 1)


def _refused(comm, function):
    driver = load()
    _, _, ticket = _start(comm, driver, 10)
    assert comm.wait(ticket, 10)
    driver.fail(function, 1)
    try:
        _start(comm, driver, 10)
    except CollectiveError as exc:
        text = str(exc)
    _, buffer, ticket = _start(comm, driver, 10)
    assert comm.wait(ticket, 10)
    return text, float(buffer.view[-1])


@pytest.mark.parametrize("own_cluster", [[2]], indirect=True, ids=str)
@pytest.mark.parametrize("function", ["cuCtxPushCurrent_v2", "cuStreamIsCapturing", "cuEventRecord"])
def test_an_operation_that_cannot_be_started_was_not(own_cluster, function):
    """The call raises; the next one is the second operation everywhere."""
    for text, value in own_cluster.run(_refused, function):
        assert function.removesuffix("_v2") + ": CUDA_ERROR_UNKNOWN (as the test wants it) on CUDA device 0" in text
        assert value == 2.0


def _log_and_run(comm, program, seed, settings):
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("hdp.collectives.communicator").addHandler(handler)
    return device_steps.run(comm, program, seed, settings), lines


@pytest.mark.parametrize("own_cluster", [[2, 2]], indirect=True, ids=str)
def test_memory_that_cannot_be_registered(own_cluster):
    """Every kind goes through pinned memory then; the log says so once."""
    program = list(_kinds(own_cluster.size))
    settings = {"gbps": 2.0, "latency_us": 30, "refuse": "cuMemHostRegister_v2"}
    results = own_cluster.run(_log_and_run, program, 1, settings, timeout=100)
    device_steps.check(own_cluster.sizes, program, [result for result, _ in results])
    for rank, (_, lines) in enumerate(results):
        assert lines == [
            f"rank {rank} (algo-{rank // 2 + 1}): CUDA device 0: shared memory can't be registered, so everything is "
            "copied once more on the host: cuMemHostRegister: CUDA_ERROR_NOT_SUPPORTED (as the test wants it)"
        ]


@pytest.mark.parametrize("own_cluster", [[3], [2, 2]], indirect=True, ids=str)
def test_some_ranks_have_their_data_on_the_host(own_cluster):
    """Rank 1 of them."""
    program = [step for step in _kinds(own_cluster.size) if np.prod(step.shape) > 20_000]
    results = own_cluster.run(device_steps.run, program, 1, {"gbps": 2.0}, [1], timeout=100)
    device_steps.check(own_cluster.sizes, program, results)


def _wired(comm):
    driver = load(gbps=2.0, latency_us=30)
    program = [
        Step(kind, "float32", op, (0, 1, 2, 3), 1, 0, (300_003,), None, False, wire)
        for kind in ("allreduce", "reduce", "reduce_scatter")
        for op in ("SUM", "AVG")
        for wire in ("float16", "bfloat16")
    ]
    return program, device_steps.run(comm, program, 1, {}), driver.calls("cuMemHostAlloc")


@pytest.mark.parametrize("own_cluster", [[2, 2]], indirect=True, ids=str)
def test_float32_that_travels_as_a_half_type(own_cluster):
    """What comes back is converted on the host."""
    results = own_cluster.run(_wired)
    device_steps.check(own_cluster.sizes, results[0][0], [result for _, result, _ in results])


def _leave(comm):
    driver = load(gbps=0.02)
    stream, buffer, ticket = _start(comm, driver, 2_000_000)
    comm.stream_wait(ticket, stream)
    if comm.rank == 0:
        until = time.monotonic() + 5
        while not (flying := driver.flying()) and time.monotonic() < until:
            time.sleep(0.001)
        comm.close()
        left = driver.flying()
        driver.synchronize(stream)
        buffer.free()
        return flying, left
    try:
        assert comm.wait(ticket, 20)
    except PeerLost as exc:
        return str(exc)


@pytest.mark.parametrize("own_cluster", [[2]], indirect=True, ids=str)
def test_leaving_in_the_middle_of_copies(own_cluster):
    """Rank 0 closes its communicator: its copies end first, its stream is let go, and rank 1 is told."""
    (flying, left), told = own_cluster.run(_leave)
    assert flying > 0 and left == 0
    assert "rank 0 (algo-1) left before allreduce #1 was complete" in told


def _no_driver(comm):
    os.environ["HDP_CUDA_DRIVER"] = "/nowhere/libcuda.so.1"
    errors = []
    for call in (library.device_count, lambda: comm.world.start(hc.Kind.ALLREDUCE, hc.DType.UINT8, 8, 8, 1, device=0)):
        try:
            call()
        except CollectiveError as exc:
            errors.append(str(exc))
    return errors, hc.allreduce(np.ones(300_000), comm.world).wait(10)[-1]


@pytest.mark.parametrize("own_cluster", [[2]], indirect=True, ids=str)
def test_no_driver(own_cluster):
    """It says which library can't be loaded, and operations on host memory go on."""
    for errors, value in own_cluster.run(_no_driver):
        assert len(errors) == 2 and value == 2.0
        assert all(e.startswith("CUDA's driver can't be loaded: /nowhere/libcuda.so.1: cannot open") for e in errors)


def _count(comm):
    load(devices=3)
    return library.device_count()


@pytest.mark.parametrize("own_cluster", [[1]], indirect=True, ids=str)
def test_devices_are_counted(own_cluster):
    assert own_cluster.run(_count) == [3]


def _host_only(comm):
    load()  # so that it would be found
    import ctypes

    driver = ctypes.CDLL(os.environ["HDP_CUDA_DRIVER"])
    driver.fake_cuda_calls.restype = ctypes.c_uint64
    before = driver.fake_cuda_calls(b"cuInit")
    hc.allreduce(np.ones(300_000), comm.world).wait(10)
    return driver.fake_cuda_calls(b"cuInit") - before


@pytest.mark.parametrize("own_cluster", [[2]], indirect=True, ids=str)
def test_operations_on_host_memory_load_no_driver(own_cluster):
    assert own_cluster.run(_host_only) == [0, 0]
