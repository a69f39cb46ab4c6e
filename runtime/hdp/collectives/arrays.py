"""What the operations need to know of arrays: addresses, element types, rows, and whether memory overlaps."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hdp.collectives.library import DType
from hdp.contract.errors import InvalidCollective

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]
else:  # NumPy before 1.21 has no NDArray
    Array = np.ndarray

_DTYPES = {
    "float16": DType.FLOAT16,
    "bfloat16": DType.BFLOAT16,
    "float32": DType.FLOAT32,
    "float64": DType.FLOAT64,
    "int8": DType.INT8,
    "uint8": DType.UINT8,
    "int32": DType.INT32,
    "int64": DType.INT64,
    "bool": DType.BOOL,
}


def dtype_of(array: Array) -> DType:
    """The library's name of an array's dtype. Raises InvalidCollective that lists the dtypes there are."""
    return _known(array.dtype)


@functools.cache  # a dtype's name takes as long to find as the rest of a call
def _known(dtype: np.dtype[Any]) -> DType:
    if not dtype.isnative:
        raise InvalidCollective(f"dtype {dtype.str} has another byte order than this machine; convert it first")
    try:
        return _DTYPES[dtype.name]
    except KeyError as exc:
        raise InvalidCollective(f"dtype {dtype} can't be sent; expected one of {', '.join(_DTYPES)}") from exc


def address(array: Array | None) -> int:
    """Where an array's memory begins; 0 for none."""
    return 0 if array is None else int(array.__array_interface__["data"][0])


def source(array: Any) -> Array:
    """`array` as a contiguous NumPy array: the same memory where that is possible, else a copy."""
    whole = _as_array(array)
    if whole.flags.c_contiguous:
        return whole
    contiguous: Array = np.ascontiguousarray(whole).reshape(whole.shape)
    return contiguous


def target(out: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Where a result of `shape` and `dtype` goes: `out`, which must fit, or a new array for None."""
    return np.empty(shape, dtype) if out is None else _fitting(out, _as_array(out), shape, dtype)


def itself(out: Any) -> Array:
    """`out` as the place of a result that has its shape and dtype."""
    array = _as_array(out)
    return _fitting(out, array, array.shape, array.dtype)


def _fitting(out: Any, array: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """`array`, which was made of `out`, in `shape`. Raises InvalidCollective where a result can't be written to it."""
    if array is not out and array.size and not np.may_share_memory(array, _as_array(out)):
        raise InvalidCollective(
            f"the output is a {type(out).__name__}, which gives no memory to write to; use an array"
        )
    flags = array.flags
    fits = (array.shape == shape or array.size == math.prod(shape)) and array.dtype == dtype
    if not (fits and flags.c_contiguous and flags.writeable):
        raise InvalidCollective(
            f"the output is {array.dtype}{list(array.shape)}, contiguous: {flags.c_contiguous}, "
            f"writable: {flags.writeable}; expected a contiguous writable {dtype}{list(shape)}"
        )
    return array if array.shape == shape else array.reshape(shape)  # a view: it is contiguous


def apart(array: Array, out: Array, allowed: Array | None = None) -> Array:
    """`array`, or a copy where it shares memory with `out`; sharing exactly `allowed` is fine."""
    if array is allowed or not np.may_share_memory(array, out):
        return array
    if allowed is not None and address(array) == address(allowed) and array.nbytes == allowed.nbytes:
        return array
    copied: Array = array.copy()
    return copied


def row_elements(shape: Sequence[int]) -> int:
    """Elements of one row: of everything below the first axis."""
    return math.prod(shape[1:])


def counts_of(counts: Sequence[int], size: int, what: str) -> list[int]:
    """Numbers of rows as plain integers. Raises InvalidCollective unless there are `size`, none below 0."""
    try:
        numbers = [operator.index(n) for n in counts]
    except TypeError as exc:
        raise InvalidCollective(f"{what} is {counts!r}; expected {size} integers") from exc
    if len(numbers) != size:
        raise InvalidCollective(f"{what} has {len(numbers)} numbers; expected {size}, one for each rank")
    if any(n < 0 for n in numbers):
        raise InvalidCollective(f"{what} are {numbers}; none may be below 0")
    return numbers


def check_rows(array: Array, counts: Sequence[int], what: str) -> None:
    """Raise InvalidCollective unless `array` has as many rows as `counts` say together."""
    if array.ndim == 0 or array.shape[0] != sum(counts):
        raise InvalidCollective(
            f"{what} are {list(counts)}, {sum(counts)} rows together, but the array has shape {list(array.shape)}"
        )


def _as_array(array: Any) -> Array:
    whole: Array = np.frombuffer(array, np.uint8) if isinstance(array, bytes) else np.asarray(array)
    return whole
