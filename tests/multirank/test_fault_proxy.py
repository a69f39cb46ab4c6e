"""The fault proxy does what it says, and behind it there is never a wrong number, never a hang (DESIGN I7)."""

import contextlib
import dataclasses
import os
import random
import socket
import time

import numpy as np
import programs
import pytest
import soak
from cluster import Cluster
from fault_proxy import FaultProxy
from faults import BREAKING, CORRUPTING, SLOW, Fault, Kind, damage, draw
from steps import Step

import hdp.collectives as hc
from hdp.contract.errors import CollectiveTimeout, PeerLost

#: How long the soak runs: minutes show more than these seconds. Its first seed; 0 seconds replay one.
SECONDS = float(os.environ.get("HDP_FAULT_SECONDS", "20"))
SEED = int(os.environ.get("HDP_FAULT_SEED", str(random.SystemRandom().randrange(1 << 30))))
KINDS = os.environ.get("HDP_FAULT_KINDS", ",".join(kind.value for kind in Kind))

LINK = (1, 0)
SENT = bytes(random.Random(1).randbytes(100_000))
AT = 5000


@contextlib.contextmanager
def _connection(*faults):
    """(dialer's socket, listener's socket, proxy)."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        proxy = stack.enter_context(FaultProxy(faults))
        address = proxy.listen(listener.getsockname(), LINK)
        near = stack.enter_context(socket.create_connection(address, timeout=5))
        far = stack.enter_context(listener.accept()[0])
        yield near, far, proxy


def _read(sock, count, timeout=5.0):
    """Up to `count` bytes: fewer where the connection ends or nothing comes for `timeout` seconds."""
    got = b""
    sock.settimeout(timeout)
    while len(got) < count:
        try:
            part = sock.recv(count - len(got))
        except TimeoutError:
            break
        if not part:
            break
        got += part
    return got


def _through(fault, timeout=5.0):
    """What arrives of SENT, and how long it took."""
    with _connection(fault) as (near, far, proxy):
        start = time.monotonic()
        near.sendall(SENT)
        near.shutdown(socket.SHUT_WR)
        got = _read(far, 2 * len(SENT), timeout)
        assert [f for f, _, _ in proxy.fired] == [fault]
        return got, time.monotonic() - start


def test_without_a_fault_both_directions_arrive_whole():
    with _connection() as (near, far, proxy):
        for source, sink in ((near, far), (far, near)):
            source.sendall(SENT)
            assert _read(sink, len(SENT)) == SENT
        near.close()
        assert far.recv(1) == b""
    assert not proxy.fired


@pytest.mark.parametrize(
    "fault",
    [
        Fault(Kind.DELAY, LINK, offset=AT, seconds=0.2),
        Fault(Kind.JITTER, LINK, offset=AT, length=90_000, segment=10_000, seconds=0.05),
        Fault(Kind.TRICKLE, LINK, offset=AT, length=60, segment=1, seconds=0.005),
    ],
    ids=lambda f: f.kind.value,
)
def test_a_slow_fault_takes_time_and_no_byte(fault):
    got, took = _through(fault)
    assert got == SENT
    assert took > 0.1


@pytest.mark.parametrize("kind", sorted(CORRUPTING, key=str), ids=lambda k: k.value)
def test_a_corrupting_fault_changes_its_run_alone(kind):
    fault = Fault(kind, LINK, offset=AT, length=64, seed=3)
    run = damage(fault, SENT[AT : AT + 64])
    assert run != SENT[AT : AT + 64]
    assert _through(fault)[0] == SENT[:AT] + run + SENT[AT + 64 :]


def test_what_damage_is():
    run = bytes(range(10))
    flipped = damage(Fault(Kind.FLIP, LINK, seed=3), run)
    assert (flipped[0] ^ run[0]).bit_count() == 1 and flipped[1:] == run[1:]
    assert len(damage(Fault(Kind.OVERWRITE, LINK), run)) == 10
    assert damage(Fault(Kind.DUPLICATE, LINK), run) == run + run
    assert damage(Fault(Kind.REORDER, LINK), run) == run[5:] + run[:5]
    assert damage(Fault(Kind.DELETE, LINK), run) == b""


def test_reset_is_an_error_at_both_ends():
    with _connection(Fault(Kind.RESET, LINK, offset=AT)) as (near, far, _):
        near.sendall(SENT[: AT + 1])
        for sock in (near, far):
            with pytest.raises(ConnectionResetError):
                _read(sock, AT + 1)


def test_truncate_ends_in_the_middle():
    with _connection(Fault(Kind.TRUNCATE, LINK, offset=AT)) as (near, far, _):
        near.sendall(SENT[:AT])
        assert _read(far, len(SENT)) == SENT[:AT]
        assert near.recv(1) == b""


def test_half_close_leaves_the_other_direction():
    with _connection(Fault(Kind.HALF_CLOSE, LINK, offset=AT)) as (near, far, _):
        near.sendall(SENT)
        assert _read(far, len(SENT)) == SENT[:AT]
        far.sendall(SENT)
        assert _read(near, len(SENT)) == SENT


@pytest.mark.parametrize("kind", [Kind.STALL, Kind.SWALLOW], ids=lambda k: k.value)
@pytest.mark.parametrize("both", [False, True])
def test_a_black_hole_keeps_the_connection_open(kind, both):
    with _connection(Fault(kind, LINK, offset=AT, both=both)) as (near, far, _):
        near.sendall(SENT)
        assert _read(far, len(SENT), timeout=0.1) == SENT[:AT]
        far.sendall(b"back")
        assert _read(near, 4, timeout=0.1) == (b"" if both else b"back")
        with contextlib.suppress(TimeoutError):
            far.settimeout(0.1)
            assert far.recv(1) != b"", "closed"


def test_a_fault_at_a_moment_hits_what_is_open():
    with _connection(Fault(Kind.TRUNCATE, LINK, direction=1, after=0.05)) as (near, far, proxy):
        near.sendall(b"x")
        assert _read(far, 1) == b"x"
        proxy.start_clock()
        assert near.recv(1) == b""


def test_draws_are_the_same_for_the_same_seed_and_have_every_kind():
    drawn = [draw(random.Random(seed), 4) for seed in range(300)]
    assert drawn == [draw(random.Random(seed), 4) for seed in range(300)]
    assert {fault.kind for faults in drawn for fault in faults} == set(Kind) == SLOW | BREAKING | CORRUPTING
    assert any(not faults for faults in drawn)
    assert not any(f.kind.corrupts for s in range(300) for f in draw(random.Random(s), 4, SLOW | BREAKING))


# ---- what ranks are told --------------------------------------------------------------------------------------------


LARGE, SMALL = 10_000, 5  # elements: through the slots, all complete or none does; through cells, some may


def _sum_within(comm, timeout, count):
    return hc.allreduce(np.ones(count), comm.world, timeout=timeout).wait()


def _sums_within(comm, timeout, count):
    """What the first or the second raises."""
    for _ in range(2):
        _sum_within(comm, timeout, count)


def _errors_behind(fault, count=LARGE, **config):
    """Of ranks on three hosts: a first allreduce is whole; then the fault, and the errors of more with 1 s."""
    calls = _sum_within if count == LARGE else _sums_within
    with FaultProxy([fault]) as proxy, Cluster([1, 1, 1], route=proxy.route, **config) as cluster:
        cluster.run(_sum_within, 20, count)
        proxy.start_clock()
        time.sleep(0.3)
        start = time.monotonic()
        return cluster.try_run(calls, 1, count), time.monotonic() - start


@pytest.mark.parametrize("count", [LARGE, pytest.param(SMALL, marks=pytest.mark.slow)])
def test_a_host_behind_a_black_hole_is_named(count):
    """What hosts 2 and 0 say to each other is lost. Ranks 0 and 1 name host 2; rank 2, host 0; nobody waits long."""
    errors, took = _errors_behind(Fault(Kind.STALL, (2, 0), both=True, after=0.1), count)
    assert all(isinstance(error, (CollectiveTimeout, PeerLost)) for error in errors)
    assert all("algo-3" in str(error) for error in errors[:2])
    assert "algo-1" in str(errors[2])
    assert took < 10


@pytest.mark.parametrize("count", [LARGE, pytest.param(SMALL, marks=pytest.mark.slow)])
@pytest.mark.parametrize("encrypt", [False, True])
def test_corruption_is_called_by_its_name(encrypt, count):
    errors, _ = _errors_behind(Fault(Kind.FLIP, (2, 0), after=0.1, length=1), count, encrypt=encrypt)
    assert all(isinstance(error, PeerLost) for error in errors)
    assert all("the connection corrupts data" in str(error) for error in errors)


# ---- the rule of the soak -------------------------------------------------------------------------------------------


def _judged(records_by_rank, kind=Kind.RESET, unjoined=()):
    """Violations where ranks 0 and 1 have such (started, ended, outcome) of the world's operations 0, 1, ..."""
    program = programs.Program(0, (1, 1), {"world": (0, 1)}, (), 5.0, {})
    op = programs.Op(0, "world", Step("barrier", "int8", "SUM", (0, 1), 0, 1, (0,), None, False), False)
    result = soak.Round(0, (1, 1), [Fault(kind, LINK)], unjoined=dict.fromkeys(unjoined, "PeerLost"))
    result.records = {
        rank: [programs.Record(dataclasses.replace(op, index=i), *record) for i, record in enumerate(records)]
        for rank, records in enumerate(records_by_rank)
    }
    return soak.judge(program, result)


