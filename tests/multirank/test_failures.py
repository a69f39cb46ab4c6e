"""Never a wrong number, never a hang: every failure is an exception that names who and what (DESIGN I7)."""

import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from cluster import Cluster

import hdp.collectives as hc
from hdp.contract.errors import CollectiveMismatch, CollectiveTimeout, InvalidCollective, PeerLost

own = pytest.mark.parametrize("own_cluster", [[2], [2, 2], [1, 2]], indirect=True, ids=str)


def _sum(comm, count=10, timeout=None, tag=None):
    return hc.allreduce(np.ones(count, np.float32), comm.world, timeout=timeout, tag=tag).wait().tolist()


def _sum_of_own_length(comm):
    return hc.allreduce(np.ones(10 + comm.rank), comm.world).wait()


def _own_call(comm, calls):
    if calls[comm.rank] == "barrier":
        return hc.barrier(comm.world).wait()
    if calls[comm.rank] == "broadcast":
        return hc.broadcast(np.ones(10), comm.world).wait()
    return hc.allreduce(np.ones(10, calls[comm.rank]), comm.world).wait()


@own
def test_a_mismatch_raises_on_every_rank_and_names_what_each_called(own_cluster):
    """Rank r reduces 10 + r elements."""
    for error in own_cluster.try_run(_sum_of_own_length):
        assert isinstance(error, CollectiveMismatch)
        views = re.findall(r"rank (\d) \(algo-\d\) called allreduce\(float64\[(\d+)\], sum\)", str(error))
        assert [(int(rank), int(length)) for rank, length in views] == [(r, 10 + r) for r in range(own_cluster.size)]
    for error in own_cluster.try_run(_sum):
        assert isinstance(error, CollectiveMismatch), "the group is unusable from then on"


@pytest.mark.parametrize("own_cluster", [[2, 2]], indirect=True, ids=str)
@pytest.mark.parametrize(
    "calls", [["float32"] * 3 + ["barrier"], ["float32", "float64"] * 2, ["broadcast"] + ["int8"] * 3]
)
def test_different_calls_are_a_mismatch(own_cluster, calls):
    for error in own_cluster.try_run(_own_call, calls):
        assert isinstance(error, CollectiveMismatch)


#: Of a group, each in one of its own: what ranks 0, 1, 3 call, and what rank 2 calls.
ODD_ONE_OUT = {
    "shape": (lambda g: hc.allreduce(np.ones((2, 3)), g), lambda g: hc.allreduce(np.ones((3, 2)), g)),
    "dtype": (lambda g: hc.reduce(np.ones(3), g), lambda g: hc.reduce(np.ones(3, np.int8), g)),
    "op": (
        lambda g: hc.reduce_scatter(np.ones((4, 1)), g),
        lambda g: hc.reduce_scatter(np.ones((4, 1)), g, hc.ReduceOp.MAX),
    ),
    "root": (lambda g: hc.broadcast(np.ones(3), g, 0), lambda g: hc.broadcast(np.ones(3), g, 3)),
    "counts": (
        lambda g: hc.allgather(np.ones(1), g, counts=[1, 1, 1, 1]),
        lambda g: hc.allgather(np.ones(1), g, counts=[1, 2, 1, 1]),
    ),
    "kind": (lambda g: hc.alltoall(np.ones((4, 2)), g), hc.barrier),
    "calls": (
        lambda g: hc.allreduce(np.ones(3), g).wait() is None or hc.barrier(g),
        lambda g: hc.allreduce(np.ones(3), g).wait() is None or hc.allreduce(np.ones(3), g),
    ),
}


def _odd(comm, what):
    return ODD_ONE_OUT[what][comm.rank == 2](comm.group(range(4), what)).wait()


@pytest.mark.parametrize("cluster", [[2, 2]], indirect=True, ids=str)
@pytest.mark.parametrize("what", ODD_ONE_OUT)
def test_one_rank_calls_something_else(cluster, what):
    """Rank 2 of 4, on the second host, differs in one thing. All raise; the message tells the three from the one."""
    errors = cluster.try_run(_odd, what)
    assert all(isinstance(e, CollectiveMismatch) for e in errors)
    text = str(errors[0])
    assert {str(e) for e in errors} == {text}
    three = r"(?<=: )rank 0 \(algo-1\), rank 1 \(algo-1\), rank 3 \(algo-2\) called (.*); rank 2 \(algo-2\) called (.*)"
    called = re.search(three, text)
    assert called and called[1] != called[2]


