"""What torch's ranks run, one script a function: ``torchrun torch_ranks.py NAME``. Each asserts on every rank."""

import faulthandler
import hashlib
import os
import signal
import sys
import threading
import time

import rank_checks
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook


def collectives():
    """Each call against what it must give, for every dtype and for no element."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for dtype in rank_checks.DTYPES:
        for count in (0, 1, 70_001):
            base = torch.arange(count) % 5
            mine = (base + rank).to(dtype)
            total = mine.clone()
            dist.all_reduce(total)
            expected = sum((base + r).to(dtype).double() for r in range(ranks))
            expected = expected.bool() if dtype == torch.bool else expected.to(dtype)
            assert torch.equal(total, expected), (dtype, count)
            gathered = [torch.empty_like(mine) for _ in range(ranks)]
            dist.all_gather(gathered, mine)
            assert all(torch.equal(g, (base + r).to(dtype)) for r, g in enumerate(gathered))
            dist.broadcast(mine, src=ranks - 1)
            assert torch.equal(mine, (base + ranks - 1).to(dtype))
    average = torch.full((3,), float(rank))
    dist.all_reduce(average, op=dist.ReduceOp.AVG)
    assert average.tolist() == [(ranks - 1) / 2] * 3
    whole = torch.empty(ranks, 4)
    dist.distributed_c10d._get_default_group()._allgather_base(whole, torch.full((4,), float(rank))).wait()
    assert whole[:, 0].tolist() == list(range(ranks))
    objects = [None] * ranks
    dist.all_gather_object(objects, {"rank": rank})
    assert [o["rank"] for o in objects] == list(range(ranks))
    dist.barrier()
    memory_layouts()
    rank_checks.everything()
    time.sleep(0.2)  # for the threads of the gloo group that was compared with


def memory_layouts():
    """Transposed, strided and overlapping-free views are reduced in place."""
    ranks = dist.get_world_size()
    base = torch.arange(24.0).reshape(4, 6)
    transposed = base.clone().t()
    dist.all_reduce(transposed)
    assert torch.equal(transposed, base.t() * ranks)
    whole = base.clone()
    dist.all_reduce(whole[:, ::2])
    assert torch.equal(whole[:, ::2], base[:, ::2] * ranks) and torch.equal(whole[:, 1::2], base[:, 1::2])
    dist.broadcast(whole.t()[1:], src=0)


def futures():
    """A future holds a list; a callback may itself wait for an operation; errors come as exceptions."""
    ranks = dist.get_world_size()
    work = dist.all_reduce(torch.ones(3), async_op=True)
    assert isinstance(work.get_future().wait(), list)
    work.wait()
    assert work.is_completed() and work.is_success()

    def nested(future):
        inner = dist.all_reduce(future.value()[0].clone(), async_op=True).get_future().wait()
        return inner[0].sum().item()

    outer = [dist.all_reduce(torch.ones(2), async_op=True).get_future().then(nested) for _ in range(8)]
    assert [f.wait() for f in outer] == [2.0 * ranks * ranks] * 8
    never = dist.all_reduce(torch.ones(2 + dist.get_rank()), async_op=True)
    try:
        never.get_future().wait()
    except RuntimeError as exc:
        assert "disagree" in str(exc)
    else:
        raise AssertionError("a mismatch passed")


def futures_of_several_groups():
    """Two groups share a connection; one is destroyed; a callback comes late on one rank; work is left in flight."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    other = dist.new_group(list(range(ranks)))
    works = [dist.all_reduce(torch.ones(3), group=g, async_op=True) for _ in range(50) for g in (None, other)]
    assert all(w.get_future().wait()[0][0] == ranks for w in works)
    dist.destroy_process_group(other)

    def nested(future):
        return dist.all_reduce(future.value()[0].clone(), async_op=True).get_future().wait()[0].sum().item()

    future = dist.all_reduce(torch.ones(2), async_op=True).get_future()
    if rank == 0:
        time.sleep(0.5)  # complete by now: torch runs the callback in this thread
    late = future.then(nested)
    plain = torch.ones(1)
    dist.all_reduce(plain)
    assert late.wait() == 2.0 * ranks * ranks and plain.item() == ranks
    before = threading.active_count()
    for _ in range(200):
        dist.all_reduce(torch.ones(1), async_op=True).wait()
    assert threading.active_count() <= before + 2
    dist.barrier()
    if rank == 0:
        left = dist.all_reduce(torch.ones(1), async_op=True).get_future()
        dist.destroy_process_group()
        try:
            left.wait()
        except RuntimeError as exc:
            assert "closed" in str(exc)
        else:
            raise AssertionError("an operation that nobody joined is complete")
    else:
        time.sleep(0.5)
        dist.destroy_process_group()
    dist.init_process_group("gloo")


