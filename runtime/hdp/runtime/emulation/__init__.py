"""Hosts as network namespaces with shaped links, on one machine: for rehearsal, tests and benchmarks. Linux.

::

    with Network(hosts=4, rate="1gbit") as network:
        ranks = [network.popen(host, ["python", "train.py"]) for host in range(4)]

``Network(hosts=4, rate="1gbit", rates={2: "100mbit"})`` has one slow host.

How it is made, and who owns what:

- Each host is a network, a mount and a UTS namespace: its own ``eth0``, ``/sys/class/net``, host name, and
  ``/etc/hosts``, from which alone names come. Its files, processes, ``/tmp`` and shared memory are this machine's.
- ``eth0`` is one end of a veth pair; the other end is a port of a bridge, in a namespace that holds nothing else.
  A token bucket (tbf) on ``eth0`` shapes what the host sends, one on the port what it receives. So networks of
  several creators can't meet, and nothing outside is reachable from a host.
- A *keeper*, a process of its own session, builds all this (in a user namespace, where the creator isn't root) and
  hands the namespaces to the creator as file descriptors. Nothing has a name or a place in the file system.
- When the creator closes the network or ends in any way, the keeper kills whatever still runs in the hosts, and ends;
  with the last descriptor the kernel frees the namespaces. A process of a host has the creator as parent, and, when
  the main thread started it, also the kernel's death signal, should the keeper be killed too.
"""

from hdp.runtime.emulation.errors import EmulationError
from hdp.runtime.emulation.network import Counters, Host, Network

__all__ = ["Counters", "EmulationError", "Host", "Network"]