def test_the_rule_accepts_exact_results_and_errors_on_all_ranks():
    assert not _judged([[(0, 1, "exact")], [(0, 1, "exact")]], Kind.DELAY)
    assert not _judged([[(0, 1, "exact"), (1, 9, "PeerLost")], [(0, 1, "exact"), (8.9, 9.1, "PeerLost")]])
    assert not _judged([[(0, 2, "exact")], [(0, 1, "PeerLost"), (1, 1, "PeerLost")]]), "it had no next operation"
    assert not _judged([[(0, 2, "exact"), (2, 3, "exact")], [(0, 1, "PeerLost"), (0, 1, "PeerLost")]]), "in flight"


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([[(0, 1, "wrong")], []], "wrong"),
        ([[(0, 99, "hang")], []], "hang"),
        ([[(0, 1, "CollectiveMismatch")], []], "wrong kind"),
        ([[(0, 1, "PeerLost"), (1.5, 2, "PeerLost")], [(0, 1, "exact"), (2, 3, "exact")]], "exact, though"),
        ([[(0, 1, "PeerLost"), (1.5, 2, "exact")], []], "exact, though"),
        ([[(0, 1, "PeerLost"), (1.5, 9, "PeerLost")], []], "took 7.5 s on a failed group"),
    ],
)
def test_the_rule_finds_what_breaks_it(records, words):
    assert words in "".join(_judged(records))


