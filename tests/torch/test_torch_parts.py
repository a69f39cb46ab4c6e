"""Parts of the torch backend that need no ranks."""

import pytest

torch = pytest.importorskip("torch", reason="torch isn't installed: pip install 'hdp-train[torch]'")

import torch.distributed as dist  # noqa: E402


def test_every_operation_is_overridden():
    """What isn't would go to gloo without a word. Fails where a new torch has an operation that we don't know."""
    from hdp.torch.process_group import HdpProcessGroup

    operations = [name for name, f in vars(dist.ProcessGroup).items() if "-> c10d::Work" in (f.__doc__ or "")]
    assert {"allreduce", "reduce_scatter", "send"} <= set(operations)
    operations += ["monitored_barrier", "_start_coalescing"]
    assert set(operations) <= set(vars(HdpProcessGroup))


def test_tensors_in_a_row_are_used_where_they_are():
    from hdp.torch.tensors import flat, room_for

    whole = torch.arange(12.0).reshape(4, 3)
    assert flat(list(whole.unbind())).data_ptr() == whole.data_ptr()
    assert flat([whole[:0], whole[1], whole[2:]]).tolist() == list(range(3, 12))
    assert flat([whole[:0], whole[1], whole[2:]]).data_ptr() == whole[1].data_ptr()
    assert room_for(list(whole.unbind()))[1] == []


@pytest.mark.parametrize(
    "pick",
    [
        lambda w: [w[1], w[0]],
        lambda w: [w[0], w[2]],
        lambda w: [w[:, 0]],
        lambda w: [w.t()],
        lambda w: [torch._neg_view(w)],
        lambda w: [w[0], torch.ones(3)],
    ],
    ids=["wrong order", "a gap", "strided", "transposed", "negated", "another tensor"],
)
def test_other_tensors_are_copied(pick):
    from hdp.torch.tensors import flat, room_for

    tensors = pick(torch.arange(12.0).reshape(4, 3))
    expected = [x for t in tensors for x in t.reshape(-1).tolist()]
    copied = flat(tensors)
    assert copied.tolist() == expected and copied.data_ptr() not in [t.data_ptr() for t in tensors]
    room, finish = room_for(tensors)
    room.copy_(torch.arange(100.0, 100.0 + room.numel()))
    for action in finish:
        action()
    assert [x for t in tensors for x in t.reshape(-1).tolist()] == room.tolist()


def test_options_come_whole_or_one_by_one():
    from torch._C import _distributed_c10d as c10d

    from hdp.torch.options import options

    whole = c10d.ReduceOptions()
    assert options(c10d.ReduceOptions, [whole], {}) is whole
    assert options(c10d.ReduceOptions, [], {"opts": whole}) is whole
    made = options(c10d.ReduceOptions, [2], {"op": dist.ReduceOp.MAX})
    assert made.rootRank == 2 and made.reduceOp == dist.ReduceOp.MAX
    with pytest.raises(TypeError, match="expected opts=BarrierOptions, or timeout"):
        options(c10d.BarrierOptions, [], {"root": 1})


def test_an_element_travels_as_all_its_bytes():
    """Of every dtype that torch has, whether the library knows it or not."""
    from hdp.torch.dtypes import DTYPES, moved_as

    sizes = {ours: theirs.itemsize for theirs, ours in DTYPES.items()}
    known = {d for d in vars(torch).values() if isinstance(d, torch.dtype) and not str(d).startswith("torch.q")}
    assert {torch.complex128, torch.float8_e5m2, torch.uint64} <= known
    for dtype in known:
        carrier, lanes = moved_as(dtype)
        assert sizes[carrier] * lanes == dtype.itemsize, dtype


def test_reductions_are_refused_by_name():
    from hdp.contract.errors import InvalidCollective
    from hdp.torch.dtypes import reduction

    for op, dtype, text in (
        (dist.ReduceOp.AVG, torch.int64, "AVG of torch.int64: sum integers and scale them yourself"),
        (dist.ReduceOp.PRODUCT, torch.complex64, "PRODUCT of torch.complex64: gather the tensors and combine them"),
        (dist.ReduceOp.MIN, torch.uint64, "MIN of torch.uint64: reduce them as torch.int64"),
        (dist.ReduceOp.SUM, torch.bits8, "SUM of torch.bits8: convert it to a dtype that has arithmetic"),
        (dist.ReduceOp.BOR, torch.int32, "reduction BOR isn't served: gather the tensors"),
    ):
        with pytest.raises(InvalidCollective, match=text):
            reduction(op, dtype)
