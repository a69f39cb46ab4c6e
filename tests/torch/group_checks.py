"""Groups, messages, barriers and timeouts; `torch_ranks.py` runs them on each rank."""

import time
from datetime import timedelta

import rank_checks
import torch
import torch.distributed as dist
from rank_checks import values
from torch.distributed.distributed_c10d import _get_default_group, _set_pg_timeout


def monitored():
    """`monitored_barrier` passes when all come, and names who doesn't."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    dist.monitored_barrier()
    group = dist.new_group()
    dist.monitored_barrier(group, timeout=timedelta(seconds=20), wait_all_ranks=True)
    if rank == 0:
        missing = ", ".join(str(r) for r in range(1, ranks))
        call = dist.monitored_barrier
        rank_checks.raises(lambda: call(group, timedelta(seconds=0.3), True), f"Ranks {missing} failed to pass")
    gloo = dist.new_group(backend="gloo")
    dist.monitored_barrier(gloo)
    dist.barrier()


def split():
    """`split_group`: each part is a group of its own; parts of parts, too; who is in none gets None."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    parts = [list(range(ranks - 1, 0, -1)), [0]]
    part = dist.split_group(split_ranks=parts)
    total = torch.tensor([float(rank)])
    dist.all_reduce(total, group=part)
    assert total.item() == sum(range(1, ranks)) if rank else total.item() == 0
    assert dist.get_process_group_ranks(part) == (list(range(1, ranks)) if rank else [0])
    again = dist.split_group(split_ranks=[[1, 0]])
    assert (again is None) == (rank > 1)
    if again is not None:
        dist.all_reduce(total, group=again)
    if rank:
        of_part = dist.split_group(part, [[0]])  # the part's first rank
        assert (of_part is None) == (rank != 1) and (of_part is None or dist.get_process_group_ranks(of_part) == [1])
    for wrong in ([], [[0, 0]], [[0], [0, 1]], [[ranks]], [[0], []]):
        rank_checks.raises(lambda wrong=wrong: dist.split_group(split_ranks=wrong), "expected lists of the parent's")


def made_by_members_alone():
    """`new_group(use_local_synchronization=True)`: the others don't call."""
    rank = dist.get_rank()
    if rank in (0, 1):
        total = torch.ones(3)
        dist.all_reduce(total, group=dist.new_group([0, 1], use_local_synchronization=True))
        assert total.tolist() == [2.0] * 3


def messages():
    """Rings of messages, with tags that cross, in batches and one by one."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    following, before = (rank + 1) % ranks, (rank - 1) % ranks
    for count in (0, 1, 70_001):
        received = [torch.empty(count), torch.empty(count)]
        operations = [
            dist.P2POp(dist.isend, values(rank, count), following, tag=1),
            dist.P2POp(dist.isend, values(10 + rank, count), following, tag=2),
            dist.P2POp(dist.irecv, received[1], before, tag=2),
            dist.P2POp(dist.irecv, received[0], before, tag=1),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        assert torch.equal(received[0], values(before, count)) and torch.equal(received[1], values(10 + before, count))
    work = dist.isend(values(rank, 5), following)
    received = torch.empty(5)
    assert dist.recv(received) == before and torch.equal(received, values(before, 5))
    work.wait()
    objects = [None]
    if rank == 0:
        dist.send_object_list([{"from": 0}], dst=1)
    if rank == 1:
        dist.recv_object_list(objects, src=0)
        assert objects == [{"from": 0}]


def timeouts():
    """A group's timeout holds, also one that is set later; the message says whose it is."""
    rank = dist.get_rank()
    short, later = dist.new_group(timeout=timedelta(seconds=0.5)), dist.new_group()
    _set_pg_timeout(timedelta(seconds=0.5), later)
    for group in (short, later):
        if rank == 0:
            began = time.monotonic()
            rank_checks.raises(
                lambda group=group: dist.barrier(group), "the timeout is that of the call, or of its group"
            )
            assert time.monotonic() - began < 10
    dist.barrier()


def chained():
    """`Future.then` on `then`; the value is a list; an operation's error comes out of it."""
    ranks = dist.get_world_size()
    work = dist.all_reduce(torch.ones(3), async_op=True)
    chain = work.get_future().then(lambda f: f.value()[0] * 2).then(lambda f: f.value().sum().item())
    assert chain.wait() == 6.0 * ranks
    wrong = dist.all_reduce(torch.ones(1 + dist.get_rank()), group=dist.new_group(), async_op=True)
    rank_checks.raises(lambda: wrong.get_future().then(lambda f: f.value()).wait(), "disagree")
    members = dist.get_process_group_ranks(_get_default_group())
    assert members == list(range(ranks)) and dist.get_backend() == "hdp"


CHECKS = [monitored, made_by_members_alone, split, messages, timeouts, chained]
