"""A CUDA stream that waits for an operation, in place of the thread that started it."""

import logging
import os
import time

import numpy as np
import pytest
from cluster import Cluster
from fake_device import STALE, load

import hdp.collectives as hc
from hdp.contract.errors import CollectiveError, CollectiveTimeout, InvalidCollective

pair = pytest.mark.parametrize("own_cluster", [[2], [1, 1]], indirect=True, ids=str)
COUNT = 300_000


def _start(comm, driver, stream, value=1.0, **how):
    """An allreduce in place of COUNT floats, all `value`; the buffer and the ticket."""
    buffer = driver.empty((COUNT,), np.float32)
    driver.write(stream, buffer, np.full(COUNT, value, np.float32))
    more = {"device": 0, "stream": stream, **how}
    group = more.pop("group", comm.world)
    return buffer, group.start(hc.Kind.ALLREDUCE, hc.DType.FLOAT32, buffer.address, buffer.address, COUNT, **more)


def _collect():
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("hdp.collectives.communicator").addHandler(handler)
    return lines


def _ordered(comm, late):
    driver = load(gbps=1.0, latency_us=50)
    stream, before, after = driver.stream(), *(driver.empty((COUNT,), np.float32) for _ in range(2))
    if comm.rank == late:
        time.sleep(2.5)
    buffer, ticket = _start(comm, driver, stream, comm.rank + 1.0)
    driver.copy(stream, before, buffer)
    started = time.monotonic()
    assert comm.stream_wait(ticket, stream)
    blocked = time.monotonic() - started
    driver.copy(stream, after, buffer)
    pending = not comm.wait(ticket, 0)
    until = time.monotonic() + 1.0
    while before.view[-1] != comm.rank + 1.0 and time.monotonic() < until:
        time.sleep(0.01)
    first, last = float(before.view[-1]), float(after.view[-1])
    driver.synchronize(stream)
    assert comm.wait(ticket, 10) and comm.stream_wait(ticket, stream), "complete: nothing to wait for"
    return blocked, pending, first, last, [float(after.view[i]) for i in (0, COUNT - 1)]


@pair
def test_what_comes_later_in_the_stream_sees_the_result(own_cluster):
    """Rank 1 is 2.5 s late. On rank 0 a copy before the wait runs at once, the call returns at once, and a copy after
    the wait has what both gave, 1 + 2."""
    results = own_cluster.run(_ordered, 1)
    blocked, pending, first, last, _ = results[0]
    assert blocked < 1.0 and pending
    stale = float(np.frombuffer(bytes([STALE] * 4), np.float32)[0])
    assert (first, last) == (1.0, stale)
    assert [r[-1] for r in results] == [[3.0, 3.0]] * 2


def _crossed(comm):
    driver = load(gbps=1.0, latency_us=50)
    stream = driver.stream()
    done = []
    for tag in "ab" if comm.rank == 0 else "ba":
        buffer, ticket = _start(comm, driver, stream, tag=tag)
        if comm.rank == 0:
            assert comm.stream_wait(ticket, stream)
        done.append((buffer, ticket))
    for _, ticket in done:
        assert comm.wait(ticket, 10)
    driver.synchronize(stream)
    return [float(buffer.view[-1]) for buffer, _ in done]


@pair
def test_operations_in_another_order_on_another_rank(own_cluster):
    """Rank 0's stream waits for a before it comes to the input of b; rank 1 calls b first. None holds the other up."""
    assert own_cluster.run(_crossed) == [[2.0, 2.0]] * 2


def _many(comm, rounds):
    driver = load(gbps=4.0)
    stream, total = driver.stream(), []
    for number in range(rounds):
        buffer, ticket = _start(comm, driver, stream, float(number))
        assert comm.stream_wait(ticket, stream)
        assert comm.wait(ticket, 10)
        comm.release(ticket)
        total.append(buffer)
    driver.synchronize(stream)
    return [float(buffer.view[-1]) for buffer in total]


@pair
def test_words_serve_one_operation_after_the_other(own_cluster):
    """40 operations, each of which waits for the one before."""
    assert own_cluster.run(_many, 40) == [[2.0 * n for n in range(40)]] * 2


def _fails(comm, missing):
    if comm.rank == missing:
        return None
    driver = load(gbps=1.0)
    stream = driver.stream()
    _, ticket = _start(comm, driver, stream, timeout=0.5)
    assert comm.stream_wait(ticket, stream)
    driver.synchronize(stream)
    errors = []
    for call in (lambda: comm.wait(ticket, 10), lambda: comm.stream_wait(ticket, stream)):
        try:
            call()
        except CollectiveTimeout as exc:
            errors.append(str(exc))
    return errors


