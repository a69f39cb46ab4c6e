"""The checks of `device_checks`: each is called on every rank with `Here`, which says where the device's tensors are.

"As on the host" compares with the same call on CPU tensors, whose results other tests compare with references: the
library gives the same bits for both.
"""

import contextlib
import os
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import parallel_checks
import rank_checks
import torch
import torch.distributed as dist
import user_checks
from rank_checks import raises, scattered
from torch import nn
from torch.distributed.distributed_c10d import _get_default_group
from torch.distributed.fsdp import MixedPrecisionPolicy

OPS = (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT)
BITWISE = (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR)
COUNTS = (0, 1, 1_003, 700_001)


@dataclass
class Here:
    """Where this rank's tensors are."""

    device: torch.device
    fake: Any = None
    """The `fake_tensors.FakeCuda` behind which CPU tensors are a device's."""

    def put(self, tensor):
        """A copy of a CPU tensor on the device."""
        return tensor.clone() if self.fake else tensor.to(self.device, copy=True)

    @contextlib.contextmanager
    def host(self):
        """Inside, CPU tensors are the host's, and new tensors are CPU tensors."""
        with torch.device("cpu"), self.fake.only(lambda _: False) if self.fake else contextlib.nullcontext():
            yield

    def side(self):
        """A context in which another stream is the current one; what was in the one before comes first."""
        if self.fake:
            return self.fake.on(self.fake.side(0))
        if self.device.type == "cpu":
            return contextlib.nullcontext()
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        return torch.cuda.stream(stream)

    @property
    def is_device(self):
        """Whether the tensors are a device's, real or not."""
        return self.fake is not None or self.device.type == "cuda"


def _random(count, dtype, salt=0):
    """Elements of any size and sign, different on each rank."""
    generator = torch.Generator("cpu").manual_seed(1_000 * salt + dist.get_rank())
    if dtype == torch.bool:
        return torch.randint(0, 2, (count,), generator=generator, device="cpu").bool()
    if dtype.is_floating_point or dtype.is_complex:
        made = torch.randn(count, generator=generator, device="cpu", dtype=torch.float32)
        return (made * 3).to(dtype) if dtype.is_floating_point else torch.complex(made, made.flip(0)).to(dtype)
    return torch.randint(0, 100, (count,), generator=generator, device="cpu").to(dtype)


def _same(got, expected, what):
    """Equal bits; `got` may be on the device."""
    got = got.detach().cpu().contiguous()
    assert got.dtype == expected.dtype and got.shape == expected.shape, (what, got.shape, expected.shape)
    a, b = (t.resolve_conj().contiguous().view(-1).view(torch.uint8) for t in (got, expected))
    assert torch.equal(a, b), f"{what}: {int((a != b).sum())} of {a.numel()} bytes differ"


def _as_on_the_host(here, function, tensors, what):
    """`function` of device tensors gives what it gives of the same CPU tensors: a list of tensors."""
    with here.host():
        expected = function(*[t.clone() for t in tensors])
    got = function(*[here.put(t) for t in tensors])
    for a, b in zip(got, expected, strict=True):
        _same(a, b, what)


def calls(here):
    """Every collective, each dtype that the library has, any size and layout, futures, sub-groups, wrong calls."""
    rank_checks.everything([c for c in rank_checks.CHECKS if c is not rank_checks.like_gloo])


