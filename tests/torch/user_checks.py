"""What people run on a backend, compared with one process: FSDP2, ZeRO, DTensor, checkpoints, object collectives."""

import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.distributed.nn.functional as autograd_functions
from torch import nn
from torch.distributed._functional_collectives import all_gather_tensor, all_to_all_single, reduce_scatter_tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor


def _model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 13), nn.ReLU(), nn.Linear(13, 5))


def _batches(steps=4):
    """The same batches on every rank; each rank trains on its rows."""
    torch.manual_seed(1)
    return [torch.randn(4 * dist.get_world_size(), 7) for _ in range(steps)]


def _mine(batch):
    return batch.chunk(dist.get_world_size())[dist.get_rank()]


def _train(model, optimizer, batches):
    for batch in batches:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


def _alone():
    """The weights of one process that trained on whole batches."""
    model = _model()
    _train(model, torch.optim.Adam(model.parameters(), lr=0.05), _batches())
    return [p.detach() for p in model.parameters()]


def fsdp2_and_its_checkpoint():
    """Shards train like one process; a checkpoint of the shards brings them back."""
    model = _model()
    for layer in (model[0], model[2], model):
        fully_shard(layer)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    _train(model, optimizer, [_mine(b) for b in _batches()])
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
    assert torch.isfinite(norm)
    whole = [p.full_tensor().detach() for p in model.parameters()]
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(whole, _alone(), strict=True))
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    state = model.state_dict()
    dcp.save(state, checkpoint_id=folder[0])
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    dcp.load(state, checkpoint_id=folder[0])
    model.load_state_dict(state)
    assert all(torch.equal(p.full_tensor(), w) for p, w in zip(model.parameters(), whole, strict=True))


def zero_optimizer():
    """Each rank has a part of the optimizer's state; its state is gathered on the first."""
    model = nn.parallel.DistributedDataParallel(_model())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.05)
    _train(model, optimizer, [_mine(b) for b in _batches()])
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(model.parameters(), _alone(), strict=True))
    optimizer.consolidate_state_dict(to=0)
    assert dist.get_rank() or len(optimizer.state_dict()["state"]) == 4


def dtensor_redistribute():
    """Every way from one placement to another gives the same whole, with sizes that ranks can't share equally."""
    ranks = dist.get_world_size()
    mesh = init_device_mesh("cpu", (ranks,))
    whole = torch.arange(7.0 * 5).reshape(7, 5)
    ways = [Replicate(), Shard(0), Shard(1)]
    for before in ways:
        for after in ways:
            tensor = distribute_tensor(whole, mesh, [before]).redistribute(mesh, [after])
            assert torch.equal(tensor.full_tensor(), whole), (before, after)
    for after in ways:
        partial = DTensor.from_local(whole, mesh, [Partial()], run_check=False)
        assert torch.equal(partial.redistribute(mesh, [after]).full_tensor(), whole * ranks), after


def tensor_functions():
    """Functional collectives, and those with gradients."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    group = dist.group.WORLD
    assert torch.equal(
        all_gather_tensor(torch.full((2,), float(rank)), 0, group), torch.arange(float(ranks)).repeat_interleave(2)
    )
    assert torch.equal(reduce_scatter_tensor(torch.ones(ranks, 3), "sum", 0, group), torch.full((1, 3), float(ranks)))
    swapped = all_to_all_single(torch.full((ranks,), float(rank)), None, None, group)
    assert torch.equal(swapped, torch.arange(float(ranks)))
    x = torch.full((ranks,), float(rank + 1), requires_grad=True)
    autograd_functions.all_to_all_single(torch.empty(ranks), x).square().sum().backward()
    assert torch.equal(x.grad, torch.full((ranks,), 2.0 * (rank + 1)))
    x = torch.ones(3, requires_grad=True)
    torch.stack(autograd_functions.all_gather(x * (rank + 1))).sum().backward()
    assert torch.equal(x.grad, torch.full((3,), float(ranks * (rank + 1))))


def objects():
    """Pickled objects of different sizes."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine = {"rank": rank, "text": "x" * 100 * rank}
    gathered = [None] * ranks
    dist.all_gather_object(gathered, mine)
    assert [o["rank"] for o in gathered] == list(range(ranks))
    on_last = [None] * ranks
    dist.gather_object(mine, on_last if rank == ranks - 1 else None, dst=ranks - 1)
    assert rank < ranks - 1 or [len(o["text"]) for o in on_last] == [100 * r for r in range(ranks)]
    received = [None]
    dist.scatter_object_list(received, [("for", r) for r in range(ranks)] if rank == 0 else [None] * ranks)
    assert received == [("for", rank)]


def everything():
    """All of the above, in one process group."""
    for check in (objects, tensor_functions, dtensor_redistribute, zero_optimizer, fsdp2_and_its_checkpoint):
        print(f"rank {dist.get_rank()}: {check.__name__}", flush=True)
        check()
