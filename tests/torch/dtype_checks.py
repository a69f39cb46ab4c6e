"""Dtypes that the library doesn't have, odd reductions and sparse tensors; `torch_ranks.py` runs them on each rank."""

import numpy as np
import rank_checks
import torch
import torch.distributed as dist
from rank_checks import scattered
from torch import nn
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.distributed_c10d import _get_default_group

MOVED = [torch.int16, torch.uint16, torch.uint32, torch.uint64, torch.complex64, torch.complex128]
MOVED += [torch.float8_e4m3fn, torch.float8_e5m2]
BITWISE = {dist.ReduceOp.BAND: np.bitwise_and, dist.ReduceOp.BOR: np.bitwise_or, dist.ReduceOp.BXOR: np.bitwise_xor}


def _bits(rank, count, dtype):
    """Elements of any bits at all; they differ by rank and by index."""
    raw = np.random.default_rng(rank).integers(0, 256, (count + 1) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(raw).view(dtype)[:count]


def _raw(tensor):
    return tensor.contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def _same(a, b):
    return a.dtype == b.dtype and torch.equal(_raw(a), _raw(b))


def moved():
    """Every call that only moves data, for dtypes that the library doesn't know."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    last = ranks - 1
    for dtype in MOVED:
        for count in (0, 1, 5_001):
            shape = scattered if dtype in (torch.int16, torch.complex128) else torch.Tensor.contiguous
            mine, every = shape(_bits(rank, count, dtype)), [_bits(r, count, dtype) for r in range(ranks)]
            places = [shape(torch.empty(count, dtype=dtype)) for _ in range(ranks)]
            dist.all_gather(places, mine)
            assert all(map(_same, places, every)), dtype
            places = [shape(torch.zeros(count, dtype=dtype)) for _ in range(ranks)]
            dist.gather(mine, places if rank == last else None, dst=last)
            assert rank != last or all(map(_same, places, every)), dtype
            whole = torch.empty(ranks * count, dtype=dtype)
            dist.all_gather_into_tensor(whole, mine)
            assert _same(whole, torch.cat(every))
            piece = shape(torch.empty(count, dtype=dtype))
            dist.scatter(piece, every if rank == last else None, src=last)
            assert _same(piece, every[rank])
            dist.broadcast(piece, src=0)
            assert _same(piece, every[0])
            swapped = torch.empty(ranks * count, dtype=dtype)
            dist.all_to_all_single(swapped, torch.cat([_bits(10 * rank + r, count, dtype) for r in range(ranks)]))
            assert _same(swapped, torch.cat([_bits(10 * r + rank, count, dtype) for r in range(ranks)]))


def reduced():
    """Integers wrap around as NumPy's do; float8 is rounded once; complex numbers are summed by parts."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    operations = {dist.ReduceOp.SUM: np.add, dist.ReduceOp.PRODUCT: np.multiply}
    operations |= {dist.ReduceOp.MIN: np.minimum, dist.ReduceOp.MAX: np.maximum}
    for dtype in (torch.int16, torch.uint16, torch.uint32, torch.uint64):
        for op, function in operations.items():
            if dtype == torch.uint64 and op in (dist.ReduceOp.MIN, dist.ReduceOp.MAX):
                continue
            every = [_bits(r, 12 * ranks, dtype).numpy() for r in range(ranks)]
            whole = function.reduce(every, dtype=every[0].dtype)
            mine = scattered(_bits(rank, 12 * ranks, dtype))
            piece = torch.empty(12, dtype=dtype)
            dist.reduce_scatter_tensor(piece, mine.contiguous(), op=op)
            assert np.array_equal(piece.numpy(), whole.reshape(ranks, 12)[rank]), (dtype, op)
            dist.all_reduce(mine, op=op)
            assert np.array_equal(mine.numpy(), whole), (dtype, op)
    eighth = (torch.arange(20) % 5 + rank).to(torch.float8_e4m3fn)
    dist.all_reduce(eighth, op=dist.ReduceOp.AVG)
    mean = torch.stack([(torch.arange(20) % 5 + r).float() for r in range(ranks)]).mean(0)
    assert _same(eighth, mean.to(torch.float8_e4m3fn))
    for dtype in (torch.complex64, torch.complex128):
        numbers = [torch.complex(torch.arange(7.0) + r, torch.arange(7.0) * r).to(dtype) for r in range(ranks)]
        summed = all_reduce(numbers[rank], "sum", dist.group.WORLD)
        assert torch.equal(summed, sum(numbers))
        averaged = scattered(numbers[rank])
        _get_default_group().allreduce([averaged], dist.ReduceOp.AVG).wait()
        assert torch.allclose(averaged, sum(numbers) / ranks)
        conjugated = numbers[rank].clone().conj()
        _get_default_group().allreduce([conjugated]).wait()
        assert torch.equal(conjugated, sum(numbers).conj())


def multiplied_before():
    """PREMUL_SUM, with a number and with a tensor that differ by rank."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        factors = [0.5 * (r + 1) for r in range(ranks)]
        every = [rank_checks.values(r, 3 * ranks, dtype) for r in range(ranks)]
        whole = sum(t.double() * f for t, f in zip(every, factors, strict=True)).to(dtype)
        for factor in (factors[rank], torch.tensor([factors[rank]], dtype=dtype)):
            op = dist._make_nccl_premul_sum(factor)
            mine, piece = every[rank].clone(), torch.empty(3, dtype=dtype)
            dist.all_reduce(mine, op=op)
            assert torch.equal(mine, whole), dtype
            mine = every[rank].clone()
            dist.reduce_scatter_tensor(piece, mine, op=op)
            assert torch.equal(piece, whole.view(ranks, 3)[rank]) and torch.equal(mine, every[rank])
            dist.reduce(mine, ranks - 1, op=op)
            assert torch.equal(mine, whole if rank == ranks - 1 else every[rank])


def bitwise():
    """Compared with NumPy, and with gloo where it has them; sizes that the ranks can't share equally."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    gloo = dist.new_group(backend="gloo")
    for dtype in (torch.int64, torch.int32, torch.uint8, torch.int16, torch.bool):
        for op, function in BITWISE.items():
            for count in (0, 1, 1_003):
                every = [_bits(r, count * ranks, torch.uint8) % 2 for r in range(ranks)]
                if dtype != torch.bool:
                    every = [_bits(r, count * ranks, dtype) for r in range(ranks)]
                every = [t.to(dtype) for t in every]
                whole = torch.from_numpy(function.reduce([t.numpy() for t in every]))
                mine, to_last = scattered(every[rank]), every[rank].clone()
                dist.all_reduce(mine, op=op)
                dist.reduce(to_last, ranks - 1, op=op)
                assert torch.equal(mine, whole)
                assert torch.equal(to_last, whole if rank == ranks - 1 else every[rank])
                piece, listed = torch.empty(count, dtype=dtype), torch.empty(count, dtype=dtype)
                dist.reduce_scatter_tensor(piece, every[rank], op=op)
                dist.reduce_scatter(listed, list(every[rank].view(ranks, count)), op=op)
                assert torch.equal(piece, whole.view(ranks, count)[rank]) and torch.equal(piece, listed)
                if dtype in (torch.int32, torch.int64) and count:
                    theirs = every[rank].clone()
                    dist.all_reduce(theirs, op=op, group=gloo)
                    assert torch.equal(theirs, whole)
    work = dist.all_reduce(torch.tensor([1 << rank]), op=dist.ReduceOp.BOR, async_op=True)
    assert work.get_future().then(lambda f: f.value()[0].item()).wait() == (1 << ranks) - 1
    assert work.wait() and work.is_success() and work.result()[0].item() == (1 << ranks) - 1


def _sparse(rank, dtype=torch.float32, dense=()):
    """Rank r has r elements in a matrix of 5 by 4, the first one none; one index comes twice."""
    indices = torch.tensor([[(3 * i + rank) % 5, i % 4] for i in range(rank)] + [[1, 1]] * 2 * (rank > 0))
    values = torch.randn(len(indices), *dense, generator=torch.Generator().manual_seed(rank)) * 10
    return torch.sparse_coo_tensor(indices.view(-1, 2).t(), values.to(dtype), (5, 4, *dense))


def sparse():
    """The sum of sparse tensors: right, with the same bits on every rank, also where no rank has an element."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    gloo = dist.new_group(backend="gloo")
    for dtype, dense in ((torch.float32, ()), (torch.float64, (3,)), (torch.int64, ()), (torch.float32, (0,))):
        mine, theirs = _sparse(rank, dtype, dense), _sparse(rank, dtype, dense)
        dist.all_reduce(mine)
        expected = sum(_sparse(r, dtype, dense).to_dense() for r in range(ranks))
        assert torch.allclose(mine.to_dense(), expected) and mine.is_coalesced()
        if dense != (0,):
            dist.all_reduce(theirs, group=gloo)
            assert torch.allclose(mine.to_dense(), theirs.to_dense())
        every = [torch.empty_like(expected) for _ in range(ranks)]
        dist.all_gather(every, mine.to_dense())
        assert all(torch.equal(t, every[0]) for t in every)
    mean, none = _sparse(rank), _sparse(0)
    works = [dist.all_reduce(mean, op=dist.ReduceOp.AVG, async_op=True), dist.all_reduce(none, async_op=True)]
    twice = works[0].get_future().then(lambda f: f.value()[0].to_dense() * 2)
    expected = sum(_sparse(r).to_dense() for r in range(ranks)) / ranks
    assert torch.allclose(twice.wait(), 2 * expected) and works[1].wait() and none._nnz() == 0
    embedding_trains_as_in_one_process()


def embedding_trains_as_in_one_process():
    """DDP hands over sparse gradients as they are."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    rows = torch.arange(4 * ranks).view(ranks, 4) % 6

    def net():
        torch.manual_seed(0)
        return nn.Embedding(8, 3, sparse=True)

    trained, alone = nn.parallel.DistributedDataParallel(net()), net()
    for model, batch in ((trained, rows[rank]), (alone, rows)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for _ in range(3):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
    assert torch.allclose(trained.module.weight, alone.weight, atol=1e-6)


def refused():
    """What isn't served says so by name, and what to do instead; the group goes on."""
    ranks, group = dist.get_world_size(), _get_default_group()
    ones, sparse_ones = torch.ones(ranks), torch.eye(ranks).to_sparse()
    bits = dist.ReduceOp.BOR
    for call, text in [
        (lambda: dist.all_reduce(ones.int(), op=dist.ReduceOp.AVG), "AVG of torch.int32: sum integers"),
        (lambda: dist.all_reduce(ones, op=bits), "BOR of torch.float32: bitwise reductions are of integers"),
        (lambda: group.allreduce([ones.cfloat()], dist.ReduceOp.MAX), "MAX of torch.complex64: gather"),
        (lambda: dist.all_reduce(ones.to(torch.uint64), op=dist.ReduceOp.MAX), "MAX of torch.uint64: reduce them as"),
        (lambda: dist.all_reduce(sparse_ones, op=dist.ReduceOp.MAX), "MAX of a sparse tensor: only SUM and AVG"),
        (lambda: dist.all_reduce(torch.eye(2).to_sparse_csr()), "allreduce of a torch.sparse_csr tensor: only"),
        (lambda: dist.broadcast(sparse_ones, 0), "broadcast of a torch.sparse_coo tensor: only allreduce takes"),
        (
            lambda: dist.broadcast(torch.quantize_per_tensor(ones, 0.1, 0, torch.qint8), 0),
            "quantized tensor of torch.qint8: send its",
        ),
    ]:
        rank_checks.raises(call, text)
    odd_shapes = dist.new_group()
    shape = (2 + dist.get_rank(), 2)
    wrong = torch.sparse_coo_tensor(torch.zeros(2, 1).long(), torch.ones(1), shape)
    rank_checks.raises(lambda: dist.all_reduce(wrong, group=odd_shapes), "sparse tensors of different shapes")
    dist.all_reduce(ones)


CHECKS = [moved, reduced, multiplied_before, bitwise, sparse, refused]