def ddp():
    """DDP with buffers, hooks, unused parameters and accumulation: equal weights on all ranks."""
    for kind in ("plain", "fp16", "powersgd", "unused", "no_sync"):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 10))
        if kind == "unused":
            net.spare = nn.Linear(2, 2)
            net.spare_used = False
        model = nn.parallel.DistributedDataParallel(
            _SkipSpare(net) if kind == "unused" else net, find_unused_parameters=kind == "unused", bucket_cap_mb=0.002
        )
        if kind == "fp16":
            model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        if kind == "powersgd":
            state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
            model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        torch.manual_seed(100 + dist.get_rank())
        for _ in range(5):
            optimizer.zero_grad()
            if kind == "no_sync":
                with model.no_sync():
                    model(torch.randn(8, 1, 8, 8)).square().mean().backward()
            model(torch.randn(8, 1, 8, 8)).square().mean().backward()
            optimizer.step()
        weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
        digests = [None] * dist.get_world_size()
        dist.all_gather_object(digests, hashlib.sha256(weights).hexdigest())
        assert len(set(digests)) == 1, kind


class _SkipSpare(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return nn.Sequential(*list(self.net)[:4])(x)


def users():
    """What people run, on this backend."""
    import user_checks  # seconds

    user_checks.everything()


def dtypes():
    """Dtypes, reductions and layouts that the library doesn't have: none of them by gloo."""
    import dtype_checks

    rank_checks.everything(dtype_checks.CHECKS)
    time.sleep(0.2)  # for the threads of the gloo groups that were compared with


def parallel():
    """What trains, compared with gloo or with one process."""
    import parallel_checks  # seconds

    rank_checks.everything(parallel_checks.CHECKS)
    time.sleep(0.2)


def inductor():
    """A compiled step, by torch's own compiler."""
    import parallel_checks

    parallel_checks.compiled("inductor")


def groups():
    """Groups, messages, barriers and timeouts."""
    import group_checks

    rank_checks.everything(group_checks.CHECKS)
    time.sleep(0.2)


def delegated():
    """What the library does not serve goes through gloo, and says so once."""
    rank = dist.get_rank()
    other = 1 - rank
    received = torch.empty(2)
    for source in (other, None):
        work = dist.isend(torch.full((2,), float(rank)), other)
        dist.recv(received, source)
        work.wait()
        assert received.tolist() == [other] * 2


def groups_and_again():
    """Sub-groups reuse the connection; a destroyed group can be made again."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    ends = dist.new_group([0, ranks - 1])
    if rank in (0, ranks - 1):
        total = torch.tensor([float(rank)])
        dist.all_reduce(total, group=ends)
        assert total.item() == ranks - 1
    dist.destroy_process_group()
    dist.init_process_group("hdp")
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == ranks


def dies():
    """Rank 1 is killed in the middle; the others get PeerLost that names it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun sends it to the others, who are to say what they got
    dist.all_reduce(torch.ones(1))
    if dist.get_rank() == 1:
        os.kill(os.getpid(), 9)
    dist.all_reduce(torch.ones(1))


if __name__ == "__main__":
    # A rank that hangs tells where; the test ends it after 100 s, or later where it says so.
    faulthandler.dump_traceback_later(float(os.environ.get("RANKS_SECONDS", "70")))
    if sys.argv[1] == "smddp":
        import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401

        dist.init_process_group("smddp")
        ddp()
    else:
        dist.init_process_group("hdp")
        globals()[sys.argv[1]]()
    print(f"rank {dist.get_rank()} is fine", flush=True)
    dist.destroy_process_group()
