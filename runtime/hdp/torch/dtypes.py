"""Which of the library's types carries a tensor's dtype, and what a reduction needs of it.

Data that is only moved travels as bytes where the library doesn't have its dtype. Data that is reduced does so in a
dtype that gives the same result: complex sums as their parts; small integers in wider ones, of which only the low bits
are kept; float8 in float32, rounded once.
"""

# torch's stubs leave out what its own callers use.
# mypy: disable-error-code="attr-defined"

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from hdp.collectives import DType, ReduceOp
from hdp.contract.errors import InvalidCollective

DTYPES = {
    torch.float16: DType.FLOAT16,
    torch.bfloat16: DType.BFLOAT16,
    torch.float32: DType.FLOAT32,
    torch.float64: DType.FLOAT64,
    torch.int8: DType.INT8,
    torch.uint8: DType.UINT8,
    torch.int32: DType.INT32,
    torch.int64: DType.INT64,
    torch.bool: DType.BOOL,
}
_PARTS = {torch.complex32: DType.FLOAT16, torch.complex64: DType.FLOAT32, torch.complex128: DType.FLOAT64}
_WIDER = {torch.int16: torch.int32, torch.uint16: torch.int32, torch.uint32: torch.int64}
#: Their elements mean nothing without what else the tensor holds.
_QUANTIZED = (torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4)
_OPS = {
    dist.ReduceOp.SUM: ReduceOp.SUM,
    dist.ReduceOp.AVG: ReduceOp.AVG,
    dist.ReduceOp.MIN: ReduceOp.MIN,
    dist.ReduceOp.MAX: ReduceOp.MAX,
    dist.ReduceOp.PRODUCT: ReduceOp.PRODUCT,
    dist.ReduceOp.PREMUL_SUM: ReduceOp.SUM,
}
BITWISE = {
    dist.ReduceOp.BAND: torch.bitwise_and,
    dist.ReduceOp.BOR: torch.bitwise_or,
    dist.ReduceOp.BXOR: torch.bitwise_xor,
}
#: What a reduction can be of parts, and what integers can't be.
_SUMS = (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.PREMUL_SUM)
_MEANS = (dist.ReduceOp.AVG, dist.ReduceOp.PREMUL_SUM)


class Carrier(NamedTuple):
    """An element, as `lanes` elements of one of the library's types."""

    dtype: DType
    lanes: int


@cache
def moved_as(dtype: torch.dtype) -> Carrier:
    """What carries `dtype` where nothing is computed."""
    if dtype in _QUANTIZED:
        raise InvalidCollective(f"a quantized tensor of {dtype}: send its int_repr(), and its scale and zero point")
    own = DTYPES.get(dtype)
    return Carrier(own, 1) if own is not None else Carrier(DType.UINT8, dtype.itemsize)


@cache
def reduced_as(dtype: torch.dtype) -> Carrier:
    """What carries `dtype`, one that `Reduction.operand` gives, through a reduction."""
    if dtype == torch.uint64:  # sums and products have the same bits
        return Carrier(DType.INT64, 1)
    return Carrier(_PARTS[dtype], 2) if dtype in _PARTS else Carrier(DTYPES[dtype], 1)


class Reduction(NamedTuple):
    """What a ReduceOp asks of the library, for one dtype."""

    op: ReduceOp
    factor: Any = None
    """What each rank multiplies its data by before."""
    dtype: torch.dtype | None = None
    """What it is reduced in; None: its own."""

    @property
    def plain(self) -> bool:
        """Whether tensors go to the library as they are."""
        return self.factor is None and self.dtype is None

    def operand(self, flat: torch.Tensor) -> torch.Tensor:
        """What the library reduces: a new tensor, unless `plain`."""
        if self.dtype is not None:
            flat = flat.to(self.dtype)
        return flat if self.factor is None else flat * _scalar(self.factor, flat)


def reduction(op: Any, dtype: torch.dtype) -> Reduction:
    """How `op`, which isn't a bitwise one, reduces `dtype`. Raises InvalidCollective where it can't."""
    kind = kind_of(op)
    found = _reduction(kind, dtype)
    return found._replace(factor=op.__getstate__()[1]) if kind == dist.ReduceOp.PREMUL_SUM else found


@cache
def _reduction(kind: Any, dtype: torch.dtype) -> Reduction:
    _check(kind, dtype)
    return Reduction(_OPS[kind], None, torch.float32 if _is_float8(dtype) else _WIDER.get(dtype))


def kind_of(op: Any) -> Any:
    """The kind of a ReduceOp, which may hold a factor too."""
    return getattr(op, "op", op)


def check_bitwise(op: Any, dtype: torch.dtype) -> None:
    """Raise InvalidCollective unless `dtype` has bits to combine."""
    if dtype.is_floating_point or dtype.is_complex:
        raise InvalidCollective(f"{kind_of(op).name} of {dtype}: bitwise reductions are of integers and bool")


def _check(kind: Any, dtype: torch.dtype) -> None:
    name, real = kind.name, not dtype.is_complex
    if kind not in _OPS:
        raise InvalidCollective(f"reduction {name} isn't served: gather the tensors and combine them yourself")
    if not real and kind not in _SUMS:
        raise InvalidCollective(f"{name} of {dtype}: gather the tensors and combine them yourself")
    if real and kind in _MEANS and not dtype.is_floating_point:
        raise InvalidCollective(f"{name} of {dtype}: sum integers and scale them yourself")
    if dtype == torch.uint64 and kind not in (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT):
        raise InvalidCollective(f"{name} of {dtype}: reduce them as torch.int64 where they fit")
    known = dtype in DTYPES or dtype in _WIDER or dtype in _PARTS or dtype == torch.uint64
    if not known and not _is_float8(dtype):
        raise InvalidCollective(f"{name} of {dtype}: convert it to a dtype that has arithmetic")


def _is_float8(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and dtype.itemsize == 1


def _scalar(factor: Any, like: torch.Tensor) -> Any:
    return factor.to(like) if isinstance(factor, torch.Tensor) else factor
