"""What the collective operations must give, computed with NumPy alone, bit for bit.

Sums go over the ranks of a host in order, then over hosts in order. float16 and bfloat16 are summed in float32, rounded
when they leave a host (an average: divided before that), and once more for the result. So is float32 where it travels
as a half type.
"""

import itertools

import ml_dtypes
import numpy as np

BINARY = {"SUM": np.add, "AVG": np.add, "MIN": np.minimum, "MAX": np.maximum, "PRODUCT": np.multiply}
HALF = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


def dtype_of(name):
    return HALF.get(str(name)) or np.dtype(name)


def data(rank, shape, dtype, seed=0):
    """Different for each rank and index. Floats have all bits in use; bools are mixed."""
    dtype = dtype_of(dtype)
    rng = np.random.default_rng([seed, rank, int(np.prod(shape))])
    if dtype == np.bool_:
        return np.asarray(rng.random(shape) < 0.8)
    if np.issubdtype(dtype, np.integer):
        info = np.iinfo(dtype)
        return np.asarray(rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True))
    return np.asarray(rng.standard_normal(shape), dtype)


def allreduce(sizes, count, dtype, op, seed=0):
    """The result of an allreduce of `data` on every rank."""
    return combine(sizes, range(sum(sizes)), [data(r, count, dtype, seed) for r in range(sum(sizes))], op)


def combine(sizes, members, arrays, op, wire=None):
    """arrays[i] is that of global rank members[i]; combined over all of them. wire: what float32 travels as."""
    dtype = arrays[0].dtype
    travels = dtype_of(wire or dtype)
    accumulate = np.dtype(np.float32) if travels.name in HALF else dtype
    function = BINARY[op]
    if dtype == np.bool_:
        function = {"SUM": np.logical_or, "PRODUCT": np.logical_and}.get(op, function)
    by_rank = sorted(zip(members, arrays, strict=True), key=lambda item: item[0])
    with np.errstate(over="ignore"):
        hosts = []
        for _, here in itertools.groupby(by_rank, key=lambda item: host_of(sizes, item[0])):
            part = _fold(function, [array.astype(accumulate) for _, array in here])
            hosts.append(part)
        early = op == "AVG" and travels.name in HALF and len(hosts) > 1
        if early:
            hosts = [part / accumulate.type(len(arrays)) for part in hosts]
        if len(hosts) > 1:
            hosts = [part.astype(travels).astype(accumulate) for part in hosts]
        total = _fold(function, hosts)
        if len(hosts) > 1:
            total = total if op == "AVG" and not early else total.astype(travels).astype(accumulate)
    if op == "AVG" and not early:
        total = total / accumulate.type(len(arrays))
    return total.astype(dtype)


def host_of(sizes, rank):
    return int(np.searchsorted(np.cumsum(sizes), rank, side="right"))


def _fold(function, arrays):
    total = arrays[0]
    for array in arrays[1:]:
        total = function(total, array)
    return total
