"""Random programs on random emulated hosts: every operation, in another order on each rank, against NumPy bit for bit.

A program is a list of operations on overlapping groups. Every rank submits its operations in an order of its own. The
expected bits come from `reference`, which knows nothing of hosts' slots, so results are the same for every chunk size.
"""

import os

import pytest
from cluster import Cluster
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from steps import DTYPES, PIECES, WHOLE, Step, check, run

SUMS = ["allreduce", "reduce", "reduce_scatter"]
WIRES = st.sampled_from([None, "bfloat16", "float16", "float32"])
EXAMPLES = int(os.environ.get("HDP_TEST_EXAMPLES", "6"))


@st.composite
def steps(draw, world):
    members = draw(st.permutations(range(world)))
    members = tuple(members[: draw(st.integers(1, world))])
    size = len(members)
    kind = draw(st.sampled_from([*WHOLE, *PIECES] + ["message"] * (size > 1)))
    dtype = draw(st.sampled_from(DTYPES))
    ops = ["SUM", "MIN", "MAX", "PRODUCT"] + ["AVG"] * dtype.startswith(("float", "bfloat"))
    root = draw(st.integers(0, size - 1))
    large = draw(st.booleans())
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
    if large:
        shape = (draw(st.integers(0, 20_000 if kind in PIECES else 60_000)),)
    counts = None
    if kind in PIECES and draw(st.booleans()):
        rows = st.integers(0, 4_000 if large else 6)
        counts = tuple(tuple(draw(rows) for _ in range(size)) for _ in range(size))
        shape = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
    peer = (root + 1 + draw(st.integers(0, max(0, size - 2)))) % size
    wire = draw(WIRES) if dtype == "float32" and kind in SUMS else None
    return Step(kind, dtype, draw(st.sampled_from(ops)), members, root, peer, shape, counts, draw(st.booleans()), wire)


@st.composite
def cases(draw):
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    program = draw(st.lists(steps(sum(sizes)), min_size=4, max_size=14))
    slots = {"slots": draw(st.integers(1, 5)), "slot_bytes": draw(st.sampled_from([4096, 64 << 10, 512 << 10]))}
    return sizes, program, slots, draw(st.integers(0, 1000))


@pytest.mark.slow
@pytest.mark.timeout(60 + 60 * EXAMPLES)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=cases())
def test_a_random_program_gives_the_reference_on_every_rank(case):
    """1 to 4 hosts of 1 to 4 ranks; 4 to 14 operations. Run twice on the same ranks: the same bits."""
    sizes, program, slots, seed = case
    with Cluster(sizes, **slots) as cluster:
        results = cluster.run(run, program, seed, timeout=60)
        assert cluster.run(run, program, seed + 1, timeout=60) == results
    check(sizes, program, results)
