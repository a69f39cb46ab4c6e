"""Keywords of Horovod's and SMDDP's that can't be honoured are refused by name, never ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hdp.contract.errors import InvalidCollective

_WHY = {
    "comm": "the launcher says who takes part",
    "process_sets": "every operation is over all ranks; hdp.collectives has groups",
    "process_set": "every operation is over all ranks; hdp.collectives has groups",
    "device": "operations run where their tensors are",
    "device_dense": "operations run where their tensors are",
    "device_sparse": "operations run where their tensors are",
    "num_groups": "say bucket_cap_mb=, how many megabytes travel together",
    "groups": "say bucket_cap_mb=, how many megabytes travel together",
    "scale_local_gradients": "there are no local layers",
    "use_locking": "variables are resources, which need none",
    "name": "operations of an optimizer are named by its variables",
    "average_aggregated_gradients": "gradients that were aggregated over backward passes are averaged",
}


def refuse(function: str, keywords: Mapping[str, tuple[Any, Any]]) -> None:
    """Raise InvalidCollective if a keyword has another value than the one that changes nothing.

    keywords: name -> (value, the value that changes nothing).
    """
    for name, (value, neutral) in keywords.items():
        if value is not neutral and value != neutral and value not in (None, ""):
            raise InvalidCollective(f"{function}({name}={value!r}) isn't supported: {_WHY[name]}")
