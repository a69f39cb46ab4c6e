"""Collective operations on NumPy arrays and on anything with the buffer protocol."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from hdp.collectives.communicator import Group, check_rank
from hdp.collectives.library import DType, Kind, ReduceOp
from hdp.contract.errors import HdpError, InvalidCollective

Array = npt.NDArray[Any]

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


class Work:
    """An operation in flight. Keeps its arrays alive until it is complete."""

    def __init__(self, group: Group, ticket: int, keep: tuple[Array, ...], result: Array | None) -> None:
        self._group, self._ticket, self._keep, self._result = group, ticket, keep, result
        self._complete = False
        self._error: HdpError | None = None
        with _pending_lock:
            _pending[id(self)] = self  # whoever drops a Work must not free memory that is in use

    def wait(self, timeout: float | None = None) -> Array | None:
        """The result (None for a barrier). `timeout`: seconds to wait; then TimeoutError, and the operation goes on.

        Raises CollectiveMismatch, CollectiveTimeout, PeerLost: the output is undefined, and so is the group.
        """
        if not self._poll(timeout):
            raise TimeoutError(f"not complete after {timeout} s; it goes on")
        if self._error is not None:
            raise self._error
        return self._result

    def done(self) -> bool:
        """Whether `wait` would return (or raise) at once."""
        return self._poll(0)

    def _poll(self, timeout: float | None) -> bool:
        if self._complete:
            return True
        error = None
        try:
            complete = self._group.comm.wait(self._ticket, timeout)
        except HdpError as exc:
            complete, error = True, exc
        with _pending_lock:
            if complete and not self._complete:  # else another thread has seen to it, and the ticket is gone
                self._complete, self._error = True, error
                self._group.comm.release(self._ticket)
                _pending.pop(id(self), None)
        return self._complete


_pending: dict[int, Work] = {}
_pending_lock = threading.Lock()


def allreduce(
    array: Any,
    group: Group,
    op: ReduceOp = ReduceOp.SUM,
    *,
    out: Array | None = None,
    tag: str | None = None,
    timeout: float | None = None,
) -> Work:
    """Combine `array` over the group, element by element; every rank gets the same bits.

    array: any shape, contiguous or not; same number of elements, dtype and `op` on every rank, all of which must
    call. out: same number of elements and dtype, contiguous; None: a new array; may be `array`.
    Cost: 2 hops between hosts; 2(N-1)/N of the array's bytes on each host's link, for N hosts.
    """
    source = _source(array)
    target = _target(out, source.shape, source.dtype)
    ticket = group.start(
        Kind.ALLREDUCE,
        dtype_of(source.dtype),
        _address(source),
        _address(target),
        source.size,
        op=op,
        tag=tag,
        timeout=timeout,
    )
    return Work(group, ticket, (source, target), target)


def broadcast(
    array: Array, group: Group, root: int = 0, *, tag: str | None = None, timeout: float | None = None
) -> Work:
    """Overwrite `array` on every rank with that of the group's rank `root`.

    array: contiguous, writable; same number of elements and dtype on every rank, all of which must call.
    Cost: 2 hops; up to 2(N-1)/N of the array's bytes on the root host's link.
    """
    check_rank(root, group.size, "root")
    target = _target(array, np.shape(array), np.asarray(array).dtype)
    address = _address(target)
    ticket = group.start(
        Kind.BROADCAST, dtype_of(target.dtype), address, address, target.size, root=root, tag=tag, timeout=timeout
    )
    return Work(group, ticket, (target,), target)


def allgather(array: Any, group: Group, *, tag: str | None = None, timeout: float | None = None) -> Work:
    """Every rank's `array`, stacked: result[i] is that of the group's rank i.

    array: same shape and dtype on every rank, all of which must call. Result: shape (group size, *array.shape).
    Cost: 1 hop; each host sends its ranks' arrays to the N-1 others.
    """
    source = _source(array)
    target = np.empty((group.size, *source.shape), source.dtype)
    ticket = group.start(
        Kind.ALLGATHER,
        dtype_of(source.dtype),
        _address(source),
        _address(target),
        source.size,
        tag=tag,
        timeout=timeout,
    )
    return Work(group, ticket, (source, target), target)


def barrier(group: Group, *, tag: str | None = None, timeout: float | None = None) -> Work:
    """Complete once every rank of the group has called it. Cost: one message to hosts[0] and back."""
    return Work(group, group.start(Kind.BARRIER, tag=tag, timeout=timeout), (), None)


def dtype_of(dtype: np.dtype[Any]) -> DType:
    """The library's name of a NumPy dtype. Raises InvalidCollective that lists the dtypes there are."""
    try:
        return _DTYPES[dtype.name]
    except KeyError as exc:
        raise InvalidCollective(f"dtype {dtype} can't be sent; expected one of {', '.join(_DTYPES)}") from exc


def _source(array: Any) -> Array:
    source: Array = np.ascontiguousarray(array).reshape(np.shape(array))
    return source


def _target(out: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    if out is None:
        return np.empty(shape, dtype)
    target: Array = np.asarray(out)
    fits = target.size == int(np.prod(shape)) and target.dtype == dtype
    if not (fits and target.flags.c_contiguous and target.flags.writeable):
        raise InvalidCollective(
            f"the output is {target.dtype}{list(target.shape)}, contiguous: {target.flags.c_contiguous}, "
            f"writable: {target.flags.writeable}; expected a contiguous writable {dtype}{list(shape)}"
        )
    return target


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])
