"""Start the ranks of a script on (emulated) hosts, the way each library wants it.

    from hdp.runtime.emulation import Network
    import launch

    with Network(hosts=4, rate="250mbit") as network, launch.hdp(network, 1, [sys.executable, "train.py"]) as job:
        job.wait(timeout=120)       # raises RanksFailed, with the end of the log of who failed first
        print(job.log(0))           # what rank 0 wrote

Every starter takes the network (or `onehost.OneHost()`), the number of ranks a host, the argument vector of a rank, and
``env``, variables beside this process's own. Ranks are numbered host by host. What a rank finds:

- `torch`: RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT, GLOO_SOCKET_IFNAME:
  ``init_process_group("gloo")`` works, on the emulated link.
- `hdp`: the same, and a server process on each host (``job.servers``): ``hdp.collectives.init()`` and
  ``init_process_group("hdp")`` work. Keywords go into the servers' configuration (``slots``, ``slot_bytes``).
- `horovod`: the same, and Horovod's rendezvous on host 0: ``hvd.init()`` comes up with gloo. Take the interpreter
  `peers.HOROVOD_PYTHON`.
- `openmpi`, `mpich`: under mpirun of the environment `home` (`peers.environment`), started on host 0, which starts the
  other hosts' ranks through `remote`; RANK and so on aren't set, MPI knows. Horovod over MPI: `openmpi` with Horovod's
  interpreter.

OMP_NUM_THREADS is 1. Leaving the ``with`` block ends every process that was started.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import remote
from jobs import Host, Hosts, Job, RanksFailed, free_port
from processes import Started

__all__ = ["Host", "Hosts", "Job", "RanksFailed", "hdp", "horovod", "mpich", "openmpi", "torch"]

_HERE = Path(__file__).parent


def torch(network: Hosts, per_host: int, argv: Sequence[str], env: Mapping[str, str] | None = None) -> Job:
    """Ranks with what torch.distributed reads from the environment."""
    return _started(Job(network, per_host, env), lambda job: job.start_ranks(argv))


def hdp(network: Hosts, per_host: int, argv: Sequence[str], env: Mapping[str, str] | None = None, **config: Any) -> Job:
    """Ranks with a server process of the collective library on each host."""

    def start(job: Job) -> None:
        secret = job.folder / "secret"
        secret.touch(mode=0o600)
        secret.write_bytes(os.urandom(32))
        port = free_port()
        hosts = [{"name": h.name, "address": h.address, "port": port, "local_size": per_host} for h in network.hosts]
        sockets = [str(job.folder / f"s{i}") for i in range(len(hosts))]
        for index, path in enumerate(sockets):
            values = {"host_index": index, "hosts": hosts, "socket": path, "secret_file": str(secret), "once": False}
            job.servers.append(_server(job, index, {"start_timeout_seconds": 60, **values, **config}))
        for path in sockets:
            job.await_(Path(path).exists)
        job.start_ranks(
            argv,
            {i: {"HDP_SERVER_SOCKET": path, "HDP_SECRET_FILE": str(secret)} for i, path in enumerate(sockets)},
        )

    return _started(Job(network, per_host, env), start)


def _server(job: Job, index: int, config: Mapping[str, Any]) -> Started:
    argv = [sys.executable, "-m", "hdp.collectives.server"]
    server = job.start(index, f"server-{index}", argv, {}, stdin=subprocess.PIPE)
    assert server.process.stdin is not None
    with server.process.stdin as pipe:
        pipe.write(json.dumps(config).encode())
    return server


def horovod(network: Hosts, per_host: int, argv: Sequence[str], env: Mapping[str, str] | None = None) -> Job:
    """Ranks of Horovod with its gloo controller; ``argv[0]`` is the interpreter that has Horovod."""

    def start(job: Job) -> None:
        port = job.folder / "port"
        plan = [f"{host.address}:{per_host}" for host in network.hosts]
        command = [argv[0], str(_HERE / "horovod_rendezvous.py"), str(port), *plan]
        job.others.append(job.start(0, "rendezvous", command, {}))
        job.await_(port.exists)
        for rank in range(job.size):
            at, local = divmod(rank, per_host)
            variables = job.torch_variables(at, local) | {
                "HOROVOD_CONTROLLER": "gloo",
                "HOROVOD_CPU_OPERATIONS": "gloo",
                "HOROVOD_GLOO_RENDEZVOUS_ADDR": network.hosts[0].address,
                "HOROVOD_GLOO_RENDEZVOUS_PORT": port.read_text(),
                "HOROVOD_GLOO_IFACE": network.hosts[at].interface,
                "HOROVOD_GLOO_TIMEOUT_SECONDS": "600",  # it waits while others are measured
                "HOROVOD_HOSTNAME": network.hosts[at].address,
                "HOROVOD_RANK": str(rank),
                "HOROVOD_SIZE": str(job.size),
                "HOROVOD_LOCAL_RANK": str(local),
                "HOROVOD_LOCAL_SIZE": str(per_host),
                "HOROVOD_CROSS_RANK": str(at),
                "HOROVOD_CROSS_SIZE": str(len(network.hosts)),
            }
            job.ranks.append(job.start(at, f"rank-{rank}", argv, variables))

    return _started(Job(network, per_host, env), start)


def openmpi(
    network: Hosts, per_host: int, argv: Sequence[str], env: Mapping[str, str] | None = None, *, home: Path
) -> Job:
    """Ranks under Open MPI 5's mpirun; `home`: the environment that has it.

    han, its hierarchical component, is left out: without it the library is faster (2.5 times at 4 x 2, 64 KiB to
    64 MiB), and sends the least possible bytes. Ranks that wait yield the processor, as there are more than processors.
    """
    job = Job(network, per_host, {"LD_LIBRARY_PATH": str(home / "lib"), **(env or {})})
    places = ",".join(f"{host.address}:{per_host}" for host in network.hosts)
    command = [str(home / "bin" / "mpirun"), "--allow-run-as-root", "--bind-to", "none", "-n", str(job.size)]
    command += ["--host", places, "--map-by", f"ppr:{per_host}:node"]
    command += ["--mca", "coll", "^han", "--mca", "pml", "ob1", "--mca", "mpi_yield_when_idle", "1"]
    if len(network.hosts) > 1:
        interface = network.hosts[0].interface
        command += ["--mca", "btl_tcp_if_include", interface, "--prtemca", "prte_if_include", interface]
        # Daemons that stay in our process tree, and are started by our own agent.
        command += ["--prtemca", "prte_leave_session_attached", "1", "--prtemca", "plm_ssh_agent", "AGENT"]
    return _started(job, functools.partial(_mpirun, [*command, *argv]))


_DEVICE = "MPIR_CVAR_ALLREDUCE_DEVICE_COLLECTIVE"
#: Its allreduce of the device's own spins on shared memory without giving the processor away. With more ranks than
#: processors (2 x 2 on two) that took 57 ms for 64 KiB and 300 for 16 MiB; the general one takes 0.4 and 176.
_MPICH_SETTINGS = {_DEVICE: os.environ.get(_DEVICE, "0")}


def mpich(
    network: Hosts, per_host: int, argv: Sequence[str], env: Mapping[str, str] | None = None, *, home: Path
) -> Job:
    """Ranks under MPICH's mpiexec; `home`: the environment that has it.

    Its UCX takes emulated hosts for one machine, and would go through shared memory: it is told which network to use.
    """
    several = len(network.hosts) > 1
    only_network = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": network.hosts[0].interface} if several else {}
    defaults = {"LD_LIBRARY_PATH": str(home / "lib"), **only_network, **_MPICH_SETTINGS}
    job = Job(network, per_host, {**defaults, **(env or {})})
    command = [str(home / "bin" / "mpiexec.hydra"), "-n", str(job.size), "-ppn", str(per_host)]
    if several:
        command += ["-hosts", ",".join(f"{host.address}:{per_host}" for host in network.hosts)]
        command += ["-localhost", network.hosts[0].address, "-iface", network.hosts[0].interface]
        command += ["-launcher", "ssh", "-launcher-exec", "AGENT"]
    return _started(job, functools.partial(_mpirun, [*command, *argv]))


def _mpirun(command: Sequence[str], job: Job) -> None:
    addresses = [host.address for host in job.network.hosts]

    def start(address: str, line: str, streams: Mapping[str, int]) -> subprocess.Popen[Any]:
        argv = ["/bin/sh", "-c", line]
        return job.network.popen(addresses.index(address), argv, env=job.env, start_new_session=True, **streams)

    job.starter = remote.Starter(job.folder, start)
    agent = str(job.starter.agent)
    # Its session folders are to go with the job, and short, since they hold Unix sockets.
    temporary = {"TMPDIR": str(job.folder)}
    job.env |= temporary
    job.ranks.append(job.start(0, "mpirun", [agent if word == "AGENT" else word for word in command], {}))


def _started(job: Job, start: Callable[[Job], None]) -> Job:
    try:
        start(job)
    except BaseException:
        job.stop()
        raise
    return job