@pair
def test_a_stream_is_let_go_when_the_operation_fails(own_cluster):
    """Rank 1 doesn't call. Rank 0's stream goes on after 0.5 s, and both calls tell why."""
    errors = own_cluster.run(_fails, 1)[0]
    assert len(errors) == 2 and all("rank 1" in text and "did not call it" in text for text in errors)


def _cannot(comm, settings, wait):
    os.environ["HDP_CUDA_WAIT"] = wait
    lines = _collect()
    driver = load(gbps=1.0, **settings)
    stream = driver.stream()
    if comm.rank == 1:
        time.sleep(0.2)
    buffer, ticket = _start(comm, driver, stream)
    waits = comm.stream_wait(ticket, stream)
    assert comm.wait(ticket, 10)
    return waits, float(buffer.view[-1]), lines


@pytest.mark.parametrize(
    "settings",
    [
        {"refuse": "cuStreamWaitValue32_v2"},
        {"stuck": 1},
        {"locked": "cuMemFree_v2"},
        {"locked": "cuModuleLoadData"},
        {},
    ],
    ids=str,
)
def test_a_device_whose_streams_cannot_wait(settings):
    """It refuses, it or a call of the program stops our copies meanwhile, or the user says so: the thread waits; a line
    in the log tells why."""
    with Cluster([2]) as cluster:
        waits, value, lines = cluster.run(_cannot, settings, "stream" if settings else "host")[0]
    assert (waits, value) == (False, 2.0)
    expected = "rank 0 (algo-1): CUDA device 0: streams can't wait for an operation here without stopping our copies"
    assert [line.startswith(expected) for line in lines] == [True] * bool(settings)


def _odd(comm):
    os.environ["HDP_CUDA_WAIT"] = "never"
    try:
        _start(comm, driver := load(), driver.stream())
    except InvalidCollective as exc:
        return str(exc)


@pytest.mark.parametrize("own_cluster", [[1]], indirect=True, ids=str)
def test_another_way_to_wait_is_refused(own_cluster):
    assert own_cluster.run(_odd) == ["$HDP_CUDA_WAIT is 'never'; expected stream or host"]


def _later(comm):
    lines = _collect()
    driver = load(gbps=1.0)
    stream = driver.stream()
    if comm.rank == 1:
        time.sleep(0.3)
    _, ticket = _start(comm, driver, stream)
    driver.fail("cuStreamWaitValue32_v2", 1)
    waits = [comm.stream_wait(ticket, stream) for _ in range(2)]
    assert comm.wait(ticket, 10)
    return waits, lines


@pytest.mark.parametrize("own_cluster", [[2]], indirect=True, ids=str)
def test_a_wait_that_fails_is_left_to_the_thread(own_cluster):
    waits, lines = own_cluster.run(_later)[0]
    assert waits == [False, False]
    assert len(lines) == 1 and "cuStreamWaitValue32: CUDA_ERROR_UNKNOWN (as the test wants it)" in lines[0]


def _unready(comm):
    """The stream takes 4 s to come to the input; the limit is 2.5 s."""
    driver = load()
    stream, buffer = driver.stream(), driver.empty((COUNT,), np.float32)
    driver.write(stream, buffer, np.ones(COUNT, np.float32), 4_000_000)
    ticket = comm.world.start(
        hc.Kind.ALLREDUCE, hc.DType.FLOAT32, buffer.address, buffer.address, COUNT, device=0, stream=stream, timeout=2.5
    )
    assert comm.wait(ticket, 10)
    return float(buffer.view[-1])


@pair
def test_time_runs_once_the_input_is_written(own_cluster):
    assert own_cluster.run(_unready) == [2.0, 2.0]


def _no_such(comm):
    load()
    errors = []
    for how in ({"device": 1}, {"device": 0, "root": 5, "kind": hc.Kind.BROADCAST}):
        try:
            comm.world.start(how.pop("kind", hc.Kind.ALLREDUCE), hc.DType.UINT8, 8, 8, 1, **how)
        except (InvalidCollective, CollectiveError) as exc:
            errors.append(f"{type(exc).__name__}: {exc}")
    return errors


@pytest.mark.parametrize("own_cluster", [[1]], indirect=True, ids=str)
def test_a_device_that_is_not_there(own_cluster):
    missing, root = own_cluster.run(_no_such)[0]
    assert missing == "InvalidCollective: there is no CUDA device 1; this process has 1"
    assert root == "InvalidCollective: rank 5 in a group of 1"
