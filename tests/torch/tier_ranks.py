"""Scripts for torchrun, one a function: ``torchrun tier_ranks.py NAME``. Each asserts on every rank.

The local tier with gloo for NCCL, and CPU tensors for a GPU's behind the fake driver that $HDP_CUDA_DRIVER names.
$TIER_GPUS: "own" gives each rank a GPU of its own, "shared" one to all of a host.
"""

import faulthandler
import logging
import os
import sys
import time
from functools import partial

import fake_tensors
import torch
import torch.distributed as dist
from torch import nn

from hdp.contract.errors import CollectiveError, CollectiveMismatch, InvalidCollective, PeerLost
from hdp.torch import host_group, local_tier, process_group, tier_choice, tier_pieces
from hdp.torch.tier_work import TierWork

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8)
OPS = (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MIN, dist.ReduceOp.MAX)
#: Elements: several pieces that divide, that don't, less than the tier takes, one.
COUNTS = (200_000, 200_003, 100, 1)
served = []


def facts(host, _):
    gpu = f"gpu {os.environ['LOCAL_RANK'] if os.environ.get('TIER_GPUS', 'own') == 'own' else 0}"
    return tier_choice.Facts(tier_choice.setting(), host, gpu, "")


def install():
    """The tier of this process's groups, and of their works' `wait`, what makes results readable here."""
    cuda = fake_tensors.install()
    process_group.LocalTier = partial(local_tier.LocalTier, make=host_group.by_gloo, facts=facts)
    tier_pieces.PIECE_BYTES = 256 << 10
    waits, serves = TierWork.wait, local_tier.LocalTier.serve

    def wait(self, *timeout):
        waits(self, *timeout)
        cuda.driver.synchronize(cuda.current(0))
        return True

    def serve(self, name, *more):
        work = serves(self, name, *more)
        served.append((name, isinstance(work, TierWork)))
        return work

    TierWork.wait, local_tier.LocalTier.serve = wait, serve
    return cuda


def values(count, dtype, rank):
    """Small integers that differ by place and rank: sums of them are exact in every dtype."""
    return ((torch.arange(count) * 3 + rank * 5) % 7).to(dtype)


def expected(op, parts):
    whole = torch.stack([p.double() for p in parts])
    found = {
        dist.ReduceOp.SUM: lambda: whole.sum(0),
        dist.ReduceOp.AVG: lambda: whole.mean(0),
        dist.ReduceOp.MIN: lambda: whole.amin(0),
        dist.ReduceOp.MAX: lambda: whole.amax(0),
    }[op]()
    return found


def close(found, reference, dtype):
    step = {torch.float16: 2**-9, torch.bfloat16: 2**-6, torch.float32: 1e-6, torch.float64: 1e-12}.get(dtype, 0)
    torch.testing.assert_close(found.double(), reference, rtol=step, atol=0)


def tiered(name):
    """Whether the last call was served by the tier."""
    assert served[-1][0] == name, served[-1]
    return served[-1][1]


def allreduce():
    """Every dtype and operation, in sizes that divide and don't; all ranks have the same bits."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for dtype in DTYPES:
        for op in OPS:
            if op == dist.ReduceOp.AVG and not dtype.is_floating_point:
                continue
            for count in COUNTS:
                t = values(count, dtype, rank)
                dist.all_reduce(t, op=op)
                assert tiered("allreduce") == (count * dtype.itemsize >= tier_pieces.LEAST_BYTES), (dtype, count)
                close(t, expected(op, [values(count, dtype, r) for r in range(ranks)]), dtype)
                same_bits(t)


def same_bits(tensor):
    found = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(found, tensor)
    for f in found:
        assert torch.equal(f, found[0])


def layouts():
    """Transposed and strided tensors, several at once, many in flight."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    base = values(200_000, torch.float32, rank).view(400, 500)
    total = expected(dist.ReduceOp.SUM, [values(200_000, torch.float32, r).view(400, 500) for r in range(ranks)])
    turned = base.t()
    dist.all_reduce(turned)
    assert tiered("allreduce")
    close(turned, total.t(), torch.float32)
    whole = values(400_000, torch.float32, rank).view(400, 1000)
    kept = whole.clone()
    dist.all_reduce(whole[:, ::2])
    assert tiered("allreduce")
    reference = expected(dist.ReduceOp.SUM, [values(400_000, torch.float32, r).view(400, 1000) for r in range(ranks)])
    close(whole[:, ::2], reference[:, ::2], torch.float32)
    assert torch.equal(whole[:, 1::2], kept[:, 1::2])
    several = [values(n, torch.float32, rank) for n in (50_000, 1, 77_777)]
    group = dist.distributed_c10d._get_default_group()
    options = dist.AllreduceCoalescedOptions()
    group.allreduce_coalesced(several, options).wait()
    assert tiered("allreduce_coalesced")
    for t in several:
        close(t, expected(dist.ReduceOp.SUM, [values(t.numel(), torch.float32, r) for r in range(ranks)]), t.dtype)
    flying = [values(100_000 + i, torch.float32, rank) for i in range(20)]
    works = [dist.all_reduce(t, async_op=True) for t in flying]
    for work in reversed(works):
        work.wait()
    for t in flying:
        close(t, expected(dist.ReduceOp.SUM, [values(t.numel(), torch.float32, r) for r in range(ranks)]), t.dtype)


