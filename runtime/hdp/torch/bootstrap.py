"""From what torch gives a backend (a store, a rank, a size) to a group of the collective library.

Under hdp's launcher the host's server is already there. Elsewhere (torchrun, mpirun, a test) the lowest rank of each
host starts it, and torch's store serves as the rendezvous; the secret then travels through that store, which is only
as private as the store is.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import PrefixStore

from hdp.collectives import Communicator, Group
from hdp.collectives.alone import spawn_server
from hdp.collectives.communicator import from_environment, join
from hdp.contract import env
from hdp.contract.errors import CollectiveError
from hdp.contract.files import new_run_folder
from hdp.contract.zipping import zip_strict


@dataclass
class Process:
    """The communicator of this process, shared by its process groups."""

    comm: Communicator | None = None
    rank_of: dict[int, int] = field(default_factory=dict)
    """torch's global rank -> rank in the communicator."""
    generation: int = 0
    """How many default groups were made; a store that is used again still has the keys of the last one."""
    made: Counter[tuple[int, ...]] = field(default_factory=Counter)
    """How many groups of the same ranks were made; tells them apart."""

    def group(self, store: Any, rank: int, size: int, ranks: Sequence[int], timeout: float) -> tuple[Group, bool]:
        """The group for a process group, and whether that process group owns the communicator.

        ranks: torch's global ranks; empty for the default group.
        """
        if ranks and self.comm is not None and not self.comm.closed and all(r in self.rank_of for r in ranks):
            members = tuple(self.rank_of[r] for r in ranks)
            self.made[members] += 1
            return self.comm.group(members, f"torch {self.made[members]}"), False
        self.generation += not ranks
        comm, members = _communicator(PrefixStore(f"hdp/{self.generation}", store), rank, size, timeout)
        if not ranks:
            self.comm, self.made = comm, Counter()
            self.rank_of = dict(enumerate(members))
        ordered = list(members) == list(range(comm.layout.size))
        return (comm.world if ordered else comm.group(members, "torch world")), True


def _communicator(store: Any, rank: int, size: int, timeout: float) -> tuple[Communicator, tuple[int, ...]]:
    """A communicator over a process group's ranks, and the rank in it of each of them."""
    launched = bool(os.environ.get(env.SERVER_SOCKET.name))
    if launched and size == int(os.environ.get("WORLD_SIZE", "0")) and rank == int(os.environ.get("RANK", "-1")):
        return from_environment(), tuple(range(size))
    return _bootstrap(store, rank, size, timeout)


def _bootstrap(store: Any, rank: int, size: int, timeout: float) -> tuple[Communicator, tuple[int, ...]]:
    store.set(f"node/{rank}", _node_id())
    nodes = [store.get(f"node/{r}").decode() for r in range(size)]
    order = list(dict.fromkeys(nodes))
    here = [r for r in range(size) if nodes[r] == nodes[rank]]
    by_host = [[r for r in range(size) if nodes[r] == node] for node in order]
    new_rank = {r: i for i, r in enumerate(r for host in by_host for r in host)}
    index = order.index(nodes[rank])
    if rank == 0:
        store.set("secret", secrets.token_hex(32))
    if rank == here[0]:
        _start_server(store, index, [len(host) for host in by_host], timeout)
    place = json.loads(store.get(f"server/{index}"))
    if "error" in place:
        raise CollectiveError(place["error"])
    try:
        comm = join(place["socket"], place["secret_file"], new_rank[rank], here.index(rank), timeout)
    finally:
        if rank == here[0]:  # everybody is in, or nobody will be
            shutil.rmtree(Path(place["socket"]).parent, ignore_errors=True)
    return comm, tuple(new_rank[r] for r in range(size))


def _node_id() -> str:
    """The same on all ranks of one host: torchrun's node rank, else the machine and its network namespace."""
    if "GROUP_RANK" in os.environ and "LOCAL_WORLD_SIZE" in os.environ:
        return f"node {os.environ['GROUP_RANK']}"
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/net').readlink()} {socket.gethostname()}"


def _start_server(store: Any, index: int, local_sizes: list[int], timeout: float) -> None:
    """Start this host's server; publish where it is, or why it isn't."""
    try:
        listener = _listener() if len(local_sizes) > 1 else None
        address, port = listener.getsockname()[:2] if listener else ("127.0.0.1", 0)
        store.set(f"host/{index}", json.dumps({"name": _host_name(index), "address": address, "port": port}))
        hosts = [json.loads(store.get(f"host/{i}")) for i in range(len(local_sizes))]
        folder = new_run_folder()
        folder.mkdir(mode=0o700)
        secret_file = folder / "secret"
        secret_file.touch(mode=0o600)
        secret_file.write_bytes(store.get("secret"))
        config = {
            "host_index": index,
            "hosts": [{**h, "local_size": n} for h, n in zip_strict(hosts, local_sizes)],
            "socket": str(folder / "s"),
            "secret_file": str(secret_file),
            "start_timeout_seconds": timeout,
            "once": True,
            "listen_fd": listener.fileno() if listener else None,
        }
        try:
            spawn_server(config, listener)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        place = {"socket": config["socket"], "secret_file": str(secret_file)}
    except (OSError, CollectiveError) as exc:
        place = {"error": f"this host's server could not be started: {exc}"}
    store.set(f"server/{index}", json.dumps(place))


def _listener() -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind((address_towards(os.environ.get("MASTER_ADDR", "127.0.0.1")), 0))
    listener.listen(1024)
    return listener


def address_towards(host: str) -> str:
    """This machine's address on the way to `host`."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # sends nothing
        return str(probe.getsockname()[0])


def _host_name(index: int) -> str:
    return f"{socket.gethostname()}/{index}"
