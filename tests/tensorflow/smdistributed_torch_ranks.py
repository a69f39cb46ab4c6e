"""SMDDP's PyTorch API of versions up to 1.3, by its names alone; each rank checks what it gets."""

import sys

import torch

import smdistributed.dataparallel.torch.distributed as dist
from smdistributed.dataparallel.torch.parallel import DistributedDataParallel
from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel as SameOne

assert DistributedDataParallel is SameOne and dist.is_available() and not dist.is_initialized()
try:
    dist.init_process_group(backend="nccl")
except ValueError as exc:
    assert "backend='nccl'" in str(exc)
else:
    sys.exit("another backend was taken")
dist.init_process_group()
rank = dist.get_rank()
assert dist.is_initialized() and (dist.get_world_size(), dist.get_local_rank()) == (2, 0)
assert torch.distributed.get_backend() == "smddp"


def made(operation, *arguments, **keywords):
    tensor = torch.tensor([1.0, 2.0]) * (rank + 1)
    operation(tensor, *arguments, **keywords)
    return tensor.tolist()


assert made(dist.all_reduce) == [3, 6]
assert made(dist.all_reduce, dist.ReduceOp.AVERAGE, dist.group.WORLD) == [1.5, 3]
assert made(dist.all_reduce, op=dist.ReduceOp.MIN) == [1, 2]
assert made(dist.all_reduce, op=dist.ReduceOp.MAX) == [2, 4]
assert made(dist.broadcast) == [1, 2]
assert made(dist.broadcast, src=1) == [2, 4]
assert made(lambda tensor: dist.all_reduce(tensor, async_op=True).wait()) == [3, 6]
parts = [torch.zeros(1), torch.zeros(1)]
dist.all_gather(parts, torch.tensor([float(rank)]))
assert torch.cat(parts).tolist() == [0, 1]
swapped = torch.zeros(2)
dist.all_to_all_single(swapped, torch.tensor([10.0, 11.0]) + 10 * rank)
assert swapped.tolist() == [10 + rank, 20 + rank]
dist.barrier()

torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(2, 1), None, None, False, dist.group.WORLD, 25)
model(torch.tensor([[1.0, 2.0]]) * (rank + 1)).sum().backward()
assert model.module.weight.grad.tolist() == [[1.5, 3]]
torch.distributed.destroy_process_group()
print("all right")
