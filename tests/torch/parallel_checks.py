"""What trains on a backend, compared with gloo or with one process; `torch_ranks.py` runs it on each rank."""

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_gather_tensor, all_reduce
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel


class Branches(nn.Module):
    """Two ways, one of which a call takes; a buffer that counts calls."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(7, 13), nn.Linear(13, 3)
        self.even, self.odd = nn.Linear(13, 13), nn.Linear(13, 13)
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x, way=0):
        self.calls += 1 + dist.get_rank()
        self.steps += 1
        return self.last((self.odd if way % 2 else self.even)(self.first(x)).relu())


def batch(step, rank):
    rows = torch.randn(4, 7, generator=torch.Generator("cpu").manual_seed(100 * step + rank), device="cpu")
    return rows.to(torch.get_default_device())


def made(kind):
    """A model with the same weights on each device."""
    torch.manual_seed(0)
    with torch.device("cpu"):
        model = kind()
    return model.to(torch.get_default_device())


def _bf16(state, bucket):  # torch turns down its own hook of that kind, by name, for want of NCCL
    return default_hooks.bf16_compress_hook(state, bucket)


HOOKS = {
    "fp16": lambda g: (g, default_hooks.fp16_compress_hook),
    "bf16": lambda g: (g, _bf16),
    "powersgd": lambda g: (
        powerSGD_hook.PowerSGDState(g, matrix_approximation_rank=1, start_powerSGD_iter=2),
        powerSGD_hook.powerSGD_hook,
    ),
}
KINDS = {
    "plain": {},
    "unused": {"find_unused_parameters": True},
    "static": {"static_graph": True, "find_unused_parameters": True},
    "view": {"gradient_as_bucket_view": True, "broadcast_buffers": False},
    "no_sync": {},
    "join": {},
    **{hook: {} for hook in HOOKS},
}


def trained(kind, group):
    """Weights and buffers after four steps of DDP."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    used = {} if kind in ("unused", "static") else {"find_unused_parameters": True}
    model = DistributedDataParallel(made(Branches), process_group=group, bucket_cap_mb=0.001, **used, **KINDS[kind])
    if kind in HOOKS:
        model.register_comm_hook(*HOOKS[kind](group))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    steps = range(2 + rank) if kind == "join" else range(4)
    with model.join() if kind == "join" else contextlib.nullcontext():
        for step in steps:
            way = step + rank if kind == "unused" else 0
            optimizer.zero_grad()
            if kind == "no_sync":
                with model.no_sync():
                    model(batch(step + 50, rank)).square().mean().backward()
            model(batch(step, rank), way).square().mean().backward()
            optimizer.step()
    state = [t.detach().double() for t in (*model.parameters(), model.module.steps)]
    every = [torch.empty_like(t) for t in state for _ in range(ranks)]
    dist.all_gather_coalesced([every[r::ranks] for r in range(ranks)], state)
    same = all(torch.equal(every[i * ranks], t) for i in range(len(state) - 1) for t in every[i * ranks :][:ranks])
    assert same, f"{kind}: not the same weights on all ranks"
    return state[:-1] if kind == "join" else state


def ddp():
    """DDP in its many ways, on this backend and on gloo: the same weights."""
    gloo = dist.new_group(backend="gloo")
    for kind in KINDS:
        ours = trained(kind, dist.group.WORLD)
        if kind == "powersgd":  # its callbacks wait for other operations, which gloo's threads never get to
            continue
        theirs = trained(kind, gloo)
        # Hooks of 16 bits: gloo rounds each partial sum of its ring, we round each host's.
        bits = {"fp16": 2.0**-10, "bf16": 2.0**-7}.get(kind, 1e-4)
        assert all(torch.allclose(a, b, rtol=bits, atol=bits) for a, b in zip(ours, theirs, strict=True)), kind


def _layers():
    return made(lambda: nn.Sequential(nn.Linear(7, 13), nn.ReLU(), nn.Linear(13, 5)))


def sharded(mesh, policy):
    """Weights after three steps of FSDP2."""
    rank, model = dist.get_rank(), _layers()
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for step in range(3):
        optimizer.zero_grad()
        model(batch(step, rank)).float().square().mean().backward()
        optimizer.step()
    return [p.full_tensor().detach() for p in model.parameters()]


def fsdp2():
    """FSDP2 with mixed precision, as on gloo; and on a mesh of two dimensions, as in one."""
    ranks = dist.get_world_size()
    gloo = DeviceMesh.from_group(dist.new_group(backend="gloo"), "cpu")
    for policy in (
        MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16),
    ):
        ours, theirs = sharded(init_device_mesh("cpu", (ranks,)), policy), sharded(gloo, policy)
        assert all(torch.allclose(a, b, atol=0.02) for a, b in zip(ours, theirs, strict=True)), policy
    if ranks % 2 == 0:
        plain = MixedPrecisionPolicy()
        grid = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("replicate", "shard"))
        flat = sharded(init_device_mesh("cpu", (ranks,)), plain)
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(sharded(grid, plain), flat, strict=True))


def dtensor_on_a_grid():
    """Every pair of placements on a mesh of two dimensions to every other; a product of two DTensors."""
    ranks = dist.get_world_size()
    rows = 2 if ranks % 2 == 0 else 1
    mesh = init_device_mesh("cpu", (rows, ranks // rows), mesh_dim_names=("dp", "tp"))
    whole = torch.arange(7.0 * 5).reshape(7, 5)
    ways = [(a, b) for a in (Replicate(), Shard(0), Shard(1)) for b in (Replicate(), Shard(0), Shard(1))]
    for before in ways:
        tensor = distribute_tensor(whole, mesh, before)
        for after in ways[::2]:
            assert torch.equal(tensor.redistribute(mesh, after).full_tensor(), whole), (before, after)
    partial = DTensor.from_local(whole, mesh, [Partial(), Shard(0)], run_check=False)
    assert torch.equal(partial.full_tensor(), torch.cat([whole * rows] * (ranks // rows)))
    a, b = (
        distribute_tensor(whole, mesh, [Shard(0), Replicate()]),
        distribute_tensor(whole.t(), mesh, [Replicate(), Shard(1)]),
    )
    assert torch.allclose((a @ b).full_tensor(), whole @ whole.t())
    with_sub = mesh["tp"].get_group()
    total = torch.ones(1)
    dist.all_reduce(total, group=with_sub)
    assert total.item() == ranks // rows


def compiled(backend="aot_eager"):
    """A DDP step and functional collectives under torch.compile give what they give without."""
    rank, ranks = dist.get_rank(), dist.get_world_size()

    def function(x):
        gathered = all_gather_tensor(x, 0, dist.group.WORLD)
        return all_reduce(gathered * 2, "sum", dist.group.WORLD) + 1

    x = torch.arange(4.0) + rank
    assert torch.equal(torch.compile(function, backend=backend, fullgraph=True)(x), function(x))

    def in_place(x):
        y = x * 2
        dist.all_reduce(y)
        return y + 1

    assert torch.equal(torch.compile(in_place, backend=backend)(torch.ones(3)), torch.full((3,), 2.0 * ranks + 1))
    gradients = []
    for wrap in (lambda m: m, lambda m: torch.compile(m, backend=backend)):
        model = DistributedDataParallel(_layers())
        wrap(model)(batch(0, rank)).square().mean().backward()
        gradients.append([p.grad for p in model.parameters()])
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*gradients, strict=True))


CHECKS = [ddp, fsdp2, dtensor_on_a_grid, compiled]