#: The call in a group, then who gives to whom, and how much either end says.
UNEQUAL_ENDS = {
    "gather": (
        lambda g: hc.gather(np.ones(2 + g.rank), g, 0, counts=[2, 5, 4] if g.rank == 0 else None),
        (1, 0, 3, 5),
    ),
    "scatter": (
        lambda g: hc.scatter(
            np.ones(6) if g.rank == 0 else None, g, 0, counts=[1, 2, 3], out=np.ones(1) if g.rank else None
        ),
        (0, 1, 2, 1),
    ),
    "alltoall": (
        lambda g: hc.alltoall(np.ones(3), g, send_counts=[1, 1, 1], recv_counts=[1, 1, 1 + (g.rank == 1)]),
        (2, 1, 1, 2),
    ),
}


def _unequal(comm, what):
    return UNEQUAL_ENDS[what][0](comm.group([0, 1, 2], what)).wait() if comm.rank < 3 else None


@pytest.mark.parametrize("cluster", [[2, 2]], indirect=True, ids=str)
@pytest.mark.parametrize("what", UNEQUAL_ENDS)
def test_two_ranks_disagree_on_how_much_one_gives_the_other(cluster, what):
    source, sink, given, taken = UNEQUAL_ENDS[what][1]
    names = ["rank 0 (algo-1)", "rank 1 (algo-1)", "rank 2 (algo-2)"]
    for error in cluster.try_run(_unequal, what)[:3]:
        assert isinstance(error, CollectiveMismatch)
        assert f"{names[source]} gives {given} elements to {names[sink]}, which expects {taken}" in str(error)


def _message(comm, sent, received, timeout):
    group = comm.group(range(comm.world.size), f"message {sent}, {received}")
    if comm.rank == 0 and sent:
        hc.send(np.ones(sent), group, 2, tag=5, timeout=timeout).wait()
    if comm.rank == 2 and received:
        hc.recv(np.ones(received), group, 0, tag=5, timeout=timeout).wait()
    return hc.barrier(group).wait()


@pytest.mark.parametrize("cluster", [[2, 2]], indirect=True, ids=str)
def test_a_message_of_another_length_poisons_the_group(cluster):
    """Rank 0 sends 3 elements, rank 2 receives 4; the others are in a barrier."""
    for error in cluster.try_run(_message, 3, 4, 30):
        assert isinstance(error, CollectiveMismatch)
        assert "rank 0 (algo-1) called send(float64[3], to 2)" in str(error)
        assert "rank 2 (algo-2) called recv(float64[4], from 0)" in str(error)


@pytest.mark.parametrize("cluster", [[2, 2]], indirect=True, ids=str)
def test_who_waits_for_a_message_in_vain_names_the_sender(cluster):
    """Rank 2 waits 0.3 s for a message of rank 0."""
    error = cluster.try_run(_message, 0, 3, 0.3)[2]
    assert isinstance(error, CollectiveTimeout)
    assert "recv '5' #1, recv(float64[3], from 0), waited 0.3 s for rank 0 (algo-1), which did not call it" in str(
        error
    )