def exchange_fails():
    """That of one place: its ranks raise, then and in the next call; the others of the host aren't left waiting."""
    rank = dist.get_rank()
    dist.all_reduce(values(50_000, torch.float32, rank))
    line = dist.distributed_c10d._get_default_group().tier._line
    if rank % 2 == 0:  # both ranks of one place, so that no rank waits for what another doesn't start
        line._across.group.start = refused
    work = dist.all_reduce(values(50_000, torch.float32, rank), async_op=True)
    if rank % 2 == 0:
        raises(PeerLost, work.wait, "made up")
        raises(PeerLost, lambda: dist.all_reduce(torch.ones(50_000)), "an earlier operation failed: made up")
    else:
        work.wait()


def refused(*_, **__):
    raise PeerLost("made up")


def scattered():
    """reduce_scatter_tensor and all_gather_into_tensor, also in place."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        for part in (30_001, 7):
            inputs = [values(part * ranks, dtype, r) for r in range(ranks)]
            large = part * ranks * dtype.itemsize >= tier_pieces.LEAST_BYTES
            out = torch.empty(part, dtype=dtype)
            dist.reduce_scatter_tensor(out, inputs[rank].clone())
            assert tiered("reduce_scatter_single") == large
            reference = expected(dist.ReduceOp.SUM, inputs)
            close(out, reference[rank * part : (rank + 1) * part], dtype)
            own = inputs[rank].clone()
            dist.reduce_scatter_tensor(own[rank * part : (rank + 1) * part], own)
            close(own[rank * part : (rank + 1) * part], reference[rank * part : (rank + 1) * part], dtype)
            whole = torch.zeros(part * ranks, dtype=dtype)
            dist.all_gather_into_tensor(whole, values(part, dtype, rank))
            assert tiered("all_gather_single") == large
            everything = torch.cat([values(part, dtype, r) for r in range(ranks)])
            assert torch.equal(whole, everything)
            whole = torch.zeros(part * ranks, dtype=dtype)
            mine = whole[rank * part : (rank + 1) * part]
            mine.copy_(values(part, dtype, rank))
            dist.all_gather_into_tensor(whole, mine)
            assert torch.equal(whole, everything)
            columns = torch.zeros(part * ranks, 2, dtype=dtype)
            dist.all_gather_into_tensor(columns[:, 0], values(part, dtype, rank))
            assert torch.equal(columns[:, 0], everything) and not columns[:, 1].any()
            rows = torch.zeros(part, 2, dtype=dtype)
            dist.reduce_scatter_tensor(rows[:, 1], inputs[rank].clone())
            close(rows[:, 1], reference[rank * part : (rank + 1) * part], dtype)


def ddp():
    """Three steps of a model, compared with one process that has all ranks' batches."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(200, 300), nn.Tanh(), nn.Linear(300, 100))
    alone = nn.Sequential(nn.Linear(200, 300), nn.Tanh(), nn.Linear(300, 100))
    alone.load_state_dict(model.state_dict())
    batches = [[torch.randn(4, 200) for _ in range(ranks)] for _ in range(3)]
    parallel = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.2)
    both = [(parallel, lambda b: b[rank]), (alone, torch.cat)]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m, _ in both]
    for batch in batches:
        for (trained, pick), optimizer in zip(both, optimizers, strict=True):
            optimizer.zero_grad()
            trained(pick(batch)).square().mean().backward()
            optimizer.step()
    assert ("allreduce", True) in served
    for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)
        same_bits(mine.detach())


def futures():
    """A future has the list of tensors; a callback may start and await calls of its own, which the library serves."""
    rank, ranks = dist.get_rank(), dist.get_world_size()

    def nested(future):
        [t] = future.value()
        inner = t.clone()
        dist.all_reduce(inner)
        assert served[-1] == ("allreduce", False)
        return inner

    given = [values(50_000 + i, torch.float32, rank) for i in range(6)]
    works = [dist.all_reduce(t, async_op=True) for t in given]
    outer = [work.get_future().then(nested) for work in works]
    for t, future in zip(given, outer, strict=True):
        total = expected(dist.ReduceOp.SUM, [values(t.numel(), torch.float32, r) for r in range(ranks)])
        close(future.wait(), total * ranks, torch.float32)
    for work in works:
        assert work.wait() and work.is_completed() and work.is_success()
        assert isinstance(work.result(), list)


