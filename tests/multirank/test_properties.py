"""Random programs: several operations of random kinds, sizes and types, submitted in a random order on each rank."""

import numpy as np
import pytest
import reference
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hdp.collectives as hc

DTYPES = ["float16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool"]
operations = st.lists(
    st.tuples(
        st.sampled_from(["allreduce", "broadcast", "allgather", "barrier"]),
        st.sampled_from(DTYPES),
        st.one_of(st.integers(0, 40), st.integers(0, 300_000)),
        st.sampled_from(["SUM", "MIN", "MAX", "PRODUCT"]),
    ),
    min_size=1,
    max_size=6,
)


def _program(comm, program, seed):
    order = np.random.default_rng([seed, comm.rank]).permutation(len(program))
    works = {}
    for place in order:
        kind, dtype, count, op = program[place]
        array, tag = reference.data(comm.rank, count, dtype, place), f"op {place}"
        if kind == "allreduce":
            works[place] = hc.allreduce(array, comm.world, hc.ReduceOp[op], tag=tag)
        elif kind == "broadcast":
            works[place] = hc.broadcast(array, comm.world, count % comm.world.size, tag=tag)
        elif kind == "allgather":
            works[place] = hc.allgather(array, comm.world, tag=tag)
        else:
            works[place] = hc.barrier(comm.world, tag=tag)
    results = [works[place].wait(60) for place in range(len(program))]
    return [None if r is None else r.tobytes() for r in results]


def _expected(sizes, program):
    world = sum(sizes)
    for place, (kind, dtype, count, op) in enumerate(program):
        if kind == "allreduce":
            yield reference.allreduce(sizes, count, dtype, op, place).tobytes()
        elif kind == "broadcast":
            yield reference.data(count % world, count, dtype, place).tobytes()
        elif kind == "allgather":
            yield b"".join(reference.data(rank, count, dtype, place).tobytes() for rank in range(world))
        else:
            yield None


@pytest.mark.parametrize("cluster", [[3], [2, 1], [1, 2, 1]], indirect=True, ids=str)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=operations, seed=st.integers(0, 1000))
def test_a_random_program_gives_the_reference_on_every_rank(cluster, program, seed):
    """Bit for bit what NumPy gives, whatever the orders."""
    assert cluster.run(_program, program, seed, timeout=60) == [list(_expected(cluster.sizes, program))] * cluster.size