MISUSES = {
    "root is 7; expected 0 to 1": lambda w: hc.reduce(np.ones(1), w, 7),
    "the receiver is 2; expected 0 to 1": lambda w: hc.send(np.ones(1), w, 2),
    "a message of a rank to itself": lambda w: hc.send(np.ones(1), w, w.rank),
    "shape [3, 2]; expected 2 pieces": lambda w: hc.alltoall(np.ones((3, 2)), w),
    "needs both send_counts and recv_counts": lambda w: hc.alltoall(np.ones(2), w, send_counts=[1, 1]),
    "counts has 3 numbers; expected 2": lambda w: hc.allgather(np.ones(1), w, counts=[1, 1, 1]),
    "counts are [2, -1]; none may be below 0": lambda w: hc.reduce_scatter(np.ones(1), w, counts=[2, -1]),
    "3 rows together, but the array has shape [4]": lambda w: hc.reduce_scatter(np.ones(4), w, counts=[2, 1]),
    "scatter needs `out` on every rank but the root": lambda w: hc.scatter(None, w, 1 - w.rank),
    "expected a contiguous writable float64[2, 3]": lambda w: hc.allgather(np.ones(3), w, out=np.ones((3, 2)).T),
    "dtype complex128 can't be sent; expected one of float16, ": lambda w: hc.gather(np.ones(1, complex), w),
    "dtype >f4 has another byte order": lambda w: hc.allreduce(np.ones(2, ">f4"), w),
    "avg is for floating-point types": lambda w: hc.reduce(np.ones(1, int), w, 0, hc.ReduceOp.AVG),
    "a tag is longer than 63 bytes": lambda w: hc.barrier(w, tag="t" * 64),
}


def _misuse(comm, text):
    try:
        MISUSES[text](comm.world)
    except InvalidCollective as exc:
        return str(exc)


@pytest.mark.parametrize("cluster", [[2]], indirect=True, ids=str)
def test_a_wrong_argument_is_refused_before_anything_starts(cluster):
    """And the group is as good as before."""
    for text in MISUSES:
        for message in cluster.run(_misuse, text):
            assert text in (message or "")
    assert cluster.run(_sum) == [[2.0] * 10] * 2


def _slow(comm, late, seconds):
    os.environ["HDP_STALL_SECONDS"] = "0.3"
    if comm.rank == late:
        hc.barrier(comm.group([late])).wait()
        time.sleep(seconds)
    return hc.allreduce(np.ones(10), comm.world, timeout=20).wait()[0]


def test_a_slow_operation_is_logged_with_who_is_missing():
    """Rank 3 is 2 s late, the stall time 0.3 s: lines after 0.3, 0.6 and 1.2 s, in the log of hosts[0] alone."""
    with Cluster([2, 2]) as cluster:
        assert cluster.run(_slow, 3, 2) == [4.0] * 4
        lines = [line for line in cluster.log(0).splitlines() if "stalled" in line]
        assert cluster.log(1) == ""
    assert 2 <= len(lines) <= 3
    assert re.fullmatch(
        r"hdp server: stalled: allreduce #1, allreduce\(float64\[10\], sum\), waited \d\.\d s for rank 3 \(algo-2\), "
        r"which did not call it; operations of the group that they called so far: rank 3: 0; usually .*; "
        r"it fails in 1\d\.\d s",
        lines[-1],
    )


def _in_groups(comm):
    try:
        hc.allreduce(np.ones(3 + comm.rank), comm.group([0, 1], "bad")).wait()
    except CollectiveMismatch:
        return hc.allreduce(np.ones(3), comm.group([0, 1], "good")).wait().tolist()


@pytest.mark.parametrize("own_cluster", [[2], [1, 1]], indirect=True, ids=str)
def test_a_mismatch_poisons_its_group_alone(own_cluster):
    assert own_cluster.run(_in_groups) == [[2.0, 2.0, 2.0]] * 2


@own
def test_a_timeout_names_the_missing_rank(own_cluster):
    """The last rank does not call; the others have a limit of 0.3 s."""
    last = own_cluster.size - 1
    for rank in range(last):
        own_cluster.call(rank, _sum, 10, 0.3, "loss")
    for error in own_cluster.collect(ranks=range(last)).values():
        assert isinstance(error, CollectiveTimeout)
        assert f"rank {last} (algo-{len(own_cluster.sizes)}), which did not call it" in str(error)
        assert "allreduce 'loss' #1, allreduce(float32[10], sum), waited 0.3 s" in str(error)
        assert "rank 0" not in str(error)
    own_cluster.call(last, _sum, 10, 0.3, "loss")
    assert isinstance(own_cluster.collect(ranks=[last])[last], CollectiveTimeout), "late: the group is poisoned"


