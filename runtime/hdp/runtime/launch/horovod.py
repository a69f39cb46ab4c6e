"""Horovod without MPI: its rendezvous on the first host, as horovodrun has it, for ranks that our agents start.

The server is Horovod's own, in the job's interpreter, on the first host's address alone. It speaks plain HTTP without
any proof of who asks, and so do Horovod's ranks among each other.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict

from hdp.contract.errors import LaunchError
from hdp.runtime.launch import linux
from hdp.runtime.launch.pipes import Pipe
from hdp.runtime.launch.position import World
from hdp.runtime.launch.reactor import Reactor

log = logging.getLogger(__name__)

_MODULE = "hdp.runtime.launch.horovod"
_START_SECONDS = 120.0
_TAIL_LINES = 10


class Rendezvous:
    """Horovod's rendezvous server as a child process of the agent."""

    def __init__(self, reactor: Reactor, children: linux.Children, on_lost: Callable[[LaunchError], None]) -> None:
        """on_lost: called, in the loop, when it ends by itself."""
        self._reactor = reactor
        self._children = children
        self._on_lost = on_lost
        self._pipe: Pipe | None = None
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._listening = False
        self._ended = False

    def start(self, world: World, port: int, environ: Mapping[str, str], interrupted: Callable[[], bool]) -> None:
        """Start it, and wait until it listens or `interrupted()`. Raises LaunchError."""
        plan = json.dumps({"hosts": [asdict(host) for host in world.hosts], "port": port})
        process = self._children.spawn_tethered(
            [sys.executable, "-m", _MODULE, plan], environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        assert process.stdout is not None
        self._pipe = Pipe(self._reactor, os.dup(process.stdout.fileno()), self._line)
        process.stdout.close()
        pidfd = os.pidfd_open(process.pid)
        self._reactor.watch(pidfd, lambda: self._on_exit(process, pidfd))
        done = self._reactor.run_until(lambda: self._listening or self._ended or interrupted(), _START_SECONDS)
        if self._ended or not done:
            raise self._lost("did not start")

    def close(self) -> None:
        """Give out what is left of its output; the process is the agent's to kill."""
        self._ended = True
        if self._pipe is not None:
            self._pipe.close()

    def _line(self, text: str) -> None:
        if text == "listening":
            self._listening = True
            return
        self._tail.append(text)
        log.log(logging.DEBUG if "HTTP/1" in text else logging.INFO, "rendezvous: %s", text)

    def _on_exit(self, process: subprocess.Popen[bytes], pidfd: int) -> None:
        self._reactor.forget(pidfd)
        os.close(pidfd)
        self._children.wait(process)
        if self._pipe is not None and not self._ended:
            self._pipe.drain()
        early, self._ended = not self._listening, True
        if not early:
            self._on_lost(self._lost("ended"))

    def _lost(self, how: str) -> LaunchError:
        last = "\n".join(self._tail)
        if "No module named 'horovod" in last:
            return LaunchError(
                f"{sys.executable} has no Horovod, which distribution={{'horovod': ...}} needs; name a Python that has "
                "it (on the local engine: engine_options={'python': ...}), or use {'hdp': {'enabled': True}}"
            )
        return LaunchError(f"Horovod's rendezvous {how}" + (f":\n{last}" if last else ""))


def main(plan: str) -> None:
    """Serve until killed. plan: JSON with ``hosts`` and ``port``."""
    from horovod.runner.common.util.hosts import (  # type: ignore[import-not-found]  # in an environment of its own
        get_host_assignments,
        parse_hosts,
    )
    from horovod.runner.http.http_server import (  # type: ignore[import-not-found]  # as above
        RendezvousHandler,
        RendezvousHTTPServer,
    )

    wanted = json.loads(plan)
    hosts = parse_hosts(",".join(f"{h['address']}:{h['local_size']}" for h in wanted["hosts"]))
    server = RendezvousHTTPServer((wanted["hosts"][0]["address"], wanted["port"]), RendezvousHandler, 0)
    server.init(get_host_assignments(hosts, sum(host.slots for host in hosts)))
    print("listening", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1])
