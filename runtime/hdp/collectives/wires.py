"""What float32 travels as between hosts: the choice of each operation, or of the job (HDP_WIRE_DTYPE)."""

from __future__ import annotations

from hdp.collectives.library import REDUCTIONS, DType, Kind, ReduceOp
from hdp.contract.errors import InvalidCollective

#: ``enum hdp_wire``.
_FORMATS = {"float32": 0, "float16": 1, "bfloat16": 2}
#: Below this many bytes the job's choice isn't followed: there is little to gain, and such sums are often counts.
LEAST_BYTES = 64 << 10


def choose(wire: str | None, default: str, kind: Kind, dtype: DType, op: ReduceOp, elements: int) -> int:
    """The ``wire`` of an ``hdp_request`` over `elements` elements: those of all pieces, where there are pieces.

    wire: "bfloat16" or "float16" round each host's sum, and the whole sum, on the way between hosts; float32 only, in
    allreduce, reduce and reduce_scatter. "float32" doesn't round. None: `default`, the job's choice, for sums and
    averages of float32 of at least 64 KiB, and else "float32". Raises InvalidCollective.
    """
    if wire is not None:
        number = format_of(wire, "wire")
        if number and dtype != DType.FLOAT32:
            raise InvalidCollective(
                f"wire is {wire!r}, but the array is {dtype.name.lower()}; only float32 can be rounded"
            )
        return number
    if default == "float32":
        return 0
    large = kind in REDUCTIONS and dtype == DType.FLOAT32 and elements * 4 >= LEAST_BYTES
    return _FORMATS[default] if large and op in (ReduceOp.SUM, ReduceOp.AVG) else 0


def format_of(wire: str, what: str) -> int:
    """The number of a wire format. Raises InvalidCollective, which calls it `what`."""
    try:
        return _FORMATS[wire]
    except (KeyError, TypeError) as exc:
        raise InvalidCollective(f"{what} is {wire!r}; expected one of {', '.join(_FORMATS)}") from exc
