"""torch functions that turn down every backend but gloo or an accelerator's, by name: made to ask ours.

They are replaced when the first process group of ours is made, and do what they always did for other groups.
"""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, cast

import torch.distributed as dist
from torch.distributed import distributed_c10d

from hdp.contract.errors import InvalidCollective


@functools.cache
def install(ours: type[dist.ProcessGroup]) -> None:
    """Make them ask groups of the class `ours`."""
    for name, parameter, served in (("monitored_barrier", "group", _barrier), ("split_group", "parent_pg", _split)):
        original = getattr(distributed_c10d, name, None)
        if original is not None:
            asking = _asking(original, parameter, ours, served)
            setattr(dist, name, asking)
            setattr(distributed_c10d, name, asking)


def _asking(
    original: Callable[..., Any], parameter: str, ours: type[dist.ProcessGroup], served: Callable[..., Any]
) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def function(*arguments: Any, **named: Any) -> Any:
        bound = signature.bind(*arguments, **named)
        bound.apply_defaults()
        group = bound.arguments[parameter]
        group = distributed_c10d._get_default_group() if group is None else group
        if not isinstance(group, ours):
            return original(*arguments, **named)
        return served(group, **{k: v for k, v in bound.arguments.items() if k != parameter})

    return function


def _barrier(group: Any, timeout: Any = None, wait_all_ranks: bool = False, **_: Any) -> Any:
    if timeout is None:
        return group.monitored_barrier(wait_all_ranks=wait_all_ranks)
    given = timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)
    return group.monitored_barrier(given, wait_all_ranks=wait_all_ranks)


def _split(
    parent: Any,
    split_ranks: Sequence[Sequence[int]] | None = None,
    timeout: timedelta | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
    **_: Any,
) -> Any:
    """One group for each list of ranks of the parent; its members alone must call. None on a rank in none of them."""
    lists = [sorted(ranks) for ranks in split_ranks or ()]
    every = [r for ranks in lists for r in ranks]
    if not all(lists) or not every or len(set(every)) < len(every) or not set(every) <= set(range(parent.size())):
        raise InvalidCollective(
            f"split_ranks are {split_ranks}; expected lists of the parent's ranks, 0 to {parent.size() - 1}, none "
            "empty, no rank twice"
        )
    _splits[parent.group_name] += 1
    own = next((ranks for ranks in lists if parent.rank() in ranks), None)
    if own is None:
        return None
    members = [distributed_c10d.get_global_rank(parent, r) for r in own]
    name = f"{parent.group_name}:split:{_splits[parent.group_name]}:{'_'.join(map(str, members))}"
    with _named(name):
        return distributed_c10d.new_group(
            members,
            timeout=timeout,
            pg_options=pg_options,
            use_local_synchronization=True,
            group_desc=group_desc or f"{parent.group_desc}:split:{_splits[parent.group_name]}",
        )


#: How often each group was split: the same on all its ranks.
_splits: Counter[str] = Counter()


@contextmanager
def _named(name: str) -> Iterator[None]:
    """The group that is made meanwhile gets this name.

    torch's own name holds how many groups a rank has made, which isn't the same on all ranks of a part: they would wait
    for one another in different places.
    """
    original, given = distributed_c10d._process_group_name, cast(Any, name)  # a type of its own since torch 2.13
    distributed_c10d._process_group_name = lambda *_, **__: given
    try:
        yield
    finally:
        distributed_c10d._process_group_name = original