def test_the_rule_allows_no_error_of_slow_faults_and_no_result_without_a_member():
    assert "without a fault" in "".join(_judged([[(0, 1, "PeerLost")], [(0, 1, "PeerLost")]], Kind.DELAY))
    assert "exact, though" in "".join(_judged([[(1, 2, "exact")], []], unjoined=[1]))
    assert "did not join" in "".join(_judged([[], []], Kind.DELAY, unjoined=[1]))


# ---- the rule on real clusters ---------------------------------------------------------------------------------------


def _sum(comm, count):
    index = np.arange(count, dtype=np.float64)
    return hc.allreduce(index * 2 + comm.rank, comm.world, timeout=5).wait(20).tolist() == (index * 4 + 1).tolist()


@pytest.mark.parametrize(
    "kind",
    [k if k is Kind.FLIP else pytest.param(k, marks=pytest.mark.slow) for k in sorted(CORRUPTING, key=str)],
    ids=lambda k: k.value,
)
@pytest.mark.parametrize("direction", [0, 1])
def test_corrupted_data_is_an_error_that_says_so(kind, direction):
    """Two hosts exchange 8 MB; 100 bytes in the middle of it aren't what was sent. Both ranks raise, twice."""
    fault = Fault(kind, LINK, direction, offset=2_000_000, length=100, seed=3)
    with FaultProxy([fault]) as proxy, Cluster([1, 1], route=proxy.route) as cluster:
        for error in [*cluster.try_run(_sum, 1_000_000), *cluster.try_run(_sum, 10)]:
            assert isinstance(error, PeerLost) and "the connection corrupts data" in str(error), error


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 400)
def test_soak_never_a_wrong_number_never_a_hang(capsys):
    """Random programs on random clusters with random faults; the rule is in `soak.py`."""
    summary = soak.soak(SECONDS, SEED, frozenset(Kind(name) for name in KINDS.split(",")))
    with capsys.disabled():
        print(f"\nfault soak, HDP_FAULT_SEED={SEED}: {summary}")
    assert not summary.bad, "listed above, with the seed that plays each again"
