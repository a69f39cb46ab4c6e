"""The agent with the real reduction server and ranks that use it."""

from __future__ import annotations

import time

from runtime_cluster import MakeCluster


def test_ranks_reach_each_other_through_the_servers(make_cluster: MakeCluster) -> None:
    """2x2: rank r gives [r, 10 * r]; every rank gets [6, 60]. The servers end with the job."""
    cluster = make_cluster(
        """
        import numpy as np
        import hdp.collectives as hc
        comm = hc.init()
        rank = comm.rank
        print("sum", hc.allreduce(np.array([rank, 10 * rank], dtype=np.float32), comm.world).wait().tolist())
        """,
        hosts=2,
        ranks=2,
        server=None,
    )
    assert cluster.run() == [0, 0], cluster.log()
    for rank in range(4):
        assert f"[algo-{1 + rank // 2}:{rank}] sum [6.0, 60.0]\n" in cluster.log()


def test_the_rank_that_raised_is_the_cause_and_not_those_it_left_alone(make_cluster: MakeCluster) -> None:
    """2x2: rank 2 raises before an allreduce in which the others wait: they raise too, and rank 2 is named."""
    cluster = make_cluster(
        """
        import numpy as np, time
        import hdp.collectives as hc
        comm = hc.init()
        hc.barrier(comm.world).wait()
        if comm.rank == 2:
            raise ValueError("boom")
        hc.allreduce(np.ones(1000, dtype=np.float32), comm.world).wait()
        """,
        hosts=2,
        ranks=2,
        server=None,
    )
    start = time.monotonic()
    assert cluster.run() == [1, 1], cluster.log()
    assert time.monotonic() - start < 30
    for host in cluster.hosts:
        assert host.failure().startswith("rank 2 on algo-2 failed (exit code 1): ValueError: boom"), host.failure()
    failures = [f for h in cluster.hosts for f in h.report().failures]
    assert {f.rank: f.collateral for f in failures} == {0: True, 1: True, 2: False, 3: True}, failures
