"""Every collective against plain torch arithmetic and against gloo; `torch_ranks.py` runs them on each rank."""

import contextlib
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager, _get_default_group

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
DTYPES += [torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool]
COUNTS = (0, 1, 70_001)


def values(rank, count, dtype=torch.float32):
    """What `rank` has: it differs by rank and by index, and a few of them add up exactly in every dtype."""
    return ((torch.arange(count) * 7 + rank * 3) % 5).to(dtype)


def total(ranks, count, dtype=torch.float32):
    """The sum over `ranks`."""
    return torch.stack([values(r, count, dtype) for r in range(ranks)]).sum(0).to(dtype)


def scattered(tensor):
    """The same elements with other memory between them."""
    wide = tensor.new_zeros(*tensor.shape, 2)
    wide[..., 0] = tensor
    return wide[..., 0]


def with_each_dtype():
    """Sizes of none, one and many elements; contiguous tensors and others; the root is the last rank."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    last = ranks - 1
    for dtype in DTYPES:
        for count in COUNTS:
            shape = scattered if dtype in (torch.bfloat16, torch.int64) else torch.Tensor.contiguous
            mine = shape(values(rank, count, dtype))
            dist.reduce(mine, last)
            assert torch.equal(mine, total(ranks, count, dtype) if rank == last else values(rank, count, dtype))
            mine = values(rank, count, dtype)
            places = [shape(torch.empty(count, dtype=dtype)) for _ in range(ranks)]
            dist.gather(shape(mine), places if rank == last else None, dst=last)
            assert rank != last or all(torch.equal(p, values(r, count, dtype)) for r, p in enumerate(places))
            piece = shape(torch.empty(count, dtype=dtype))
            dist.scatter(piece, [values(r, count, dtype) for r in range(ranks)] if rank == last else None, src=last)
            assert torch.equal(piece, mine)
            whole = values(rank, ranks * count, dtype)
            expected = total(ranks, ranks * count, dtype).view(ranks, count)[rank]
            dist.reduce_scatter(piece, [shape(c) for c in whole.view(ranks, count)])
            assert torch.equal(piece, expected)
            piece = shape(torch.empty(count, dtype=dtype))
            _get_default_group()._reduce_scatter_base(piece, shape(whole)).wait()
            assert torch.equal(piece, expected)
            received = shape(torch.empty(ranks * count, dtype=dtype))
            dist.all_to_all_single(received, shape(whole))
            assert torch.equal(received.view(ranks, count), torch.stack([
                values(r, ranks * count, dtype).view(ranks, count)[rank] for r in range(ranks)
            ]))  # fmt: skip


def with_uneven_sizes():
    """Rank r has 3 r elements, the first one none."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    sizes = [3 * r for r in range(ranks)]
    places = [torch.empty(n) for n in sizes]
    dist.all_gather(places, values(rank, sizes[rank]))
    assert all(torch.equal(p, values(r, n)) for r, (n, p) in enumerate(zip(sizes, places, strict=True)))
    places = [torch.empty(n) for n in sizes]
    dist.gather(values(rank, sizes[rank]), places if rank == 0 else None)
    assert rank or all(torch.equal(p, values(r, n)) for r, (n, p) in enumerate(zip(sizes, places, strict=True)))
    piece = torch.empty(sizes[rank])
    dist.scatter(piece, [values(r, n) for r, n in enumerate(sizes)] if rank == 0 else None)
    assert torch.equal(piece, values(rank, sizes[rank]))
    dist.reduce_scatter(piece, list(values(rank, sum(sizes)).split(sizes)))
    assert torch.equal(piece, total(ranks, sum(sizes)).split(sizes)[rank])
    # Rank i sends i + j elements to rank j.
    sends = [values(10 * rank + j, rank + j) for j in range(ranks)]
    received = [torch.empty(rank + i) for i in range(ranks)]
    dist.all_to_all(received, sends)
    assert all(torch.equal(t, values(10 * i + rank, rank + i)) for i, t in enumerate(received))
    # The same in rows of two elements, from one tensor to another.
    rows = torch.stack([torch.cat(sends)] * 2, 1)
    output = torch.empty(sum(rank + i for i in range(ranks)), 2)
    splits = [rank + i for i in range(ranks)]
    dist.all_to_all_single(output, rows, splits, splits)
    assert torch.equal(output, torch.stack([torch.cat(received)] * 2, 1))
    # Everything to rank 0, whose input is empty.
    every = torch.empty(2 * (ranks - 1) if rank == 0 else 0)
    to_first, from_others = [2 * (rank > 0)] + [0] * (ranks - 1), [0] + [2] * (ranks - 1)
    dist.all_to_all_single(every, values(rank, 2 * (rank > 0)), from_others if rank == 0 else [0] * ranks, to_first)
    assert rank or torch.equal(every, torch.cat([values(r, 2) for r in range(1, ranks)]))


