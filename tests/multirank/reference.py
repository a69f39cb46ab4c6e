"""What the collective operations must give, computed with NumPy alone, bit for bit.

Sums go over the ranks of a host in order, then over hosts in order. float16 is summed in float32 and rounded when it
leaves a host, and once more for the result.
"""

import numpy as np

BINARY = {"SUM": np.add, "AVG": np.add, "MIN": np.minimum, "MAX": np.maximum, "PRODUCT": np.multiply}


def data(rank, count, dtype, seed=0):
    """Different for each rank and index. Floats have all bits in use; bools are mixed."""
    rng = np.random.default_rng([seed, rank, count])
    if np.dtype(dtype) == np.bool_:
        return rng.random(count) < 0.8
    if np.issubdtype(dtype, np.integer):
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, count, dtype=dtype, endpoint=True)
    return rng.standard_normal(count).astype(dtype)


def allreduce(sizes, count, dtype, op, seed=0):
    """The result on every rank."""
    dtype = np.dtype(dtype)
    accumulate = np.float32 if dtype == np.float16 else dtype
    combine = BINARY[op]
    if dtype == np.bool_:
        combine = {"SUM": np.logical_or, "PRODUCT": np.logical_and}.get(op, combine)
    hosts, rank = [], 0
    with np.errstate(over="ignore"):
        for n in sizes:
            part = data(rank, count, dtype, seed).astype(accumulate)
            for local in range(1, n):
                part = combine(part, data(rank + local, count, dtype, seed).astype(accumulate))
            hosts.append(part if len(sizes) == 1 else part.astype(dtype).astype(accumulate))
            rank += n
        total = hosts[0]
        for part in hosts[1:]:
            total = combine(total, part)
    if op == "AVG":
        total = total / accumulate(rank) if callable(accumulate) else total / accumulate.type(rank)
    return total.astype(dtype)
