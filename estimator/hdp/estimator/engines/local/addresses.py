"""A block of loopback addresses for each job, so that jobs with the same fixed ports never meet.

All of 127.0.0.0/8 is this machine on Linux. A job gets 127.X.Y.0/24 at random, host i has the address 127.X.Y.i.
MASTER_PORT is random too: torch's TCPStore listens on it at every address, some seconds after the job has started, so
two jobs with the same one would meet. So does a worker of TensorFlow's cluster: each host has a port of its own.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from hdp.contract import env
from hdp.contract.errors import EngineError

MAX_HOSTS = 250
_ATTEMPTS_WITH_FIXED_PORTS = 8
_ATTEMPTS = 32


@dataclass(frozen=True)
class Ports:
    """The TCP ports of a job's hosts."""

    control: int = int(env.CONTROL_PORT.default)
    server: int = int(env.SERVER_PORT.default)
    master: int = int(env.MASTER_PORT.default)
    horovod: int = int(env.HOROVOD_PORT.default)
    tensorflow: int = int(env.TENSORFLOW_PORTS.default)
    """The first host's; the next one has the next."""


DEFAULT_PORTS = Ports()


@dataclass(frozen=True)
class Block:
    """Addresses of a job's hosts, in the hosts' order, and their ports."""

    addresses: tuple[str, ...]
    ports: Ports


def choose(num_hosts: int, taken: Collection[str], fixed: Ports = DEFAULT_PORTS) -> Block:
    """A block in which no address is in `taken` and every port is free now.

    fixed: its control and server ports are taken where they are free. Somebody who listens on 0.0.0.0 occupies a port
    in every block; others are tried then.
    Raises EngineError where nothing is free.
    """
    for block in _candidates(num_hosts, fixed):
        if not set(block.addresses) & set(taken) and is_free(block):
            return block
    raise EngineError(
        f"no free block of {num_hosts} loopback addresses was found in {_ATTEMPTS} attempts; "
        "`ss -ltn` shows who listens on this machine's ports"
    )


def is_free(block: Block) -> bool:
    """Whether every port of every host can be bound now."""
    wanted = [(address, port) for address in block.addresses for port in _ports(block.ports)]
    anywhere = [("0.0.0.0", port) for port in tensorflow_ports(block)]
    return all(_can_bind(address, port) for address, port in [*wanted, *anywhere])


def tensorflow_ports(block: Block) -> list[int]:
    """Of each host's worker in TensorFlow's cluster."""
    return [block.ports.tensorflow + i for i in range(len(block.addresses))]


def _candidates(num_hosts: int, fixed: Ports) -> Iterator[Block]:
    rng = random.SystemRandom()
    for attempt in range(_ATTEMPTS):
        prefix = f"127.{rng.randint(1, 254)}.{rng.randint(0, 255)}"
        # Below Linux' ephemeral ports, so that no outgoing connection has them.
        control, server, master, horovod = rng.sample(range(20000, 32000), 4)
        free = Ports(control, server, master, horovod, rng.randrange(10000, 20000 - MAX_HOSTS))
        usual = replace(fixed, master=free.master, tensorflow=free.tensorflow)
        ports = usual if attempt < _ATTEMPTS_WITH_FIXED_PORTS else free
        yield Block(tuple(f"{prefix}.{i}" for i in range(1, num_hosts + 1)), ports)


def _ports(ports: Ports) -> Sequence[int]:
    return ports.control, ports.server, ports.master, ports.horovod


def _can_bind(address: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((address, port))
        except OSError:
            return False
    return True
