"""Emulated hosts for tests of the collective library: a real server process a host, a real process a rank.

Ranks stay alive between calls, so that a test costs milliseconds: `Cluster.run(function, *args)` calls
``function(comm, *args)`` on every rank at once and returns the results by rank.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PORT = 7592
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["hdp.collectives.operations"])
_WORKERS, _EACH = 8, 29 * 250
#: Numbers of loopback blocks, none twice in this process, nor in another worker of the test run. Not by the module's
#: generator: hypothesis seeds that, and two runs at once would take the same addresses.
_blocks = itertools.count(random.SystemRandom().randrange(_EACH))


def _block() -> str:
    """The first three numbers of addresses that nobody else has."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS
    high, low = divmod(next(_blocks) % _EACH, 250)
    return f"127.{16 + worker * 29 + high}.{1 + low}"


class Cluster:
    """``sizes[i]`` ranks on emulated host i, named ``algo-(i+1)``.

    start_timeout: seconds for everybody to join; None: don't wait, the first `collect` gives each rank's "joined" or
    exception. route: ``route(index, hosts)`` gives the hosts as server `index` is to see them, so that a proxy can
    stand between servers. config: more keys of the servers' configuration, such as ``slots`` and ``slot_bytes``.
    """

    def __init__(self, sizes, start_timeout=20.0, route=None, **config):
        self.sizes = sizes
        self.size = sum(sizes)
        self.route, self.config = route, config
        self.folder = tempfile.TemporaryDirectory(prefix="hdp-test-")
        self.secret = Path(self.folder.name) / "secret"
        self.secret.touch(mode=0o600)
        self.secret.write_bytes(os.urandom(32))
        self.servers, self.pipes, self.ranks = [], [], []
        try:
            self._start(start_timeout)
        except BaseException:
            self.close()
            raise

    def _start(self, start_timeout):
        block = _block()
        hosts = [
            {"name": f"algo-{i + 1}", "address": f"{block}.{i + 1}", "port": PORT, "local_size": n}
            for i, n in enumerate(self.sizes)
        ]
        for index in range(len(self.sizes)):
            self.servers.append(self._launch(index, hosts, start_timeout))
        for host, n in enumerate(self.sizes):
            for local in range(n):
                self._start_rank(host, local)
        for index, server in enumerate(self.servers):
            assert server.stdout.readline() == b"listening\n", self.log(index)
        if start_timeout:
            for result in self.collect(60).values():
                if isinstance(result, Exception):
                    raise result

    def _launch(self, index, hosts, start_timeout):
        config = {
            "host_index": index,
            "hosts": self.route(index, hosts) if self.route else hosts,
            "port": PORT,
            "socket": self.socket(index),
            "secret_file": str(self.secret),
            "start_timeout_seconds": start_timeout or 20,
            **self.config,
        }
        with (Path(self.folder.name) / f"server-{index}.log").open("w") as log:
            server = subprocess.Popen(
                [sys.executable, "-m", "hdp.collectives.server"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        server.stdin.write(json.dumps(config).encode())
        server.stdin.close()
        return server

    def _start_rank(self, host, local):
        ours, theirs = _context.Pipe()
        place = (self.socket(host), str(self.secret), len(self.ranks), local)
        process = _context.Process(target=_rank, args=(theirs, *place), daemon=True)
        process.start()
        theirs.close()
        self.pipes.append(ours)
        self.ranks.append(process)

    def socket(self, index):
        return str(Path(self.folder.name) / f"s{index}")

    def log(self, index):
        return (Path(self.folder.name) / f"server-{index}.log").read_text()

    def call(self, rank, function, *args):
        """Start a call on one rank."""
        self.pipes[rank].send((function, args))

    def collect(self, timeout=30, ranks=None):
        """Results of the calls in flight, by rank; an exception is returned, not raised."""
        deadline = time.monotonic() + timeout
        results = {}
        for rank in range(self.size) if ranks is None else ranks:
            if not self.pipes[rank].poll(max(0, deadline - time.monotonic())):
                raise TimeoutError(f"rank {rank} gave no result within {timeout} s")
            results[rank] = self.pipes[rank].recv()
        return results

    def try_run(self, function, *args, timeout=30):
        """Results and exceptions of `function` on all ranks, as a list."""
        for rank in range(self.size):
            self.call(rank, function, *args)
        results = self.collect(timeout)
        return [results[rank] for rank in range(self.size)]

    def run(self, function, *args, timeout=30):
        """Results of `function` on all ranks; the first exception is raised."""
        results = self.try_run(function, *args, timeout=timeout)
        for result in results:
            if isinstance(result, Exception):
                raise result
        return results

    @property
    def files(self):
        """Names in the cluster's folder."""
        return {path.name for path in Path(self.folder.name).iterdir()}

    def stop(self):
        """End everything; `servers` and `ranks` keep their exit codes. What does not end within 10 s is killed."""
        for pipe in self.pipes:
            pipe.close()
        for process in self.ranks:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()
        for server in self.servers:
            server.terminate()
        for server in self.servers:
            _end(server)

    def close(self):
        """`stop`, and remove the folder."""
        self.stop()
        self.folder.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _end(server):
    try:
        server.wait(10)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
    server.stdout.close()


def _rank(pipe, socket_path, secret, rank, local_rank):
    from hdp.collectives.communicator import join

    try:
        comm = join(socket_path, secret, rank, local_rank, 30)
        pipe.send("joined")
    except Exception as exc:
        pipe.send(exc)
        return
    while True:
        try:
            function, args = pipe.recv()
        except EOFError:
            break
        try:
            pipe.send(function(comm, *args))
        except Exception as exc:
            pipe.send(exc)
    comm.close()
