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
from hdp.contract.errors import CollectiveMismatch, CollectiveTimeout, PeerLost

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
def test_a_mismatch_raises_on_every_rank_and_names_two_views(own_cluster):
    """Rank r reduces 10 + r elements."""
    for error in own_cluster.try_run(_sum_of_own_length):
        assert isinstance(error, CollectiveMismatch)
        views = re.findall(r"rank (\d) \(algo-\d\) called allreduce\(float64\[(\d+)\], sum\)", str(error))
        assert len(views) >= 2 and all(int(length) == 10 + int(rank) for rank, length in views)
    for error in own_cluster.try_run(_sum):
        assert isinstance(error, CollectiveMismatch), "the group is unusable from then on"


@pytest.mark.parametrize("own_cluster", [[2, 2]], indirect=True, ids=str)
@pytest.mark.parametrize(
    "calls", [["float32"] * 3 + ["barrier"], ["float32", "float64"] * 2, ["broadcast"] + ["int8"] * 3]
)
def test_different_calls_are_a_mismatch(own_cluster, calls):
    for error in own_cluster.try_run(_own_call, calls):
        assert isinstance(error, CollectiveMismatch)


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
