"""A program on every rank of an emulated network, with the collective library's servers: a job without its client.

``python -m hdp.runtime.rehearsal`` measures the topology of such a network for the command `hdp topology --hosts`: it
reads ``{"hosts", "ranks", "rate"}`` as JSON on stdin (rate: as `Network` takes it, or null) and writes the topology, or
``{"error"}``.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from hdp.contract import env
from hdp.contract.errors import HdpError, LaunchError
from hdp.runtime.emulation import Network

_END_SECONDS = 5.0
_TAIL_CHARS = 2000


def rehearse(
    network: Network, ranks: int, argv: Sequence[str], *, environ: Mapping[str, str] | None = None, timeout: float = 60
) -> list[str]:
    """Run ``argv`` as every rank, `ranks` of them a host; returns what each wrote to its standard output, by rank.

    environ: variables beside this process's own, and beside those by which `hdp.collectives.init` joins. Whatever was
    started has ended when this returns. Raises LaunchError, with the end of the log of who failed, or of all who still
    ran after `timeout` seconds.
    """
    with tempfile.TemporaryDirectory(prefix="hdp-r-") as folder:
        cast = _Cast(network, ranks, Path(folder), {**os.environ, **(environ or {})})
        try:
            cast.start_servers()
            cast.start_ranks(argv)
            cast.wait(timeout)
            return [cast.output(rank) for rank in range(len(cast.ranks))]
        finally:
            cast.end()


@dataclass
class _Cast:
    """The processes of one run."""

    network: Network
    local_size: int
    folder: Path
    environ: Mapping[str, str]
    servers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    ranks: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def _secret(self) -> Path:
        return self.folder / "secret"

    def start_servers(self) -> None:
        self._secret.touch(mode=0o600)
        self._secret.write_bytes(secrets.token_bytes(32))
        hosts = [
            {"name": host.name, "address": host.address, "local_size": self.local_size} for host in self.network.hosts
        ]
        for index in range(len(hosts)):
            config = {
                "host_index": index,
                "hosts": hosts,
                "port": int(env.SERVER_PORT.default),
                "socket": self._socket(index),
                "secret_file": str(self._secret),
            }
            with self._log(f"server-{index}") as log:
                argv = [sys.executable, "-m", "hdp.collectives.server"]
                pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
                self.servers.append(self.network.popen(index, argv, env=self.environ, **pipes))
            stdin = self.servers[-1].stdin
            assert stdin is not None
            with contextlib.suppress(BrokenPipeError), stdin:
                stdin.write(json.dumps(config).encode())
        for index, server in enumerate(self.servers):
            assert server.stdout is not None
            if server.stdout.readline() != b"listening\n":
                raise LaunchError(f"the server of host {index} ended:\n{self._tail(f'server-{index}')}")

    def start_ranks(self, argv: Sequence[str]) -> None:
        for index in range(len(self.network.hosts)):
            for local in range(self.local_size):
                own = {
                    "RANK": str(len(self.ranks)),
                    "LOCAL_RANK": str(local),
                    "WORLD_SIZE": str(self.local_size * len(self.network.hosts)),
                    "LOCAL_WORLD_SIZE": str(self.local_size),
                    env.SERVER_SOCKET.name: self._socket(index),
                    env.SECRET_FILE.name: str(self._secret),
                }
                name = f"rank-{len(self.ranks)}"
                with self._log(name) as log, self._output(len(self.ranks)).open("wb") as output:
                    environ = {**self.environ, **own}
                    self.ranks.append(self.network.popen(index, argv, env=environ, stdout=output, stderr=log))

    def wait(self, timeout: float) -> None:
        """Until all ranks have ended well. Raises LaunchError as soon as one ends otherwise."""
        deadline = time.monotonic() + timeout
        running = dict(enumerate(self.ranks))
        while running:
            for rank, process in list(running.items()):
                code = process.poll()
                if code:
                    raise LaunchError(f"rank {rank} ended with exit code {code}:\n{self._tail(f'rank-{rank}')}")
                if code == 0:
                    del running[rank]
            if running and time.monotonic() > deadline:
                tails = "\n".join(f"rank {rank}: {self._tail(f'rank-{rank}')}" for rank in running)
                raise LaunchError(f"ranks {sorted(running)} did not end within {timeout:g} s\n{tails}")
            time.sleep(0.01)

    def output(self, rank: int) -> str:
        return self._output(rank).read_text(encoding="utf-8", errors="replace")

    def end(self) -> None:
        """Ranks that still run are killed; servers have nothing to save either, but a socket to remove."""
        for process in self.ranks:
            process.kill()
        for server in self.servers:
            server.terminate()
        for process in [*self.ranks, *self.servers]:
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def _socket(self, index: int) -> str:
        return str(self.folder / f"s{index}")

    def _output(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.out"

    def _log(self, name: str) -> IO[bytes]:
        return (self.folder / f"{name}.log").open("wb")

    def _tail(self, name: str) -> str:
        text = (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")
        return text[-_TAIL_CHARS:].strip() or "it said nothing"


def _topology(asked: Mapping[str, Any]) -> dict[str, Any]:
    with Network(hosts=asked["hosts"], rate=asked["rate"]) as network:
        outputs = rehearse(network, asked["ranks"], [sys.executable, "-m", "hdp.collectives.probe"])
    found: dict[str, Any] = json.loads(outputs[0])
    return found


def main() -> int:
    """Answer one request. Exit code 1: it can't be, and why is in the answer."""
    try:
        answer = _topology(json.load(sys.stdin))
    except (HdpError, ValueError) as exc:
        answer = {"error": str(exc)}
    json.dump(answer, sys.stdout)
    return int("error" in answer)


if __name__ == "__main__":
    sys.exit(main())
