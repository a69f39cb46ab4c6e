"""Joining: who doesn't fit, doesn't come or has another secret is named; who has left may join again."""

import pytest
from calls import leave, ones, rejoin
from cluster import Cluster

from hdp.collectives.communicator import join
from hdp.collectives.handshake import HandshakeError
from hdp.contract.errors import CollectiveError


def test_ranks_that_do_not_fit_the_hosts_are_refused():
    """The process with local rank 0 of the only host says that it is rank 1."""
    with Cluster([1]) as cluster:
        cluster.run(leave)
        cluster.call(0, rejoin, cluster.socket(0), str(cluster.secret), 0, 1)
        error = cluster.collect()[0]
    assert "local rank 0 says that it is rank 1, expected 0" in str(error)


def test_ranks_join_again_after_all_have_left():
    """The same servers serve a second generation of ranks."""
    with Cluster([1, 2]) as cluster:
        cluster.run(leave)
        for host, n in enumerate(cluster.sizes):
            for local in range(n):
                rank = sum(cluster.sizes[:host]) + local
                cluster.call(rank, rejoin, cluster.socket(host), str(cluster.secret), local, rank)
        assert set(cluster.collect().values()) == {3.0}


class OneMissing(Cluster):
    """Only the first rank of each host is started."""

    def _start_rank(self, host, local):
        if local == 0:
            super()._start_rank(host, local)


def test_a_rank_that_never_joins_is_named():
    """Two ranks are expected on the only host, one joins; the limit is 1 s."""
    with OneMissing([2], start_timeout=None, start_timeout_seconds=1.0) as cluster:
        error = cluster.collect(20, ranks=[0])[0]
    assert isinstance(error, CollectiveError)
    assert "rank 1 on algo-1 did not join within 1 s" in str(error)


@pytest.mark.parametrize("own_cluster", [[1]], indirect=True, ids=str)
def test_a_wrong_secret_changes_nothing(own_cluster, tmp_path):
    """A stranger with another secret is refused; the rank goes on."""
    other = tmp_path / "secret"
    other.touch(mode=0o600)
    other.write_bytes(b"x" * 32)
    with pytest.raises(HandshakeError, match="does not know the job's secret"):
        join(own_cluster.socket(0), other, 0, 0, 5)
    assert own_cluster.run(ones) == [[1.0] * 10]