def reductions(here):
    """Each dtype and reduction, rounded as on the host; AVG, and PREMUL_SUM with a factor that differs by rank."""
    ranks = dist.get_world_size()
    for dtype in rank_checks.DTYPES:
        for op in OPS:
            if op == dist.ReduceOp.AVG and not dtype.is_floating_point:
                continue
            for count in COUNTS:

                def all_of(t, op=op):
                    piece, to_last = t.new_empty(t.numel() // ranks), t.clone()
                    dist.reduce_scatter_tensor(piece, t, op=op)
                    dist.reduce(to_last, ranks - 1, op=op)
                    dist.all_reduce(t, op=op)
                    return [piece, t, *([to_last] if dist.get_rank() == ranks - 1 else [])]

                tensors = [_random(count * ranks if count < 10_000 else count // ranks * ranks, dtype)]
                _as_on_the_host(here, all_of, tensors, f"{op} of {count} {dtype}")
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        factor = 0.5 * (dist.get_rank() + 1)
        for given in (factor, torch.tensor([factor], dtype=dtype, device="cpu")):

            def scaled(t, given=given):
                dist.all_reduce(t, op=dist._make_nccl_premul_sum(given))
                return [t]

            _as_on_the_host(here, scaled, [_random(5_001, dtype)], f"PREMUL_SUM of {dtype}")


def other_dtypes(here):
    """What the library reduces in another dtype, or only moves; bitwise reductions; strided and conjugated tensors."""
    ranks = dist.get_world_size()

    def summed(t):
        dist.all_reduce(t)
        return [t]

    def conjugated(t):
        _get_default_group().allreduce([t.conj()]).wait()
        return [t]

    def moved(t):
        places = [torch.empty_like(t) for _ in range(ranks)]
        whole = t.new_empty(ranks * t.numel())
        dist.all_gather(places, t)
        dist.all_gather_into_tensor(whole, t)
        dist.broadcast(t, ranks - 1)
        return [*places, whole, t]

    def bits(t, op):
        piece = t.new_empty(t.numel() // ranks)
        dist.reduce_scatter_tensor(piece, t, op=op)
        dist.all_reduce(t, op=op)
        return [piece, t]

    for dtype in (torch.int16, torch.uint16, torch.complex64, torch.float8_e4m3fn):
        for count in (0, 1, 70_001):
            _as_on_the_host(here, summed, [_random(count, dtype)], f"SUM of {count} {dtype}")
            _as_on_the_host(here, moved, [_random(count, dtype)], f"moving {count} {dtype}")
    for dtype in (torch.int64, torch.uint8, torch.bool):
        for op in BITWISE:
            for count in (0, 3, 70_001):
                tensors = [_random(count * ranks, dtype)]
                _as_on_the_host(here, lambda t, op=op: bits(t, op), tensors, f"{op} of {count} {dtype}")
    odd = _random(4_000, torch.float32).view(50, 80)
    _as_on_the_host(here, lambda t: summed(t.t()), [odd], "a transposed tensor")
    _as_on_the_host(here, lambda t: [*summed(scattered(t)), t], [odd], "a strided tensor")
    _as_on_the_host(here, conjugated, [_random(99, torch.complex64)], "a conjugated tensor")


def sparse(here):
    """The sum of sparse tensors, with as many elements on each rank as its number."""
    rank = dist.get_rank()

    def total(indices, values):
        whole = torch.sparse_coo_tensor(indices, values, (50, 4))
        dist.all_reduce(whole)
        return [whole.to_dense()]

    indices = torch.tensor([[(7 * i + rank) % 50 for i in range(rank)]], device="cpu")
    _as_on_the_host(here, total, [indices.view(1, -1), _random(4 * rank, torch.float32).view(-1, 4)], "sparse")
    if here.is_device:
        nested = dist.all_reduce(here.put(torch.eye(3, device="cpu")).to_sparse(), async_op=True).get_future()
        assert nested.then(lambda f: f.value()[0].to_dense().sum().item()).wait() == 3.0 * dist.get_world_size()


def mixed(here):
    """Odd ranks have CPU tensors, the others the device's."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    with here.host() if rank % 2 else contextlib.nullcontext():
        mine = torch.arange(300_001.0) + rank
        places = [torch.empty_like(mine) for _ in range(ranks)]
        dist.all_gather(places, mine)
        assert all(torch.equal(p, torch.arange(300_001.0) + r) for r, p in enumerate(places))
        dist.broadcast(places[rank], ranks - 1)
        assert torch.equal(places[rank], torch.arange(300_001.0) + ranks - 1)
        dist.all_reduce(mine)
        assert torch.equal(mine, ranks * torch.arange(300_001.0) + sum(range(ranks)))


def streams(here):
    """Inputs that are still being made, waits in another stream, memory that is freed and used again at once."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    total = sum(range(ranks))
    late = torch.zeros(1 << 20)
    with here.side():
        if here.device.type == "cuda":
            torch.cuda._sleep(200_000_000)  # cycles: 0.1 s
        late += rank
        work = dist.all_reduce(late, async_op=True)
    work.wait()
    assert torch.equal(late, torch.full((1 << 20,), float(total)))
    sums = []
    for step in range(40):
        temporary = torch.full((1 << 18,), float(step + rank))
        dist.all_reduce(temporary)
        wide = torch.empty(ranks, 2, 1 << 12)
        dist.all_gather(list(wide.unbind(0)), torch.full((2, 1 << 12), float(rank)).t().contiguous().t())
        sums.append((temporary.sum() / temporary.numel(), wide[:, 1, 7].clone()))
        del temporary, wide
    for step, (mean, row) in enumerate(sums):
        assert mean.item() == ranks * step + total and row.tolist() == [float(r) for r in range(ranks)], step
    works = [dist.all_reduce(torch.full((1 << 16,), float(rank)), async_op=True) for _ in range(30)]
    with here.side():
        for work in works:
            work.wait()
        assert all(torch.equal(w.result()[0], torch.full((1 << 16,), float(total))) for w in works)


def without_blocking(here):
    """A wait returns before the slowest rank has come, the values are right nevertheless."""
    if not here.is_device or os.environ.get("HDP_CUDA_WAIT") == "host":
        return
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine, spread = torch.full((100_003,), float(rank)), torch.empty(2, ranks, 501)
    dist.all_reduce(torch.ones(3))  # the device is known now
    dist.barrier()
    if rank == 0:
        time.sleep(3)
    with here.fake.undrained() if here.fake else contextlib.nullcontext():
        began = time.monotonic()
        work = dist.all_reduce(mine, async_op=True)
        work.wait()
        if not here.fake:  # CPU tensors are copied by the thread that waits
            dist.all_gather(list(spread.transpose(0, 1)), torch.full((2, 501), float(rank)))
        took = time.monotonic() - began
    assert took < 1.5, f"wait() blocked for {took:.2f} s"
    work.wait(timedelta(seconds=60))
    assert work.is_completed() and torch.equal(mine, torch.full((100_003,), float(sum(range(ranks)))))
    if not here.fake:
        assert torch.equal(spread[1, :, 500], torch.arange(float(ranks)))


def several_groups(here):
    """An operation whose input, in its stream, waits for one of another group that a rank comes to late."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    everybody, ends = dist.new_group(), dist.new_group([0, ranks - 1])
    for late in range(ranks):
        mine = torch.full((900_001,), 1.0)
        if rank == late:
            time.sleep(0.05)
        dist.all_reduce(mine, group=everybody)
        if rank in (0, ranks - 1):
            dist.all_reduce(mine, group=ends)
        dist.all_reduce(mine, op=dist.ReduceOp.MAX, group=everybody)
        assert mine.unique().tolist() == [float(2 * ranks)], late


def refused(here):
    """What can't be served says so before anything is started; the group goes on."""
    ranks, ones = dist.get_world_size(), torch.ones(4)
    meta = torch.empty(4, device="meta")
    freed = torch.ones(4)
    freed.untyped_storage().resize_(0)
    raises(lambda: dist.all_reduce(freed), "allreduce of a tensor of 4 elements whose memory was freed")
    raises(lambda: dist.all_reduce(meta), "allreduce of a tensor on meta: backend hdp takes tensors on cpu and cuda")
    if here.device.type == "cuda":
        elsewhere = [torch.empty(4, device="cpu") for _ in range(ranks)]
        raises(lambda: dist.all_gather(elsewhere, ones), f"allgather of tensors on cpu and {here.device}: expected one")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            ones * 2
            raises(lambda: dist.all_reduce(ones), "allreduce while the current stream is captured into a CUDA graph")
    if here.fake:
        with here.fake.only(lambda t: t.data_ptr() == ones.data_ptr()):
            raises(lambda: dist.all_gather([torch.empty(4)] * ranks, ones), "allgather of tensors on cpu: expected one")
        here.fake.is_capturing = True
        raises(lambda: dist.all_reduce(ones), "allreduce while the current stream is captured into a CUDA graph")
        here.fake.is_capturing = False
    dist.all_reduce(ones)
    assert ones.tolist() == [float(ranks)] * 4


def late_errors(here):
    """What fails after its wait() has returned is raised by the group's next operation, and by the work."""
    if not here.is_device:
        return
    group = dist.new_group()
    work = dist.all_reduce(torch.ones(300 + dist.get_rank()), group=group, async_op=True)
    with contextlib.suppress(RuntimeError):  # it may know already
        work.wait()
    future = work.get_future()
    raises(lambda: future.wait(), "disagree")
    assert not work.is_success()
    raises(lambda: work.wait(), "disagree")
    raises(lambda: dist.all_reduce(torch.ones(3), group=group), "disagree")
    raises(lambda: dist.barrier(group), "disagree")
    dist.all_reduce(torch.ones(3))


def messages(here):
    """A ring of sends and receives, by gloo: contiguous tensors and others."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for shape in (torch.Tensor.contiguous, scattered) if here.is_device else (torch.Tensor.contiguous,):
        received = shape(torch.zeros(70_001))
        sent = shape(rank_checks.values(rank, 70_001))
        operations = [
            dist.P2POp(dist.isend, sent, (rank + 1) % ranks),
            dist.P2POp(dist.irecv, received, (rank - 1) % ranks),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        assert torch.equal(received, rank_checks.values((rank - 1) % ranks, 70_001))
    received = torch.zeros(3)
    work = dist.isend(torch.full((3,), float(rank)), (rank + 1) % ranks)
    assert dist.recv(received) == (rank - 1) % ranks and received.tolist() == [float((rank - 1) % ranks)] * 3
    work.wait()


def barriers(here):
    """A barrier that is told a device; objects, which travel as CPU tensors; functional collectives."""
    dist.barrier(device_ids=[here.device.index] if here.device.type == "cuda" else None)
    _get_default_group().barrier().wait()
    user_checks.objects()
    user_checks.tensor_functions()


def ddp(here):
    """DDP in its many ways trains as on the host."""
    for kind in parallel_checks.KINDS:
        with here.host():
            expected = parallel_checks.trained(kind, dist.group.WORLD)
        got = parallel_checks.trained(kind, dist.group.WORLD)
        for a, b in zip(got, expected, strict=True):
            # A real GPU's kernels sum in another order; Adam and 16 bits make more of it.
            near = torch.equal(a, b) if here.fake else torch.allclose(a.cpu(), b, rtol=0.05, atol=0.02)
            assert near, f"{kind}: {(a.cpu() - b).abs().max().item()} apart"


def fsdp2(here):
    """FSDP2, whose collectives run in streams of its own, trains as on the host."""
    ranks = dist.get_world_size()
    for policy in (
        MixedPrecisionPolicy(),
        MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16),
    ):
        with here.host():
            expected = parallel_checks.sharded(dist.init_device_mesh("cpu", (ranks,)), policy)
        got = parallel_checks.sharded(dist.init_device_mesh(here.device.type, (ranks,)), policy)
        near = 1e-4 if policy.param_dtype is None else 0.03
        assert all(torch.allclose(a.cpu(), b, atol=near) for a, b in zip(got, expected, strict=True)), policy
    if ranks % 2 == 0:
        names = ("replicate", "shard")
        grid = dist.init_device_mesh(here.device.type, (2, ranks // 2), mesh_dim_names=names)
        with here.host():
            expected = parallel_checks.sharded(dist.init_device_mesh("cpu", (ranks,)), MixedPrecisionPolicy())
        got = parallel_checks.sharded(grid, MixedPrecisionPolicy())
        assert all(torch.allclose(a.cpu(), b, atol=1e-4) for a, b in zip(got, expected, strict=True))


def grad_scaler(here):
    """Mixed precision with a GradScaler: a step with an infinite gradient on one rank is left out on all."""
    half = torch.float16 if here.device.type == "cuda" else torch.bfloat16
    inner = parallel_checks.made(parallel_checks.Branches)
    inner.odd.requires_grad_(False)
    model = nn.parallel.DistributedDataParallel(inner, bucket_cap_mb=0.001)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler(here.device.type, init_scale=256.0)
    rank = dist.get_rank()
    for step in range(4):
        before = [p.detach().clone() for p in model.parameters()]
        optimizer.zero_grad()
        with torch.autocast(here.device.type, dtype=half):
            loss = model(parallel_checks.batch(step, rank)).float().square().mean()
        scaler.scale(loss * (float("inf") if step == 2 and rank == 0 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        still = all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        assert still == (step == 2), f"step {step}: {'no step' if still else 'a step'}"
    for p in model.parameters():
        first = p.detach().clone()
        dist.broadcast(first, 0)
        assert torch.equal(first, p)


def memory(here):
    """The allocator gives memory back to the driver while operations are in flight."""
    ranks = dist.get_world_size()
    for _ in range(5):
        works = [dist.all_reduce(torch.ones(1 << 20), async_op=True) for _ in range(8)]
        for work in works:
            work.wait()
        if here.device.type == "cuda":
            torch.empty(64 << 20)  # freed at once: there is something to give back
            torch.cuda.empty_cache()
        assert all(w.result()[0].sum().item() == ranks << 20 for w in works)


CHECKS = [
    calls,
    reductions,
    other_dtypes,
    sparse,
    mixed,
    streams,
    without_blocking,
    several_groups,
    refused,
    late_errors,
    messages,
    barriers,
    ddp,
    fsdp2,
    grad_scaler,
    memory,
]
