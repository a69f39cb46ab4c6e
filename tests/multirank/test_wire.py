"""float32 that travels as a half type between hosts: against NumPy bit for bit, and what is refused."""

import dataclasses

import numpy as np
import pytest
import reference
from steps import Step, check, run

import hdp.collectives as hc
from hdp.collectives.wires import LEAST_BYTES

COUNTS = [1, 1003, 300_001]


@pytest.mark.parametrize("cluster", [[3], [2, 2], [1, 3, 1]], indirect=True, ids=str)
@pytest.mark.parametrize("wire", ["bfloat16", "float16", "float32"])
def test_every_rank_gets_the_bits_of_the_reference(cluster, wire):
    """Inside one host nothing is rounded; between hosts each host's sum is, and the whole."""
    members, program = tuple(range(cluster.size)), []
    for op in ["SUM", "AVG", "MIN", "PRODUCT"]:
        for count in COUNTS:
            for kind in ["allreduce", "reduce", "reduce_scatter"]:
                n = count // 3 + 1 if kind == "reduce_scatter" else count
                program.append(Step(kind, "float32", op, members, 1, 0, (n,), None, count == 1003, wire))
    check(cluster.sizes, program, cluster.run(run, program, 1))


def _by_default(comm, count, op):
    before = comm.defaults
    comm.defaults = dataclasses.replace(before, wire="bfloat16")
    try:
        data = reference.data(comm.rank, count, "float32")
        return hc.allreduce(data, comm.world, hc.ReduceOp[op]).wait(60)
    finally:
        comm.defaults = before


@pytest.mark.parametrize("cluster", [[2, 2]], indirect=True, ids=str)
@pytest.mark.parametrize(
    ("count", "op", "wire"),
    [(LEAST_BYTES // 4, "SUM", "bfloat16"), (LEAST_BYTES // 4 - 1, "SUM", None), (LEAST_BYTES, "MAX", None)],
)
def test_the_jobs_choice_is_for_large_sums(cluster, count, op, wire):
    arrays = [reference.data(rank, count, "float32") for rank in range(cluster.size)]
    expected = reference.combine(cluster.sizes, range(cluster.size), arrays, op, wire)
    for result in cluster.run(_by_default, count, op):
        np.testing.assert_array_equal(result, expected)


def _refused(comm):
    a, texts = np.ones(8, np.float32), []
    for call in [
        lambda: hc.allreduce(a, comm.world, wire="int8"),
        lambda: hc.allreduce(a.astype(np.float64), comm.world, wire="bfloat16"),
    ]:
        try:
            call()
        except hc.InvalidCollective as exc:
            texts.append(str(exc))
    hc.barrier(comm.world).wait(30)  # nothing was started
    return texts


@pytest.mark.parametrize("cluster", [[2, 2]], indirect=True, ids=str)
def test_wrong_formats_are_refused_before_anything_starts(cluster):
    for texts in cluster.run(_refused):
        assert texts == [
            "wire is 'int8'; expected one of float32, float16, bfloat16",
            "wire is 'bfloat16', but the array is float64; only float32 can be rounded",
        ]


def _mixed(comm):
    wire = "bfloat16" if comm.rank == 3 else None
    hc.allreduce(np.ones(100_000, np.float32), comm.world, wire=wire).wait(30)


@pytest.mark.parametrize("own_cluster", [[2, 2]], indirect=True, ids=str)
def test_ranks_that_choose_differently_are_told(own_cluster):
    for error in own_cluster.try_run(_mixed):
        assert isinstance(error, hc.CollectiveMismatch)
        assert "rank 3 (algo-2) called allreduce(float32[100000], sum, bfloat16 on the wire)" in str(error)
