"""What one call of torch's asks of the library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from hdp.collectives import Kind, ReduceOp
from hdp.collectives.library import REDUCTIONS
from hdp.torch.checks import Tensors
from hdp.torch.dtypes import Carrier, moved_as, reduced_as
from hdp.torch.tensors import Finish

_NOTHING = Carrier(moved_as(torch.uint8).dtype, 1)


@dataclass(frozen=True)
class Request:
    """One operation of the library, as in ``hdp_request``; tensors are flat, counts are of their elements."""

    kind: Kind
    source: torch.Tensor | None = None
    target: torch.Tensor | None = None
    count: int = 0
    op: ReduceOp = ReduceOp.SUM
    root: int = 0
    send_counts: Sequence[int] | None = None
    recv_counts: Sequence[int] | None = None

    @property
    def carrier(self) -> Carrier:
        """What an element travels as."""
        typed = self.source if self.source is not None else self.target
        if typed is None:
            return _NOTHING
        return reduced_as(typed.dtype) if self.kind in REDUCTIONS else moved_as(typed.dtype)


@dataclass
class Call:
    """What one call of torch's needs: requests, then `finish`; its future gives `outputs`."""

    requests: list[Request] = field(default_factory=list)
    outputs: list[torch.Tensor] = field(default_factory=list)
    finish: Finish = field(default_factory=list)

    def add(self, request: Request, outputs: Tensors, finish: Finish) -> None:
        """One more request, and where its results go."""
        self.requests.append(request)
        self.outputs += outputs
        self.finish += finish
