"""Horovod's rendezvous server: ``horovod_rendezvous.py PORT_FILE ADDRESS:RANKS...``, until it is ended."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from horovod.runner.common.util.hosts import (  # type: ignore[import-not-found]  # in an environment of its own
    get_host_assignments,
    parse_hosts,
)
from horovod.runner.http.http_server import RendezvousServer  # type: ignore[import-not-found]  # as above

if __name__ == "__main__":
    hosts = parse_hosts(",".join(sys.argv[2:]))
    server = RendezvousServer()
    port = server.start()
    server.init(get_host_assignments(hosts, sum(host.slots for host in hosts)))
    half = Path(sys.argv[1] + ".part")
    half.write_text(str(port))
    half.rename(sys.argv[1])
    signal.pause()