def inference():
    """Tensors that torch lets nobody change outside of inference mode, as the tier's thread is."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    with torch.inference_mode():
        whole = torch.zeros(30_001 * ranks)
        dist.all_gather_into_tensor(whole, values(30_001, torch.float32, rank))
        t = values(50_001, torch.float32, rank)
        dist.all_reduce(t)
        assert tiered("allreduce")
    assert torch.equal(whole, torch.cat([values(30_001, torch.float32, r) for r in range(ranks)]))
    parameter = nn.Parameter(values(50_001, torch.float32, rank))
    parameter.grad = parameter.detach().clone()
    dist.all_reduce(parameter.grad)
    dist.all_reduce(parameter.data)
    (parameter * 2).sum().backward()


def mixed():
    """Calls that the library serves, between those of the tier, each from the last one's result; groups of some."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    even = dist.new_group([r for r in range(ranks) if r % 2 == 0])
    everybody = dist.new_group(list(range(ranks)))
    t = values(100_000, torch.float64, rank)
    reference = sum(values(100_000, torch.float64, r) for r in range(ranks))
    for _ in range(5):
        dist.all_reduce(t)
        assert tiered("allreduce")
        dist.broadcast(t, src=ranks - 1)
        assert not tiered("broadcast")
        t /= ranks
        close(t, reference / ranks, torch.float64)
        reference = reference / ranks * 1.0
        before = len(served)
        if rank % 2 == 0:
            dist.all_reduce(t, group=even)
            t /= dist.get_world_size(even)
        dist.all_reduce(t, op=dist.ReduceOp.MAX, group=everybody)
        assert len(served) == before, "a group of some of the ranks has a tier"
        reference = reference * ranks


def mismatch():
    """Ranks that call different things are told before anything begins, all of them; and the next call raises."""
    rank = dist.get_rank()
    dist.all_reduce(values(50_000, torch.float32, rank))
    began = time.monotonic()
    raises(CollectiveMismatch, lambda: dist.all_reduce(torch.ones(50_000 + (rank == 1))), "rank 1", "50001")
    assert time.monotonic() - began < 20
    raises(CollectiveError, lambda: dist.all_reduce(torch.ones(50_000)), "an earlier operation failed: ", "50001")


def dies():
    """A rank that is killed is named by the others."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    dist.all_reduce(values(50_000, torch.float32, rank))
    if rank == last:
        os._exit(9)
    raises(PeerLost, lambda: dist.all_reduce(torch.ones(50_000)), f"rank {last}")


def late_error():
    """After `wait` has returned, an exchange fails: the next call raises."""
    rank = dist.get_rank()
    dist.all_reduce(values(50_000, torch.float32, rank))
    group = dist.distributed_c10d._get_default_group()
    work = dist.all_reduce(values(50_000, torch.float32, rank), async_op=True)
    work.wait()
    work._fail(PeerLost("made up"))
    raises(PeerLost, lambda: dist.all_reduce(torch.ones(50_000)), "after its wait() had returned", "made up")
    dist.barrier(group=dist.new_group())
    raises(PeerLost, lambda: group._runner.check(), "made up")


def library():
    """Where ranks share a GPU, or hosts have different numbers of ranks: the library, and the log says it."""
    t = values(50_000, torch.float32, dist.get_rank())
    dist.all_reduce(t)
    assert not tiered("allreduce")
    parts = [values(50_000, torch.float32, r) for r in range(dist.get_world_size())]
    close(t, expected(dist.ReduceOp.SUM, parts), torch.float32)


def impossible():
    """nccl is demanded and can't be: every rank is told why."""
    for _ in range(2):
        raises(InvalidCollective, lambda: dist.all_reduce(torch.ones(50_000)), os.environ["TIER_EXPECTED"])


def raises(kind, function, *texts):
    try:
        function()
    except kind as exc:
        missing = [t for t in texts if t not in str(exc)]
        assert not missing, f"{missing} not in: {exc}"
        return
    raise AssertionError(f"nothing was raised; expected {kind.__name__}")


if __name__ == "__main__":
    faulthandler.dump_traceback_later(150, exit=True)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    install()
    dist.init_process_group("hdp")
    for name in sys.argv[1:]:
        globals()[name]()
        print(f"{name}: rank {dist.get_rank()} is fine", flush=True)
    if not {"mismatch", "late_error", "exchange_fails", "dies"} & set(sys.argv):
        dist.destroy_process_group()
    else:  # there is no leaving in order: whoever ends fails what the others are in
        store = dist.distributed_c10d._get_default_store()
        store.add("ended", 1)
        while store.add("ended", 0) < dist.get_world_size() - ("dies" in sys.argv):
            time.sleep(0.05)
        time.sleep(2 if dist.get_rank() == 0 else 0)  # it has the store
        os._exit(0)
