"""torch's two ways to say how: an options object, or its fields one by one.

``pg.reduce(tensors, ReduceOptions)`` is what `torch.distributed` calls; ``pg.reduce(tensor, root, op, timeout)`` is
the short form that `ProcessGroup` has beside it.
"""

# torch's stubs leave out what its own callers use.
# mypy: disable-error-code="attr-defined"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch._C import _distributed_c10d as c10d

#: The arguments that follow the tensors in the short form, in their order.
_SHORT: dict[type, tuple[str, ...]] = {
    c10d.AllreduceOptions: ("op", "timeout"),
    c10d.AllreduceCoalescedOptions: ("op", "timeout"),
    c10d.AllgatherOptions: ("timeout",),
    c10d.AllToAllOptions: ("timeout",),
    c10d.BarrierOptions: ("timeout",),
    c10d.BroadcastOptions: ("root", "timeout"),
    c10d.GatherOptions: ("root", "timeout"),
    c10d.ReduceOptions: ("root", "op", "timeout"),
    c10d.ReduceScatterOptions: ("op", "timeout"),
    c10d.ScatterOptions: ("root", "timeout"),
}
_FIELDS = {"root": "rootRank", "op": "reduceOp", "timeout": "timeout"}


def options(kind: type, arguments: Sequence[Any], named: dict[str, Any]) -> Any:
    """The options that follow a call's tensors. Raises TypeError for what neither form has."""
    whole = [v for v in (*arguments, named.get("opts")) if isinstance(v, kind)]
    if whole:
        return whole[0]
    made, names = kind(), _SHORT[kind]
    said = {**dict(zip(names, arguments)), **named}
    said.pop("opts", None)
    if len(arguments) > len(names) or not said.keys() <= set(names):
        raise TypeError(f"arguments {arguments} and {named}; expected opts={kind.__name__}, or {', '.join(names)}")
    for name, value in said.items():
        if value is not None:
            setattr(made, _FIELDS[name], value)
    return made