@own
@pytest.mark.parametrize("count", [10, 5_000_000])
def test_a_killed_rank_is_named_within_seconds(own_cluster, count):
    """The last rank is killed while the others wait for it in an allreduce."""
    last = own_cluster.size - 1
    for rank in range(last):
        own_cluster.call(rank, _sum, count)
    time.sleep(0.2)
    killed = time.monotonic()
    os.kill(own_cluster.ranks[last].pid, signal.SIGKILL)
    for error in own_cluster.collect(timeout=10, ranks=range(last)).values():
        assert isinstance(error, PeerLost)
        assert f"rank {last} (algo-{len(own_cluster.sizes)}), process {own_cluster.ranks[last].pid}, ended" in str(
            error
        )
    assert time.monotonic() - killed < 5


def _loop(comm, count):
    array = np.ones(count, np.float32)
    while True:
        hc.allreduce(array, comm.world).wait()


@own
def test_a_rank_killed_in_the_middle_of_a_transfer(own_cluster):
    """All ranks reduce 20 MB again and again; one is killed."""
    for rank in range(own_cluster.size):
        own_cluster.call(rank, _loop, 5_000_000)
    time.sleep(0.5)
    os.kill(own_cluster.ranks[0].pid, signal.SIGKILL)
    for error in own_cluster.collect(timeout=10, ranks=range(1, own_cluster.size)).values():
        assert isinstance(error, PeerLost) and "rank 0 (algo-1)" in str(error)


@pytest.mark.parametrize("own_cluster", [[1, 2]], indirect=True, ids=str)
def test_a_killed_server_is_noticed_here_and_on_other_hosts(own_cluster):
    for rank in range(own_cluster.size):
        own_cluster.call(rank, _loop, 1_000_000)
    time.sleep(0.3)
    own_cluster.servers[1].kill()
    errors = own_cluster.collect(timeout=10)
    assert all(isinstance(e, PeerLost) for e in errors.values())
    assert "host algo-2 closed its connection" in str(errors[0])
    assert "the server of host algo-2 is gone" in str(errors[1])


def _fork_holder(comm):
    child = os.fork()
    if child == 0:
        time.sleep(8)  # holds every descriptor of the rank
        os._exit(0)
    return child


@pytest.mark.parametrize("own_cluster", [[2], [1, 1]], indirect=True, ids=str)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_dead_rank_is_noticed_though_its_child_holds_the_socket(own_cluster):
    """Rank 1 forks, as a data loader does, and is killed."""
    own_cluster.call(1, _fork_holder)
    child = own_cluster.collect(ranks=[1])[1]
    try:
        own_cluster.call(0, _sum)
        os.kill(own_cluster.ranks[1].pid, signal.SIGKILL)
        start = time.monotonic()
        assert isinstance(own_cluster.collect(timeout=6, ranks=[0])[0], PeerLost)
        assert time.monotonic() - start < 4
    finally:
        os.kill(child, signal.SIGKILL)


def _fork_and_use(comm):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            hc.barrier(comm.world)
            os.write(write, b"no error")
        except Exception as exc:
            os.write(write, str(exc).encode())
        comm.close()  # must not tell the server that the rank leaves
        os._exit(0)
    os.waitpid(child, 0)
    text = os.read(read, 1000).decode()
    os.close(read)
    os.close(write)
    return text


@pytest.mark.parametrize("own_cluster", [[2]], indirect=True, ids=str)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_is_refused_and_harmless(own_cluster):
    own_cluster.call(0, _fork_and_use)
    assert "forked child" in own_cluster.collect(ranks=[0])[0]
    assert own_cluster.run(_sum) == [[2.0] * 10] * 2


def _leave(comm):
    comm.close()


@pytest.mark.parametrize("own_cluster", [[2], [1, 1]], indirect=True, ids=str)
def test_who_waits_for_a_rank_that_left_is_told(own_cluster):
    own_cluster.call(0, _leave)
    own_cluster.collect(ranks=[0])
    own_cluster.call(1, _sum)
    error = own_cluster.collect(ranks=[1], timeout=10)[1]
    assert isinstance(error, PeerLost) and "rank 0 (algo-1) has left" in str(error)


def _leave_in_flight(comm):
    hc.allreduce(np.ones(4), comm.world)
    time.sleep(0.2)
    comm.close()