def in_place():
    """Outputs that are views of inputs, the other way round, and outputs that lie in a row.

    The tensors are larger than what the library copies at once: it reads some parts after it has written others.
    """
    rank, ranks, group, n = dist.get_rank(), dist.get_world_size(), _get_default_group(), 400_003
    own = total(ranks, ranks * n).view(ranks, n)[rank]
    everybody = torch.cat([values(r, n) for r in range(ranks)])
    whole = values(rank, ranks * n)
    group._reduce_scatter_base(whole.view(ranks, n)[rank], whole).wait()
    assert torch.equal(whole.view(ranks, n)[rank], own)
    whole = values(rank, ranks * n)
    group._reduce_scatter_base(whole[n // 2 : n // 2 + n], whole).wait()  # nobody's place
    assert torch.equal(whole[n // 2 : n // 2 + n], own)
    for shift in (0, n // 2):  # the input is the rank's own place in the output, or shares memory with it
        whole = torch.zeros(ranks * n + shift)
        mine = whole[rank * n + shift :][:n].copy_(values(rank, n))
        group._allgather_base(whole[: ranks * n], mine).wait()
        assert torch.equal(whole[: ranks * n], everybody)
    whole = torch.empty(ranks, n)
    dist.all_gather(list(whole.unbind()), values(rank, n))
    assert torch.equal(whole.view(-1), everybody)
    whole = values(rank, ranks * n)
    dist.all_to_all_single(whole, whole)
    assert torch.equal(whole, torch.cat([values(r, ranks * n).view(ranks, n)[rank] for r in range(ranks)]))
    piece = values(rank, n)
    dist.scatter(piece, [piece] * ranks if rank == 0 else None)
    assert torch.equal(piece, values(0, n))
    negated = torch._neg_view(values(rank, n))
    dist.all_reduce(negated, op=dist.ReduceOp.MAX)
    assert torch.equal(negated, torch.stack([-values(r, n) for r in range(ranks)]).amax(0))


def several_at_once():
    """The coalesced calls, and torch's coalescing manager."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    tensors = [values(rank, n) for n in (4, 0, 9)]
    dist.all_reduce_coalesced(tensors)
    assert all(torch.equal(t, total(ranks, t.numel())) for t in tensors)
    lists = [[torch.empty(n) for n in (4, 0, 9)] for _ in range(ranks)]
    dist.all_gather_coalesced(lists, [values(rank, n) for n in (4, 0, 9)])
    assert all(torch.equal(t, values(r, t.numel())) for r, places in enumerate(lists) for t in places)
    single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    parts = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    tensors, wholes, pieces = [values(rank, n) for n in (4, 9)], [torch.empty(ranks * n) for n in (4, 9)], []
    with _coalescing_manager():
        dist.all_reduce(tensors[0])
        dist.all_reduce(tensors[1])
    assert all(torch.equal(t, total(ranks, t.numel())) for t in tensors)
    with _coalescing_manager(async_ops=True) as manager:
        for whole, n in zip(wholes, (4, 9), strict=True):
            single(whole, values(rank, n))
    manager.wait()
    assert all(torch.equal(w, torch.cat([values(r, w.numel() // ranks) for r in range(ranks)])) for w in wholes)
    with _coalescing_manager(device=torch.device("cpu")):
        for n in (4, 9):
            pieces.append(torch.empty(n))
            parts(pieces[-1], values(rank, ranks * n), op=dist.ReduceOp.AVG)
    for piece in pieces:
        mean = total(ranks, ranks * piece.numel()) / ranks
        assert torch.allclose(piece, mean.view(ranks, -1)[rank])


def like_gloo():
    """The same calls on a gloo group give the same, for each reduction."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    gloo = dist.new_group(backend="gloo")
    mine = values(rank, 6 * ranks, torch.float64) + 1
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
        results = []
        for group in (None, gloo):
            reduced, piece, listed = mine.clone(), torch.empty(6).double(), torch.empty(6).double()
            dist.reduce(reduced, 1, op=op, group=group)
            dist.reduce_scatter_tensor(piece, mine, op=op, group=group)
            dist.reduce_scatter(listed, list(mine.view(ranks, 6)), op=op, group=group)
            results.append((reduced if rank == 1 else mine, piece, listed))
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True)), op
    dist.barrier()


def with_futures():
    """Asynchronous calls: each future holds the outputs; callbacks start and await other collectives."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    piece, swapped, mine = torch.empty(5), torch.empty(ranks * 5), values(rank, 5)
    places = [torch.empty(5) for _ in range(ranks)]
    whole = values(rank, ranks * 5)
    works = [
        dist.reduce_scatter(piece, list(whole.view(ranks, 5)), async_op=True),
        dist.all_to_all_single(swapped, whole, async_op=True),
        dist.gather(mine, places if rank == 0 else None, async_op=True),
        dist.reduce(mine.clone(), 0, async_op=True),
        dist.scatter(torch.empty(5), [values(r, 5) for r in range(ranks)] if rank == 0 else None, async_op=True),
    ]
    outputs = [work.get_future().wait() for work in works]
    assert outputs[0][0] is piece and outputs[1][0] is swapped and len(outputs[2]) == (ranks if rank == 0 else 0)
    assert torch.equal(piece, total(ranks, ranks * 5).view(ranks, 5)[rank])
    assert torch.equal(outputs[4][0], mine) and all(work.is_success() for work in works)

    def then_more(future):
        reduced = future.value()[0]
        inner = torch.empty_like(reduced)
        dist.all_to_all([inner], [reduced], group=alone)  # a group of one
        wholes = [torch.empty_like(reduced) for _ in range(ranks)]
        dist.all_gather(wholes, inner, async_op=True).get_future().wait()
        return torch.cat(wholes)

    alone = [dist.new_group([r]) for r in range(ranks)][rank]
    started = [dist.reduce_scatter(torch.empty(5), list(whole.view(ranks, 5)), async_op=True) for _ in range(6)]
    if rank == 0:
        time.sleep(0.3)  # complete by now: torch runs the callbacks in this thread, before the reduce
    nested = [work.get_future().then(then_more) for work in started]
    dist.reduce(mine, 0)
    assert all(torch.equal(f.wait(), total(ranks, ranks * 5)) for f in nested)


def in_sub_groups():
    """All ranks but the first: roots are global ranks, pieces go by place in the group."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(list(range(1, ranks)))
    if rank == 0:
        return
    place, size = rank - 1, ranks - 1
    mine = values(rank, 3)
    places = [torch.empty(3) for _ in range(size)]
    dist.gather(mine, places if rank == ranks - 1 else None, dst=ranks - 1, group=group)
    assert rank < ranks - 1 or all(torch.equal(p, values(r + 1, 3)) for r, p in enumerate(places))
    dist.reduce(mine, 1, group=group)
    expected = sum(values(r, 3) for r in range(1, ranks))
    assert torch.equal(mine, expected if rank == 1 else values(rank, 3))
    piece = torch.empty(3)
    dist.scatter(piece, [values(10 + p, 3) for p in range(size)] if rank == 1 else None, src=1, group=group)
    assert torch.equal(piece, values(10 + place, 3))
    swapped = torch.empty(size)
    dist.all_to_all_single(swapped, torch.full((size,), float(rank)), group=group)
    assert swapped.tolist() == list(range(1, ranks))


def wrong_calls():
    """What one rank can see is wrong raises there, and the group goes on; the rest raises on every rank."""
    rank, ranks, group = dist.get_rank(), dist.get_world_size(), _get_default_group()
    three, few = torch.empty(3), [torch.empty(3)] * (ranks - 1)
    refused = [
        (lambda: dist.reduce_scatter(three, few), f"{ranks - 1} tensors; expected {ranks}"),
        (lambda: dist.all_gather(few, three), f"{ranks - 1} tensors; expected {ranks}"),
        (lambda: group._reduce_scatter_base(three, torch.empty(3 * ranks + 1)), f"expected {3 * ranks} "),
        (lambda: group._allgather_base(torch.empty(1), three), f"expected {3 * ranks} "),
        (lambda: group._allgather_base(torch.empty(3 * ranks).int(), three), "torch.int32 and torch.float32"),
        (lambda: dist.all_to_all_single(torch.empty(ranks), torch.empty(ranks + 1)), "can't be split equally"),
        (lambda: dist.all_to_all_single(torch.empty(ranks), torch.empty(ranks), None, [ranks + 1]), "split sizes are"),
        (lambda: dist.reduce(three.int(), 0, op=dist.ReduceOp.AVG), "AVG of torch.int32"),
        (lambda: dist.all_gather([torch.empty(4)] * ranks, three), "has 3 elements; expected 4"),
        (lambda: group.reduce([three], 0, "sum", None, 1), "expected opts=ReduceOptions"),
    ]
    for call, text in refused:
        raises(call, text)
    raises(lambda: group.gather([few] if rank else [], [three], 0), "must be empty" if rank else "0 output lists")
    ones = [torch.empty(1) for _ in range(ranks)]
    later = {"async_op": True}
    mismatches = [
        lambda g: dist.reduce_scatter(torch.empty(3 + rank), [torch.empty(3 + rank)] * ranks, group=g, **later),
        lambda g: dist.gather(torch.empty(3 + rank), [torch.empty(3)] * ranks if rank == 0 else None, group=g, **later),
        lambda g: dist.all_to_all(ones, [*ones[1:], torch.empty(2 - (rank > 0))], group=g, **later),
        lambda g: dist.reduce(three, 0, op=dist.ReduceOp.SUM if rank else dist.ReduceOp.MAX, group=g, **later),
        lambda g: dist.reduce(three, 0, group=g, **later) if rank else dist.all_reduce(three, group=g, **later),
    ]
    for call in mismatches:
        raises(lambda call=call: call(dist.new_group()), "disagree")
    dist.all_reduce(three)


def raises(call, text):
    """`call` or its work raises, with `text` in the message. With a timeout, a device's work is waited for, too."""
    try:
        work = call()
        if work is not None:
            work.wait(timedelta(seconds=60))
    except (RuntimeError, TypeError) as exc:
        assert text in str(exc), f"expected {text!r} in {exc!r}"
    else:
        raise AssertionError(f"passed; expected {text!r}")


def short_forms():
    """A process group's own methods take the options one by one, too."""
    rank, ranks, group = dist.get_rank(), dist.get_world_size(), _get_default_group()
    mine = values(rank, 4)
    group.reduce(mine, 0, dist.ReduceOp.MAX).wait()
    assert rank or torch.equal(mine, torch.stack([values(r, 4) for r in range(ranks)]).amax(0))
    mine = values(rank, 4)
    group.broadcast(mine, root=1).wait()
    assert torch.equal(mine, values(1, 4))
    group.allreduce(mine, op=dist.ReduceOp.AVG).wait()
    assert torch.equal(mine, values(1, 4))
    piece = torch.empty(4)
    group.reduce_scatter(piece, [values(r, 4) for r in range(ranks)]).wait()
    assert torch.equal(piece, values(rank, 4) * ranks)
    group.barrier().wait()


CHECKS = [
    with_each_dtype,
    with_uneven_sizes,
    in_place,
    several_at_once,
    like_gloo,
    with_futures,
    in_sub_groups,
    wrong_calls,
    short_forms,
]


def everything(checks=tuple(CHECKS)):
    """All of the above, or other checks; says which check failed."""
    for check in checks:
        with _named(check.__name__):
            check()


@contextlib.contextmanager
def _named(name):
    try:
        yield
    except Exception as exc:
        raise AssertionError(f"{name}, rank {dist.get_rank()}: {exc!r}") from exc
