"""Where a rank is in its job, and the variables in which each launcher's users expect to find that. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hdp.contract import env
from hdp.contract.files import Layout
from hdp.contract.launch import Kind, tf_config
from hdp.runtime.launch.wire import Message
from hdp.runtime.settings import Settings

#: Horovod waits this long for its ranks to find each other; it is their start that takes time.
_HOROVOD_SECONDS = "600"


@dataclass(frozen=True)
class HostInfo:
    """One host of the world."""

    name: str
    address: str
    local_size: int


@dataclass(frozen=True)
class World:
    """Every host that has ranks, with their number, in the order of resourceconfig."""

    hosts: tuple[HostInfo, ...]

    def node(self, host: str) -> int:
        """Index of `host`, which has ranks."""
        return [h.name for h in self.hosts].index(host)

    @property
    def size(self) -> int:
        """Ranks of the job."""
        return sum(h.local_size for h in self.hosts)

    def first_rank(self, node_rank: int) -> int:
        """Rank of the first process on the host with this index."""
        return sum(h.local_size for h in self.hosts[:node_rank])


def read_world(message: Message) -> World:
    """The world in the coordinator's message, which lists hosts without ranks too."""
    hosts = (HostInfo(str(h["name"]), str(h["address"]), int(h["local_size"])) for h in message["hosts"])
    return World(tuple(host for host in hosts if host.local_size > 0))


@dataclass(frozen=True)
class Position:
    """One rank among all."""

    rank: int
    local_rank: int
    size: int
    local_size: int


def positions(world: World, node: int) -> list[Position]:
    """The ranks of the host with the index `node`, where ranks are numbered host by host."""
    size, local_size, first = world.size, world.hosts[node].local_size, world.first_rank(node)
    return [Position(first + local, local, size, local_size) for local in range(local_size)]


def variables(kind: Kind, position: Position, world: World, node: int, settings: Settings) -> dict[str, str]:
    """What tells a rank its place, for the launcher `kind`. node: index of the rank's host."""
    values: dict[str, Any] = {
        "RANK": position.rank,
        "LOCAL_RANK": position.local_rank,
        "WORLD_SIZE": position.size,
        "LOCAL_WORLD_SIZE": position.local_size,
        "GROUP_RANK": node,
        "GROUP_WORLD_SIZE": len(world.hosts),
        "MASTER_ADDR": world.hosts[0].address,
        "MASTER_PORT": settings.master_port,
    }
    if kind == "torch_distributed":
        values |= _torchrun(position)
    if kind == "horovod":
        values |= _horovod(position, world, node, settings)
    if kind == "multi_worker_mirrored_strategy":
        workers = [f"{h.address}:{settings.tensorflow_port(i)}" for i, h in enumerate(world.hosts)]
        values["TF_CONFIG"] = tf_config(workers, node)
    return {env.LAUNCHER.name: kind, **{k: str(v) for k, v in values.items()}}


def _torchrun(position: Position) -> Mapping[str, Any]:
    """What torchrun adds. Rank 0 holds the store, as torchrun's static rendezvous has it with --master_addr."""
    return {
        "ROLE_NAME": "default",
        "ROLE_RANK": position.rank,
        "ROLE_WORLD_SIZE": position.size,
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
        "TORCHELASTIC_USE_AGENT_STORE": False,
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": 1,
    }


def _horovod(position: Position, world: World, node: int, settings: Settings) -> Mapping[str, Any]:
    """What horovodrun sets for its gloo controller. The cross ranks are those with the same local rank."""
    cross = [i for i, host in enumerate(world.hosts) if host.local_size > position.local_rank]
    return {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": world.hosts[0].address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": settings.horovod_port,
        "HOROVOD_GLOO_TIMEOUT_SECONDS": _HOROVOD_SECONDS,
        "HOROVOD_HOSTNAME": world.hosts[node].address,
        "HOROVOD_RANK": position.rank,
        "HOROVOD_SIZE": position.size,
        "HOROVOD_LOCAL_RANK": position.local_rank,
        "HOROVOD_LOCAL_SIZE": position.local_size,
        "HOROVOD_CROSS_RANK": cross.index(node),
        "HOROVOD_CROSS_SIZE": len(cross),
    }


def apart(position: Position, layout: Layout) -> dict[str, str]:
    """What makes a rank a world of its own, with folders of its own, beside others that do the same."""
    own = f"process-{position.rank}"
    return {
        **dict.fromkeys(("RANK", "GROUP_RANK"), "0"),
        **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"), "1"),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",  # any: nobody else has to know it
        "SM_MODEL_DIR": str(layout.model / own),
        "SM_OUTPUT_DATA_DIR": str(layout.output_data / own),
        "SM_CHECKPOINT_DIR": str(layout.checkpoints / own),
    }


def interface_variables(kind: Kind, interface: str) -> dict[str, str]:
    """What binds a library to the network interface between the hosts."""
    names: Sequence[str] = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
    return dict.fromkeys((*names, "HOROVOD_GLOO_IFACE") if kind == "horovod" else names, interface)
