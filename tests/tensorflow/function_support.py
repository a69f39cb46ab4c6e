"""What the checks of function_ranks.py share: values by rank, and NumPy's word for what comes of them."""

import numpy as np
import tensorflow as tf

import hdp.tensorflow as dist

OPS = {
    dist.Sum: lambda parts, dtype: np.add.reduce(parts, dtype=dtype),
    dist.Average: lambda parts, dtype: np.add.reduce(parts, dtype=dtype) / dtype.type(len(parts)),
    dist.Min: lambda parts, _: np.minimum.reduce(parts),
    dist.Max: lambda parts, _: np.maximum.reduce(parts),
    dist.Product: lambda parts, dtype: np.multiply.reduce(parts, dtype=dtype),
}

FLOATS = (tf.float16, tf.bfloat16, tf.float32, tf.float64)

INTEGERS = (tf.int8, tf.uint8, tf.int16, tf.uint16, tf.int32, tf.uint32, tf.int64, tf.uint64)

SHAPES = ((), (0, 3), (4, 3))


def rank():
    return dist.rank()


def everybody():
    return range(dist.size())


def values(shape, dtype, of, salt=0):
    """Rank `of`'s array: small integers that differ by rank and place, so that sums of them are exact."""
    count = int(np.prod(shape))
    numbers = (np.arange(count) * 7 + of * 3 + salt) % 11 - (0 if dtype.is_unsigned else 4)
    if dtype == tf.bool:
        return (numbers % 3 == of % 2).reshape(shape)
    if dtype.is_complex:
        numbers = numbers + 1j * (numbers[::-1] + of)
    return numbers.astype(dtype.as_numpy_dtype).reshape(shape)


def tensor(shape, dtype, salt=0):
    return tf.constant(values(shape, dtype, rank(), salt), dtype)


def whole(shape, dtype, op=dist.Sum, salt=0):
    """What all ranks' `values` give. In a wider type where NumPy's own has 16 bits or no sums."""
    parts = np.stack([values(shape, dtype, r, salt) for r in everybody()])
    if dtype == tf.bool:
        how = np.logical_or if op in (dist.Sum, dist.Max) else np.logical_and
        return how.reduce(parts)
    if dtype.size == 2 and dtype.is_floating:
        parts = parts.astype(np.float32)
    return np.asarray(OPS[op](parts, parts.dtype))


def same(found, expected, dtype=None, bits=False):
    found, expected = (np.asarray(v.numpy() if hasattr(v, "numpy") else v) for v in (found, expected))
    assert found.shape == expected.shape, f"shape {found.shape}, expected {expected.shape}"
    assert dtype is None or found.dtype == dtype.as_numpy_dtype, f"dtype {found.dtype}, expected {dtype}"
    if found.dtype.kind in "biu" or bits:
        assert np.array_equal(found, expected.astype(found.dtype)), f"{found}, expected {expected}"
        return
    wide = np.complex128 if found.dtype.kind == "c" else np.float64
    step = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float64": 1e-14, "complex128": 1e-14}.get(found.dtype.name, 1e-6)
    found, expected = found.astype(wide), expected.astype(wide)
    np.testing.assert_allclose(found, expected, rtol=step, atol=2 * step * np.abs(expected).max(initial=0))


def raises(kind, function, *texts):
    try:
        function()
    except kind as exc:
        missing = [t for t in texts if t not in str(exc)]
        assert not missing, f"{missing} not in the message: {exc}"
        return str(exc)
    raise AssertionError(f"nothing was raised; expected {kind}")


def both(function, *arguments, signature=None):
    """What `function` gives eagerly, in a tf.function, and in one that doesn't know shapes."""
    yield function(*arguments)
    yield tf.function(function)(*arguments)
    shapes = signature or [tf.TensorSpec([None] * a.shape.rank, a.dtype) for a in arguments]
    yield tf.function(function, input_signature=shapes)(*arguments)