@pytest.mark.parametrize("own_cluster", [[2, 1]], indirect=True, ids=str)
def test_leaving_before_an_operation_is_complete_is_told_at_once(own_cluster):
    """Rank 0 starts an allreduce and leaves; rank 1 has joined it, rank 2 has not."""
    own_cluster.call(0, _leave_in_flight)
    own_cluster.call(1, _sum, 10)
    own_cluster.collect(ranks=[0])
    own_cluster.call(2, _sum, 10)
    for error in own_cluster.collect(ranks=[1, 2], timeout=10).values():
        assert isinstance(error, (PeerLost, CollectiveMismatch))


@pytest.mark.parametrize("own_cluster", [[1, 1]], indirect=True, ids=str)
def test_a_server_that_stands_still_is_given_up(own_cluster):
    """SIGSTOP to the server of host 0; the limit is 0.2 s. Both ranks raise, though no server can tell them why."""
    own_cluster.servers[0].send_signal(signal.SIGSTOP)
    try:
        for rank in (0, 1):
            own_cluster.call(rank, _sum, 10, 0.2)
        for error in own_cluster.collect(timeout=25).values():
            assert isinstance(error, (CollectiveTimeout, PeerLost))
    finally:
        own_cluster.servers[0].send_signal(signal.SIGCONT)


def test_ranks_that_do_not_fit_the_hosts_are_refused(tmp_path):
    """The process with local rank 0 of the only host says that it is rank 1."""
    with Cluster([1]) as cluster:
        cluster.run(_leave)
        cluster.call(0, _rejoin, cluster.socket(0), str(cluster.secret), 0, 1)
        error = cluster.collect()[0]
    assert "local rank 0 says that it is rank 1, expected 0" in str(error)


def test_ranks_join_again_after_all_have_left():
    """The same servers serve a second generation of ranks."""
    with Cluster([1, 2]) as cluster:
        cluster.run(_leave)
        for host, n in enumerate(cluster.sizes):
            for local in range(n):
                rank = sum(cluster.sizes[:host]) + local
                cluster.call(rank, _rejoin, cluster.socket(host), str(cluster.secret), local, rank)
        assert set(cluster.collect().values()) == {3.0}


def _rejoin(comm, socket_path, secret, local_rank, rank):
    from hdp.collectives.communicator import join

    again = join(socket_path, secret, rank, local_rank, 20)
    try:
        return float(hc.allreduce(np.ones(1), again.world).wait(20)[0])
    finally:
        again.close()


def test_a_rank_that_never_joins_is_named(tmp_path):
    """Two ranks are expected on the only host, one joins; the limit is 1 s."""
    script = tmp_path / "rank.py"
    script.write_text(
        "import sys\nfrom hdp.collectives.communicator import join\njoin(sys.argv[1], sys.argv[2], 0, 0, 5)\n"
    )
    cluster = Cluster.__new__(Cluster)
    cluster.sizes, cluster.size, cluster.pipes, cluster.ranks = [2], 2, [], []
    import tempfile
    from pathlib import Path

    cluster.folder = tempfile.TemporaryDirectory(prefix="hdp-test-")
    cluster.secret = Path(cluster.folder.name) / "secret"
    cluster.secret.touch(mode=0o600)
    cluster.secret.write_bytes(os.urandom(32))
    cluster.servers = [cluster._serve(0, [{"name": "algo-1", "address": "127.0.0.1", "local_size": 2}], 1.0)]
    with cluster:
        done = subprocess.run(
            [sys.executable, str(script), cluster.socket(0), str(cluster.secret)], capture_output=True, text=True
        )
    assert done.returncode == 1
    assert "rank 1 on algo-1 did not join within 1 s" in done.stderr


@pytest.mark.parametrize("own_cluster", [[1]], indirect=True, ids=str)
def test_a_wrong_secret_changes_nothing(own_cluster, tmp_path):
    """A stranger with another secret is refused; the rank goes on."""
    from hdp.collectives.communicator import join
    from hdp.collectives.handshake import HandshakeError

    other = tmp_path / "secret"
    other.touch(mode=0o600)
    other.write_bytes(b"x" * 32)
    with pytest.raises(HandshakeError, match="does not know the job's secret"):
        join(own_cluster.socket(0), other, 0, 0, 5)
    assert own_cluster.run(_sum) == [[1.0] * 10]
