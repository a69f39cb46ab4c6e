"""Which local tier a job has: what sums a host's tensors before they leave it. Facts of all ranks in, a choice out.

Every rank decides by itself from the same facts, so all decide alike.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist

from hdp.contract import env
from hdp.contract.errors import CollectiveMismatch, InvalidCollective

SETTINGS = ("auto", "nccl", "shm")


@dataclass(frozen=True)
class Facts:
    """What one rank says of itself."""

    setting: str
    """Its $HDP_LOCAL_TIER."""
    host: int
    """Number of its host in the job."""
    gpu: str
    """Names its GPU among all of the host."""
    why_not: str
    """Why there is no NCCL; empty: there is."""
    waits_on_host: bool = False
    """Whether $HDP_CUDA_WAIT makes threads wait, not streams."""

    def encoded(self) -> bytes:
        """For another rank."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def decoded(data: bytes) -> Facts:
        """Inverse of `encoded`."""
        return Facts(**json.loads(data))


@dataclass(frozen=True)
class Choice:
    """What was chosen, and why."""

    nccl: bool
    reason: str


def setting() -> str:
    """$HDP_LOCAL_TIER. Raises InvalidCollective."""
    said = os.environ.get(env.LOCAL_TIER.name) or env.LOCAL_TIER.default
    if said not in SETTINGS:
        raise InvalidCollective(f"${env.LOCAL_TIER.name} is {said!r}; expected auto, nccl or shm")
    return said


def facts(host: int, gpu: str) -> Facts:
    """This rank's. gpu: names its device among all of the host."""
    waits = (os.environ.get(env.CUDA_WAIT.name) or env.CUDA_WAIT.default) == "host"
    return Facts(setting(), host, gpu, _why_no_nccl(), waits)


def alone(mine: Facts) -> Choice | None:
    """The choice where one rank's facts are enough: it is told shm, or, with auto, has no NCCL. None: they aren't."""
    if mine.setting == "shm":
        return Choice(False, f"${env.LOCAL_TIER.name} is shm")
    if mine.setting == "auto" and mine.why_not:
        return Choice(False, f"there is no NCCL: {mine.why_not}")
    return None


def choose(ranks: Sequence[Facts]) -> Choice:
    """The tier for ranks with these facts, in the group's order.

    Raises CollectiveMismatch where ranks were told different things, and InvalidCollective where all were told nccl
    and it can't be.
    """
    for rank, other in enumerate(ranks):
        if other.setting != ranks[0].setting:
            raise CollectiveMismatch(
                f"ranks have different ${env.LOCAL_TIER.name}: rank 0 has {ranks[0].setting!r}, rank {rank} has "
                f"{other.setting!r}; set it alike for the whole job"
            )
    said = ranks[0].setting
    if said == "shm":
        return Choice(False, f"${env.LOCAL_TIER.name} is shm")
    why_not = _impossible(ranks)
    if said == "nccl":
        if why_not:
            raise InvalidCollective(f"${env.LOCAL_TIER.name} is nccl, but {why_not}; set it to auto or shm")
        return Choice(True, f"${env.LOCAL_TIER.name} is nccl")
    if not why_not and ranks[0].waits_on_host:
        why_not = f"${env.CUDA_WAIT.name} is host"
    return Choice(False, why_not) if why_not else Choice(True, "every rank of a host has a GPU of its own")


def _impossible(ranks: Sequence[Facts]) -> str:
    """Why NCCL can't be the tier; empty: it can."""
    places: dict[int, list[int]] = {}
    for rank, one in enumerate(ranks):
        places.setdefault(one.host, []).append(rank)
    sizes = [len(found) for found in places.values()]
    if len(set(sizes)) > 1:
        return f"hosts have different numbers of ranks: {', '.join(map(str, sizes))}"
    if sizes[0] == 1:
        return "every host has a single rank, so nothing is to be summed inside one"
    if [one.host for one in ranks] != [host for host in places for _ in range(sizes[0])]:
        return "ranks aren't numbered host by host"
    for found in places.values():
        for place, rank in enumerate(found):
            shared = next((other for other in found[:place] if ranks[other].gpu == ranks[rank].gpu), None)
            if shared is not None:
                return f"ranks {shared} and {rank} share a GPU ({ranks[rank].gpu})"
    for rank, one in enumerate(ranks):
        if one.why_not:
            return f"rank {rank} has no NCCL: {one.why_not}"
    return ""


def _why_no_nccl() -> str:
    return "" if dist.is_nccl_available() else f"torch {torch.__version__} was built without it"
