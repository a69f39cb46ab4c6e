"""`Preflight`: what was found before a job starts, and what the client itself can say of hosts and ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hdp.estimator import instances
from hdp.estimator.prepare import Prepared

_RANKED = ("hdp", "mpi", "torch_distributed", "horovod", "smdistributed")


@dataclass(frozen=True)
class Preflight:
    """What `Estimator.preflight` has found, a line each."""

    faults: tuple[str, ...] = ()
    """Why `fit` would refuse."""
    warnings: tuple[str, ...] = ()
    """What is worth a thought before money is spent."""

    @property
    def ok(self) -> bool:
        """Whether `fit` would start the job."""
        return not self.faults

    def __str__(self) -> str:
        lines = [*(f"fault: {line}" for line in self.faults), *(f"warning: {line}" for line in self.warnings)]
        return "\n".join(lines or ["nothing to say against it"])

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text("Preflight(...)" if cycle else str(self))


def device_lines(prepared: Prepared) -> Iterator[str]:
    """What the hosts' types mean for the ranks: devices without one, several to one, and the network."""
    if not prepared.target.cloud or prepared.launch.kind not in _RANKED:
        return
    launch = prepared.launch
    for group in prepared.settings.groups:
        if launch.groups and group.instance_group_name not in launch.groups:
            continue
        kind, gpus = group.instance_type, instances.gpus(group.instance_type)
        ranks = launch.processes_by_group.get(group.instance_group_name) or launch.processes_per_host
        if gpus and ranks and ranks < gpus:
            yield f"{kind} has {gpus} GPUs, and processes_per_host is {ranks}: {gpus - ranks} are paid for and idle"
        elif gpus and ranks and ranks > gpus:
            yield f"{kind} has {gpus} GPUs, and processes_per_host is {ranks}: ranks share GPUs, which NCCL refuses"
        if gpus and group.instance_count > 1 and not instances.has_efa(kind):
            yield f"{kind} has no EFA: between hosts everything goes over TCP; larger sizes and p4, p5 have it"
